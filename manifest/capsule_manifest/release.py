"""The release manifest, `capsule.json`: everything in a release, by content.

Its SHA-256 is the capsule's id, so it speaks of content only: how bytes are packed, signed,
described or proved lies beside it. Two builds of one commit give the same bytes.

Source: design, section 6; `docs/reference/release-manifest.md`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.digest import CapsuleId, ObjectId, blake3_text, sha256_text
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object, root_object

__all__ = [
    "RELEASE_LIMITS",
    "Budgets",
    "Component",
    "ComponentKind",
    "External",
    "InstallerMinimum",
    "ManagedFile",
    "Platform",
    "Probe",
    "Release",
    "Role",
    "Source",
    "Unit",
    "capsule_id",
    "decode_release",
    "encode_release",
    "generation_name",
    "short_id",
]

RELEASE_SCHEMA: Final = "capsule/1"
RELEASE_LIMITS: Final = Limits(size_bytes_max=8 * 1024 * 1024, depth_max=12)
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
PRODUCT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9-]{0,62}")
UNIT_NAME: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}\.(service|timer|socket|target|path)"
)
_ID8 = 8


class ComponentKind(StrEnum):
    """What a component is. Source: design, section 3."""

    SOURCE = "source"
    TOOLCHAIN = "toolchain"
    WHEELS = "wheels"
    IMAGE = "image"
    HELPER = "helper"
    SERVICE = "service"
    FILES = "files"
    RECOVERY = "recovery"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The commit a release was built from. `date_s` is its committer time, Unix seconds."""

    commit: str
    tree: str
    date_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallerMinimum:
    """The oldest installer that may install this release, and why."""

    version: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A kind of host: machine and glibc as `uname` and `confstr` say, Python minor, interpreter.

    `interpreter` is an absolute path, or None to find `python<minor>` on the host.
    """

    machine: str
    glibc: str
    python: str
    interpreter: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """What another ecosystem calls this content: a wheel, a commit, an archive."""

    type: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An HTTP address that answers 200 when a unit serves. May hold `@{…}` placeholders."""

    http: str
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One systemd unit of a service component. `file` is its path in the component's tree."""

    name: str
    file: str
    start_timeout_ms: int
    stop_timeout_ms: int
    soak_ms: int
    probe: Probe | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedFile:
    """One file that capsule owns on a host. `file` is its path in the component's tree."""

    file: str
    target: str
    owner: str
    group: str
    mode: int
    template: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One named part. `platforms` is empty when it fits all; `tree` is the root of its listing."""

    name: str
    kind: ComponentKind
    platforms: tuple[str, ...]
    tree: ObjectId
    entries: int
    content_bytes: int
    external: tuple[External, ...] = ()
    units: tuple[Unit, ...] = ()
    files: tuple[ManagedFile, ...] = ()
    guarded_steps: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What one role receives. `case_collisions` says whether such names are refused or warned."""

    components: tuple[str, ...]
    case_collisions: str = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The two deadlines of an install and the liveness TTL. Source: design, section 9."""

    d1_ms: int = 120_000
    d2_ms: int = 120_000
    ttl_ms: int = 1_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A resolved release manifest."""

    product: str
    version: str
    release_counter: int
    source: Source
    installer: InstallerMinimum
    platforms: Mapping[str, Platform]
    roles: Mapping[str, Role]
    components: tuple[Component, ...]
    budgets: Budgets = field(default_factory=Budgets)

    def component(self, name: str) -> Component:
        """Return the component of that name; it must exist."""
        return next(component for component in self.components if component.name == name)

    def selected(self, role: str, platform: str) -> tuple[Component, ...]:
        """Return what a node of `role` on `platform` receives, the runtime included, in order.

        Raises:
            Refused: `document-invalid` for a role or platform that the release doesn't know.
        """
        if role not in self.roles or platform not in self.platforms:
            raise Refused(
                "document-invalid",
                "the release knows no such role or platform",
                expected=f"roles {sorted(self.roles)}, platforms {sorted(self.platforms)}",
                got=f"role {role!r}, platform {platform!r}",
            )
        wanted = set(self.roles[role].components)
        return tuple(
            component
            for component in self.components
            if (component.name in wanted or component.kind is ComponentKind.RUNTIME)
            and (not component.platforms or platform in component.platforms)
        )


def capsule_id(manifest: bytes) -> CapsuleId:
    """Return the id of the capsule whose `capsule.json` has these bytes."""
    return CapsuleId(sha256_text(manifest))


def short_id(capsule: CapsuleId) -> str:
    """Return the eight hex digits that name folders; never enough to trust anything."""
    return capsule.removeprefix("sha256:")[:_ID8]


def generation_name(release_counter: int, capsule: CapsuleId) -> str:
    """Return `<counter>-<id8>`, the folder of a realised release on a host."""
    return f"{release_counter}-{short_id(capsule)}"


def encode_release(release: Release) -> bytes:
    """Return the canonical bytes of `capsule.json`."""
    return encode(
        {
            "schema": RELEASE_SCHEMA,
            "product": release.product,
            "version": release.version,
            "release_counter": release.release_counter,
            "source": {
                "commit": release.source.commit,
                "tree": release.source.tree,
                "date_s": release.source.date_s,
            },
            "installer": {
                "version": release.installer.version,
                "reason": release.installer.reason,
            },
            "platforms": {name: _platform(item) for name, item in release.platforms.items()},
            "roles": {
                name: {
                    "components": list(role.components),
                    "case_collisions": role.case_collisions,
                }
                for name, role in release.roles.items()
            },
            "components": [_component(component) for component in release.components],
            "budgets": {
                "d1_ms": release.budgets.d1_ms,
                "d2_ms": release.budgets.d2_ms,
                "ttl_ms": release.budgets.ttl_ms,
            },
        }
    )


def decode_release(raw: bytes, *, where: str = "capsule.json") -> Release:
    """Read `capsule.json` strictly.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`, `digest-malformed`.
    """
    value = decode(raw, limits=RELEASE_LIMITS, where=where)
    document = root_object(value, schema=RELEASE_SCHEMA, name=where)
    release = Release(
        product=document.matching("product", PRODUCT),
        version=document.text("version"),
        release_counter=document.integer("release_counter", least=1),
        source=_read_source(document.nested("source")),
        installer=_read_installer(document.nested("installer")),
        platforms=document.named("platforms", _read_platform),
        roles=document.named("roles", _read_role),
        components=document.items("components", _read_component),
        budgets=_read_budgets(document.nested("budgets")),
    )
    document.end()
    _check_references(release, where)
    return release


def _check_references(release: Release, where: str) -> None:
    names = [component.name for component in release.components]
    _check_order(release, where)
    for component in release.components:
        unknown = set(component.platforms) - set(release.platforms)
        if unknown:
            raise Refused(
                "document-invalid",
                "a component names unknown platforms",
                got=sorted(unknown),
                where=f"{where}.components.{component.name}",
            )
    for name, role in release.roles.items():
        missing = set(role.components) - set(names)
        if missing:
            raise Refused(
                "document-invalid",
                "a role names unknown components",
                got=sorted(missing),
                where=f"{where}.roles.{name}",
            )


def _check_order(release: Release, where: str) -> None:
    """Refuse components out of order, and two of one name that one platform could receive."""
    keys = [(component.name, component.platforms) for component in release.components]
    seen: dict[str, set[str]] = {}
    for component in release.components:
        platforms = set(component.platforms or release.platforms)
        if seen.setdefault(component.name, set()) & platforms:
            raise Refused(
                "document-invalid",
                "one platform would receive two components of one name",
                got=sorted(seen[component.name] & platforms),
                where=f"{where}.components.{component.name}",
            )
        seen[component.name] |= platforms
    if keys != sorted(keys):
        raise Refused(
            "document-invalid",
            "components must be sorted by name, then platforms",
            got=keys,
            where=where,
        )


def _platform(platform: Platform) -> JsonValue:
    return {
        "machine": platform.machine,
        "glibc": platform.glibc,
        "python": platform.python,
        "interpreter": platform.interpreter,
    }


def _component(component: Component) -> JsonValue:
    return {
        "name": component.name,
        "kind": component.kind.value,
        "platforms": list(component.platforms),
        "tree": blake3_text(component.tree),
        "entries": component.entries,
        "content_bytes": component.content_bytes,
        "external": [
            {"type": item.type, "name": item.name, "digest": item.digest}
            for item in component.external
        ],
        "units": [_unit(unit) for unit in component.units],
        "files": [
            {
                "file": item.file,
                "target": item.target,
                "owner": item.owner,
                "group": item.group,
                "mode": item.mode,
                "template": item.template,
            }
            for item in component.files
        ],
        "guarded_steps": [{"argv": list(argv)} for argv in component.guarded_steps],
    }


def _unit(unit: Unit) -> JsonValue:
    probe = unit.probe
    return {
        "name": unit.name,
        "file": unit.file,
        "start_timeout_ms": unit.start_timeout_ms,
        "stop_timeout_ms": unit.stop_timeout_ms,
        "soak_ms": unit.soak_ms,
        "probe": None if probe is None else {"http": probe.http, "timeout_ms": probe.timeout_ms},
    }


def _read_source(item: Object) -> Source:
    source = Source(
        commit=item.matching("commit", _GIT_ID),
        tree=item.matching("tree", _GIT_ID),
        date_s=item.integer("date_s"),
    )
    item.end()
    return source


def _read_installer(item: Object) -> InstallerMinimum:
    minimum = InstallerMinimum(
        version=item.matching("version", _VERSION), reason=item.text("reason")
    )
    item.end()
    return minimum


def _read_platform(item: Object) -> Platform:
    platform = Platform(
        machine=item.matching("machine", NAME),
        glibc=item.matching("glibc", _DOTTED),
        python=item.matching("python", _DOTTED),
        interpreter=item.optional_text("interpreter"),
    )
    item.end()
    return platform


def _read_role(item: Object) -> Role:
    role = Role(
        components=item.texts("components"),
        case_collisions=item.text("case_collisions", one_of=("warn", "error")),
    )
    item.end()
    return role


def _read_component(item: Object) -> Component:
    component = Component(
        name=item.matching("name", NAME),
        kind=ComponentKind(item.text("kind", one_of=tuple(kind.value for kind in ComponentKind))),
        platforms=item.texts("platforms"),
        tree=item.blake3("tree"),
        entries=item.integer("entries", most=1_000_000),
        content_bytes=item.integer("content_bytes"),
        external=item.items("external", _read_external),
        units=item.items("units", _read_unit),
        files=item.items("files", _read_file),
        guarded_steps=item.items("guarded_steps", _read_step),
    )
    item.end()
    return component


def _read_external(item: Object) -> External:
    external = External(
        type=item.text("type"),
        name=item.text("name"),
        digest=item.matching("digest", _DIGEST),
    )
    item.end()
    return external


def _read_unit(item: Object) -> Unit:
    unit = Unit(
        name=item.matching("name", UNIT_NAME),
        file=item.text("file"),
        start_timeout_ms=item.integer("start_timeout_ms", least=1),
        stop_timeout_ms=item.integer("stop_timeout_ms", least=1),
        soak_ms=item.integer("soak_ms"),
        probe=_read_probe(item.optional_nested("probe")),
    )
    item.end()
    return unit


def _read_probe(item: Object | None) -> Probe | None:
    if item is None:
        return None
    probe = Probe(http=item.text("http"), timeout_ms=item.integer("timeout_ms", least=1))
    item.end()
    return probe


def _read_file(item: Object) -> ManagedFile:
    managed = ManagedFile(
        file=item.text("file"),
        target=item.matching("target", _ABSOLUTE),
        owner=item.matching("owner", NAME),
        group=item.matching("group", NAME),
        mode=item.integer("mode", most=0o777),
        template=item.boolean("template"),
    )
    item.end()
    return managed


def _read_step(item: Object) -> tuple[str, ...]:
    argv = item.texts("argv")
    item.end()
    return argv


def _read_budgets(item: Object) -> Budgets:
    budgets = Budgets(
        d1_ms=item.integer("d1_ms", least=1),
        d2_ms=item.integer("d2_ms", least=1),
        ttl_ms=item.integer("ttl_ms", least=1),
    )
    item.end()
    return budgets


_GIT_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+){1,3}")
_DOTTED = re.compile(r"[0-9]+\.[0-9]+")
_DIGEST = re.compile(r"sha(1:[0-9a-f]{40}|256:[0-9a-f]{64})")
# An absolute path with no `.`, `..`, empty or control-character segment: it names one place.
_ABSOLUTE = re.compile(r"(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+")
