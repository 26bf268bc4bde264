"""Let Nix evaluate and build a component of a flake, and copy its closure into a folder.

What Nix prints as JSON changed its shape three times; the narinfo files of a binary cache never
did. So Nix is asked for two small documents, and the closure is read from what it copied.

Source: Nix manual, `nix flake metadata`, `nix eval`, `nix build`, `nix copy`.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from capsule.builder.nix.names import STORE, STORE_NAME
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.paths import escape

__all__ = ["ClosureBuilder", "Described", "Nix", "NixAsk"]

_EVAL_TIMEOUT_S: Final = 900
_BUILD_TIMEOUT_S: Final = 6 * 3600
_MESSAGE_CHARACTERS: Final = 300
_OLDEST: Final = (2, 8)
# In the address of a store some versions decode percent signs, and others take them as they are.
_FOLDER: Final = re.compile(r"/[A-Za-z0-9._+/-]+")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
# What the user's Nix needs to be the user's Nix. The locale, so that messages can be read.
_ENVIRONMENT: Final = (
    "HOME", "PATH", "TMPDIR", "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "NIX_CONFIG",
    "NIX_CONF_DIR", "NIX_USER_CONF_FILES", "NIX_REMOTE", "NIX_SSL_CERT_FILE", "NIX_STATE_DIR",
    "SSH_AUTH_SOCK", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
# `nix` and flakes are experimental to this day. The lock of the flake's inputs is the user's.
_ALWAYS: Final = ("--extra-experimental-features", "nix-command flakes")
_FLAKE: Final = ("--no-update-lock-file", "--no-write-lock-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class NixAsk:
    """A component of a flake for a system, such as `x86_64-linux`. `where` is for messages."""

    flake: str
    component: str
    system: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What was built: `root` is the name of a store path, `bin` are programs below it.

    `revision` is the flake's, for people.
    """

    revision: str
    kind: str
    root: str
    bin: tuple[str, ...]


class ClosureBuilder(Protocol):
    """Build components where Nix is."""

    def is_present(self) -> bool:
        """Say whether there is a Nix that is new enough."""

    def build(self, ask: NixAsk, folder: Path) -> Described:
        """Build a component and copy its closure into `folder`, a binary cache.

        Raises:
            Refused: `nix-flake-unpinned`, `nix-component-invalid`.
            Failed: `nix-failed`; `cache-failed` when Nix can't be told the path of `folder`.
        """


Model = TypeVar("Model", bound=BaseModel)


class _Component(BaseModel):
    # A flake may say more than is asked; what is asked has one spelling.
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    kind: Literal["toolchain", "helper"]
    bin: list[Annotated[str, StringConstraints(min_length=1, max_length=255)]]
    env: dict[str, str] = Field(max_length=0)
    store_path: str = Field(alias="storePath")
    output: str
    system: str


class _Description(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    format: Literal["capsule.nix/1"] = Field(alias="schema")
    components: dict[str, object]


class _Locked(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    rev: str | None = None


class _Metadata(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    locked: _Locked
    url: str


class _Result(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    outputs: dict[str, str]


class _Results(BaseModel):
    results: Annotated[list[_Result], Field(min_length=1, max_length=1)]


class Nix:
    """The program `nix`. `environment` is cut down to what it may know."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {
            name: environment[name] for name in _ENVIRONMENT if name in environment
        } | {"LC_ALL": "C.UTF-8"}

    def is_present(self) -> bool:
        """Say whether there is Nix 2.8 or newer. See `ClosureBuilder`."""
        try:
            done = subprocess.run(
                ["nix", "--version"], env=self._environment, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=_EVAL_TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        found = _VERSION.search(done.stdout.decode(errors="replace"))
        return (
            done.returncode == 0 and found is not None and (int(found[1]), int(found[2])) >= _OLDEST
        )

    def build(self, ask: NixAsk, folder: Path) -> Described:
        """Describe, build and copy a component. See `ClosureBuilder`."""
        if not _FOLDER.fullmatch(str(folder)):
            raise Failed(
                "cache-failed", "Nix can't be told the path of the cache",
                expected="an absolute path of letters, digits and ._+-", got=folder,
                where=ask.where,
            )  # fmt: skip
        raw = self._run(["flake", "metadata", "--json", *_FLAKE, ask.flake], ask, _EVAL_TIMEOUT_S)
        metadata = _read(_Metadata, raw, ask)
        if metadata.locked.rev is None:
            raise Refused(
                "nix-flake-unpinned", "a flake has no revision",
                expected="a commit without changes", got=ask.flake, where=ask.where,
            )  # fmt: skip
        # From here on the locked address: all three answers are of one revision.
        flake = f"{metadata.url}#capsule.{ask.system}"
        component = self._described(flake, ask)
        raw = self._run(
            ["build", "--json", "--no-link", *_FLAKE, f"{flake}.components.{ask.component}"],
            ask, _BUILD_TIMEOUT_S,
        )  # fmt: skip
        (built,) = _read(_Results, b'{"results":' + raw + b"}", ask).results
        if built.outputs.get(component.output) != component.store_path:
            raise _invalid(
                "what was built is not what was described", component.store_path,
                str(built.outputs.get(component.output)), ask,
            )  # fmt: skip
        # The default compression takes a hundred times longer, and the archives differ by version.
        target = f"file://{folder}?compression=none"
        self._run(["copy", "--to", target, component.store_path], ask, _BUILD_TIMEOUT_S)
        return Described(
            revision=metadata.locked.rev,
            kind=component.kind,
            root=component.store_path.removeprefix(f"{STORE}/"),
            bin=tuple(sorted(set(component.bin))),
        )

    def _described(self, flake: str, ask: NixAsk) -> _Component:
        raw = self._run(["eval", "--json", *_FLAKE, f"{flake}.describe"], ask, _EVAL_TIMEOUT_S)
        components = _read(_Description, raw, ask).components
        if ask.component not in components:
            raise _invalid(
                "the flake has no such component", ", ".join(sorted(components)) or "some",
                ask.component, ask,
            )  # fmt: skip
        try:
            component = _Component.model_validate(components[ask.component])
        except ValidationError as error:
            raise _unreadable(error, ask) from None
        if component.system != ask.system:
            raise _invalid("the component is for another system", ask.system, component.system, ask)
        folder, _, name = component.store_path.rpartition("/")
        if folder != STORE or not STORE_NAME.fullmatch(name):
            raise _invalid("this is no store path", f"one in {STORE}", component.store_path, ask)
        return component

    def _run(self, arguments: Sequence[str], ask: NixAsk, timeout_s: int) -> bytes:
        try:
            done = subprocess.run(
                ["nix", *_ALWAYS, *arguments], env=self._environment, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=timeout_s, check=False,
            )  # fmt: skip
        except OSError as error:
            raise _failed("nix can't be started", error, ask) from error
        except subprocess.TimeoutExpired as error:
            raise _failed(f"nix took longer than {timeout_s} s", "nothing", ask) from error
        # Before its output is looked at: a failed evaluation prints half a document.
        if done.returncode:
            text = done.stderr.decode(errors="replace").strip() or "no message"
            raise _failed(f"nix {arguments[0]} failed", escape(text[-_MESSAGE_CHARACTERS:]), ask)
        return done.stdout


def _read(model: type[Model], raw: bytes, ask: NixAsk) -> Model:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise _unreadable(error, ask) from None


def _unreadable(error: ValidationError, ask: NixAsk) -> Refused:
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return _invalid(
        f"the flake's description is wrong at {place or 'its top'}", first["msg"],
        repr(first["input"]), ask,
    )  # fmt: skip


def _invalid(what: str, expected: str, got: str, ask: NixAsk) -> Refused:
    return Refused(
        "nix-component-invalid", what, expected=expected, got=escape(got), where=ask.where
    )


def _failed(what: str, got: object, ask: NixAsk) -> Failed:
    return Failed("nix-failed", what, got=got, where=ask.where)
