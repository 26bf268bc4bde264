"""The document edge of `release.toml`: pydantic models, which never leave the builder's config.

Each model turns itself into a value of `config_values`. What one model can't see, such as a role
that names an unknown component, is checked by `ReleaseDocument.check`, which reports all issues.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from capsule.builder.config_issues import Issue
from capsule.builder.config_values import (
    FilesSource,
    GitSource,
    ImageSource,
    ManagedFileSource,
    NixOrigin,
    PathOrigin,
    RecoverySource,
    ServiceSource,
    ToolOrigin,
    ToolSource,
    UnitSource,
    UrlOrigin,
    WheelOrigin,
    WheelsSource,
)
from capsule.builder.nix.names import KEY
from capsule_manifest.errors import Refused
from capsule_manifest.paths import check_path
from capsule_manifest.release import (
    NAME,
    PRODUCT,
    UNIT_NAME,
    Budgets,
    ComponentKind,
    InstallerMinimum,
    Platform,
    Probe,
    Role,
)

__all__ = ["ReleaseDocument"]

# Folders that the host makes in a generation beside the components.
_TAKEN_NAMES: Final = frozenset({"units", "files", "seal.json"})
_FLAKE: Final = re.compile(r"[a-z][a-z0-9+]{0,19}:[A-Za-z0-9/][!\"$-~]{0,500}")
_FILE_MODES: Final = ("0600", "0640", "0644", "0700", "0750", "0755")


def _path(text: str) -> str:
    """Accept a relative path that may start with `..`, as `release.toml` may lie in a subfolder."""
    rest = text
    while rest.startswith("../"):
        rest = rest[3:]
    if rest in {"", ".", ".."}:
        return text
    try:
        check_path(rest.removeprefix("./"), "")
    except Refused as error:
        raise ValueError(f"{error.expected}: {error.what}") from None
    return text


def _glob(text: str) -> str:
    if not text or text.startswith("/"):
        raise ValueError("a pattern relative to the archive's root")
    return text


def _flake(text: str) -> str:
    """Accept a path as `_path` does, or a flake reference with a scheme and without a fragment."""
    if ":" not in text:
        return _path(text)
    if not _FLAKE.fullmatch(text):
        raise ValueError("a path, or a flake reference such as github:OWNER/REPO/REV")
    return text


def _pinned(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise ValueError("name==version") from None
    pins = list(requirement.specifier)
    if (
        len(pins) != 1
        or pins[0].operator != "=="
        or pins[0].version.endswith(".*")
        or requirement.url
        or requirement.marker
        or requirement.extras
    ):
        raise ValueError("name==version, without extras, marker or address")
    return text


def _regex(pattern: re.Pattern[str]) -> StringConstraints:
    return StringConstraints(pattern=f"^(?:{pattern.pattern})$")


Name = Annotated[str, _regex(NAME)]
Path = Annotated[str, AfterValidator(_path)]
Glob = Annotated[str, AfterValidator(_glob)]
Text = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Dotted = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
Absolute = Annotated[str, StringConstraints(pattern=r"^(/[^/\x00-\x1f\x7f]+)+$")]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class _Document(BaseModel):
    # Strict: "1" is no number. Tuples can't be read from TOML's arrays, so lists stand here.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class InstallerDocument(_Document):
    """The table `[installer]`."""

    min_version: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+){1,3}$")]
    reason: Text

    def value(self) -> InstallerMinimum:
        return InstallerMinimum(version=self.min_version, reason=self.reason)


class PlatformDocument(_Document):
    """A table `[platforms.NAME]`."""

    machine: Literal["x86_64", "aarch64"]
    glibc: Annotated[str, StringConstraints(pattern=r"^2\.[0-9]{1,3}$")]
    python: Annotated[str, StringConstraints(pattern=r"^3\.(1[1-9]|[2-9][0-9])$")]
    interpreter: Absolute | None = None

    def value(self) -> Platform:
        return Platform(
            machine=self.machine,
            glibc=self.glibc,
            python=self.python,
            interpreter=self.interpreter,
        )


class _ComponentDocument(_Document):
    platforms: list[Name] = Field(default_factory=list)


class SourceDocument(_ComponentDocument):
    """A component that is files of a git commit."""

    kind: Literal["source"]
    path: Path
    include: list[Path] = Field(default_factory=list)

    def value(self, name: str) -> GitSource:
        return GitSource(
            name=name,
            platforms=tuple(self.platforms),
            path=self.path,
            include=tuple(self.include),
        )


class WheelsDocument(_ComponentDocument):
    """A component that is a Python environment."""

    kind: Literal["wheels"]
    requirements: Path | None = None
    pylock: Path | None = None

    @model_validator(mode="after")
    def _one_lock(self) -> Self:
        if (self.requirements is None) == (self.pylock is None):
            raise ValueError("exactly one of requirements, pylock")
        return self

    def value(self, name: str) -> WheelsSource:
        locked = self.pylock or self.requirements
        assert locked is not None, "the model has exactly one of both"
        return WheelsSource(
            name=name,
            platforms=tuple(self.platforms),
            locked=locked,
            is_pylock=self.pylock is not None,
        )


class NixDocument(_Document):
    """The table `nix` of a component: where it comes from."""

    flake: Annotated[str, AfterValidator(_flake)]
    component: Name | None = None
    keys: list[Annotated[str, _regex(KEY)]] = Field(default_factory=list)

    def value(self) -> NixOrigin:
        return NixOrigin(flake=self.flake, component=self.component, keys=tuple(self.keys))


class ToolDocument(_ComponentDocument):
    """A component of programs that come ready to run."""

    kind: Literal["helper", "toolchain"]
    path: Path | None = None
    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$")] | None = None
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    wheel: Annotated[str, AfterValidator(_pinned)] | None = None
    nix: NixDocument | None = None
    member: Glob | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        origins = (self.path, self.url, self.wheel, self.nix)
        if sum(origin is not None for origin in origins) != 1:
            raise ValueError("exactly one of path, url with sha256, wheel, nix")
        if (self.url is None) != (self.sha256 is None):
            raise ValueError("url and sha256 together")
        if (self.path or self.nix) is not None and self.member is not None:
            raise ValueError("member only with wheel or url")
        return self

    def value(self, name: str) -> ToolSource:
        origin: ToolOrigin
        if self.wheel is not None:
            origin = WheelOrigin(requirement=self.wheel, member=self.member)
        elif self.url is not None and self.sha256 is not None:
            origin = UrlOrigin(url=self.url, sha256=self.sha256, member=self.member)
        elif self.nix is not None:
            origin = self.nix.value()
        else:
            assert self.path is not None, "the model has exactly one origin"
            origin = PathOrigin(path=self.path)
        return ToolSource(
            name=name,
            platforms=tuple(self.platforms),
            kind=ComponentKind(self.kind),
            origin=origin,
        )


class ImageDocument(_ComponentDocument):
    """A component that is a container image."""

    kind: Literal["image"]
    layout: Path | None = None
    reference: (
        Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-zA-Z0-9._/:@-]{2,250}$")] | None
    ) = None
    digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.layout is None) == (self.reference is None):
            raise ValueError("exactly one of layout, reference")
        return self

    def value(self, name: str) -> ImageSource:
        return ImageSource(
            name=name,
            platforms=tuple(self.platforms),
            layout=self.layout,
            reference=self.reference,
            digest=self.digest,
        )


class ProbeDocument(_Document):
    """An address that answers 200 when the unit serves."""

    http: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$")]
    timeout_s: Seconds = 5.0

    def value(self) -> Probe:
        return Probe(http=self.http, timeout_ms=_milliseconds(self.timeout_s))


class UnitDocument(_Document):
    """A table `[[components.NAME.units]]`."""

    file: Path
    soak_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 2.0
    probe: ProbeDocument | None = None

    def value(self) -> UnitSource:
        return UnitSource(
            file=self.file,
            soak_ms=_milliseconds(self.soak_s),
            probe=self.probe.value() if self.probe else None,
        )


class ServiceDocument(_ComponentDocument):
    """A component of systemd units."""

    kind: Literal["service"]
    units: Annotated[list[UnitDocument], Field(min_length=1)]
    guarded_steps: list[Annotated[list[Text], Field(min_length=1)]] = Field(default_factory=list)

    def value(self, name: str) -> ServiceSource:
        return ServiceSource(
            name=name,
            platforms=tuple(self.platforms),
            units=tuple(unit.value() for unit in self.units),
            guarded_steps=tuple(tuple(step) for step in self.guarded_steps),
        )


class ManagedFileDocument(_Document):
    """A table `[[components.NAME.files]]`."""

    source: Path
    target: Absolute
    owner: Name = "root"
    group: Name = "root"
    mode: Literal["0600", "0640", "0644", "0700", "0750", "0755"] = "0644"
    template: bool = False

    def value(self) -> ManagedFileSource:
        return ManagedFileSource(
            source=self.source,
            target=self.target,
            owner=self.owner,
            group=self.group,
            mode=int(self.mode, 8),
            template=self.template,
        )


class FilesDocument(_ComponentDocument):
    """A component of managed files."""

    kind: Literal["files"]
    files: Annotated[list[ManagedFileDocument], Field(min_length=1)]

    def value(self, name: str) -> FilesSource:
        return FilesSource(
            name=name,
            platforms=tuple(self.platforms),
            files=tuple(item.value() for item in self.files),
        )


class RecoveryDocument(_ComponentDocument):
    """A component of recovery material."""

    kind: Literal["recovery"]
    paths: Annotated[list[Path], Field(min_length=1)]

    def value(self, name: str) -> RecoverySource:
        return RecoverySource(name=name, platforms=tuple(self.platforms), paths=tuple(self.paths))


ComponentDocument = Annotated[
    SourceDocument
    | WheelsDocument
    | ToolDocument
    | ImageDocument
    | ServiceDocument
    | FilesDocument
    | RecoveryDocument,
    Field(discriminator="kind"),
]


class RoleDocument(_Document):
    """A table `[roles.NAME]`."""

    components: Annotated[list[Name], Field(min_length=1)]
    case_collisions: Literal["warn", "error"] = "warn"

    def value(self) -> Role:
        return Role(components=tuple(self.components), case_collisions=self.case_collisions)


class BudgetsDocument(_Document):
    """The table `[budgets]`. Source: design, section 11."""

    d1_s: Seconds = 120.0
    d2_s: Seconds = 120.0
    ttl_s: Seconds = 1800.0

    def value(self) -> Budgets:
        return Budgets(
            d1_ms=_milliseconds(self.d1_s),
            d2_ms=_milliseconds(self.d2_s),
            ttl_ms=_milliseconds(self.ttl_s),
        )


class ReleaseDocument(_Document):
    """The whole of `release.toml`."""

    format: Literal[1]
    product: Annotated[str, _regex(PRODUCT)]
    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$")]
    release_counter: Annotated[int, Field(ge=1, le=2**53 - 1)]
    installer: InstallerDocument
    platforms: Annotated[dict[Name, PlatformDocument], Field(min_length=1)]
    components: Annotated[dict[Name, ComponentDocument], Field(min_length=1)]
    roles: Annotated[dict[Name, RoleDocument], Field(min_length=1)]
    budgets: BudgetsDocument = Field(default_factory=BudgetsDocument)

    def check(self) -> list[Issue]:
        """Return what is wrong between tables."""
        return [*self._check_names(), *self._check_references(), *self._check_twice()]

    def _check_names(self) -> Iterator[Issue]:
        for name in self.components:
            if name in _TAKEN_NAMES or name.startswith("runtime-"):
                yield Issue(
                    f"components.{name}",
                    "the name is taken by the host",
                    f"another name than {', '.join(sorted(_TAKEN_NAMES))} or runtime-…",
                    repr(name),
                )

    def _check_references(self) -> Iterator[Issue]:
        platforms = f"one of {', '.join(self.platforms)}"
        for name, component in self.components.items():
            for index, platform in enumerate(component.platforms):
                if platform not in self.platforms:
                    path = f"components.{name}.platforms[{index}]"
                    yield Issue(path, "the platform is unknown", platforms, repr(platform))
        components = f"one of {', '.join(self.components)}"
        for name, role in self.roles.items():
            for index, component_name in enumerate(role.components):
                if component_name not in self.components:
                    path = f"roles.{name}.components[{index}]"
                    yield Issue(path, "the component is unknown", components, repr(component_name))

    def _check_twice(self) -> Iterator[Issue]:
        lists = {f"components.{n}.platforms": c.platforms for n, c in self.components.items()}
        lists |= {f"roles.{n}.components": role.components for n, role in self.roles.items()}
        for name, component in self.components.items():
            if isinstance(component, ServiceDocument):
                names = [unit.file.rpartition("/")[2] for unit in component.units]
                lists[f"components.{name}.units"] = names
                for index, unit in enumerate(names):
                    if not UNIT_NAME.fullmatch(unit):
                        path = f"components.{name}.units[{index}].file"
                        yield Issue(
                            path, "this is no unit's name", "such as hello.service", repr(unit)
                        )
            elif isinstance(component, FilesDocument):
                lists[f"components.{name}.files"] = [item.target for item in component.files]
        for path, values in lists.items():
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                yield Issue(path, "a value is listed twice", "each once", ", ".join(twice))


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
