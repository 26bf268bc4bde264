"""`release.lock`: every pin of a release, resolved.

The file names content by version, file name and digest, and says for which target and from which
input it was chosen. It never says from where content comes: the index is the configuration of
whoever locks or fetches. One pin a line, sorted, so that a change is easy to read.

Source: `docs/reference/release-lock.md`.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from capsule.builder.nix.names import STORE_NAME
from capsule_manifest.errors import Refused

__all__ = [
    "ImagePin",
    "LockFile",
    "NixPath",
    "NixPin",
    "SourcePin",
    "ToolPin",
    "WheelPin",
    "WheelSet",
    "decode_lock",
    "encode_lock",
    "load_lock",
    "lock_schema",
]

_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_HEAD: Final = (
    "# Written by `capsule lock`; commit it beside release.toml.\n"
    "# It pins content by digest and names no place to get it from.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPin:
    """One wheel. `name` is normalised, `file` is its file name, `sha256` is hex."""

    name: str
    version: str
    file: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSet:
    """The wheels of one component on one platform.

    `input_sha256` is of the locked requirements that they were chosen from, `target` describes the
    platform; if either changes, the pins no longer answer the question that was asked.
    """

    input_sha256: str
    target: str
    wheels: tuple[WheelPin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPin:
    """The content of a tool from a path or an address. A folder's digest is of its listing."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePin:
    """The commit of a source in another work tree than the release's own, and its tree."""

    commit: str
    tree: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePin:
    """The manifest of an image on one platform; `input_sha256` is of what release.toml asked."""

    input_sha256: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NixPath:
    """A store path by its name, with the digest (hex) and size of its archive, uncompressed.

    `references` are names too, sorted.
    """

    name: str
    nar_sha256: str
    nar_bytes: int
    references: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NixPin:
    """A closure: `root` with all that it needs, sorted by name; `bin` are programs of the root.

    `revision` is of the flake that it was first built from, for people.
    """

    input_sha256: str
    revision: str
    root: str
    bin: tuple[str, ...]
    paths: tuple[NixPath, ...]

    @property
    def content(self) -> tuple[object, ...]:
        """Return what decides the tree of the component."""
        return (self.root, self.bin, self.paths)

    def has_content_of(self, other: "NixPin") -> bool:
        """Say whether both pin the same closure, whichever revision it was built from."""
        return self.input_sha256 == other.input_sha256 and self.content == other.content


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """All pins: `wheels`, `images` and `closures` by both names, the others by one.

    The names are of a component and of a platform.
    """

    locked_at: str
    locked_by: str
    wheels: Mapping[tuple[str, str], WheelSet] = field(default_factory=dict)
    runtime: Mapping[str, WheelSet] = field(default_factory=dict)
    tools: Mapping[str, ToolPin] = field(default_factory=dict)
    sources: Mapping[str, SourcePin] = field(default_factory=dict)
    images: Mapping[tuple[str, str], ImagePin] = field(default_factory=dict)
    closures: Mapping[tuple[str, str], NixPin] = field(default_factory=dict)

    def has_pins_of(self, other: "LockFile") -> bool:
        """Say whether both pin the same content, whenever and by whatever they were made."""
        return (
            dict(self.wheels) == dict(other.wheels)
            and dict(self.runtime) == dict(other.runtime)
            and dict(self.tools) == dict(other.tools)
            and dict(self.sources) == dict(other.sources)
            and dict(self.images) == dict(other.images)
            and dict(self.closures) == dict(other.closures)
        )


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _PinDocument(_Document):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    version: Text
    file: FileName
    sha256: Sha256
    size_bytes: Annotated[int, Field(gt=0)]


class _SetDocument(_Document):
    input_sha256: Sha256
    target: Text
    wheels: list[_PinDocument]

    def value(self) -> WheelSet:
        return WheelSet(
            input_sha256=self.input_sha256,
            target=self.target,
            wheels=tuple(WheelPin(**pin.model_dump()) for pin in self.wheels),
        )


class _ToolDocument(_Document):
    sha256: Sha256
    size_bytes: Annotated[int, Field(ge=0)]


GitId = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]


class _SourceDocument(_Document):
    commit: GitId
    tree: GitId


class _ImageDocument(_Document):
    input_sha256: Sha256
    manifest_sha256: Sha256


StoreName = Annotated[str, StringConstraints(pattern=rf"^(?:{STORE_NAME.pattern})$")]


class _NixPathDocument(_Document):
    name: StoreName
    nar_sha256: Sha256
    nar_bytes: Annotated[int, Field(gt=0, le=2**53 - 1)]
    references: list[StoreName]

    def value(self) -> NixPath:
        return NixPath(
            name=self.name,
            nar_sha256=self.nar_sha256,
            nar_bytes=self.nar_bytes,
            references=tuple(self.references),
        )


class _NixDocument(_Document):
    input_sha256: Sha256
    revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40,64}$")]
    root: StoreName
    bin: list[Text]
    paths: Annotated[list[_NixPathDocument], Field(min_length=1)]

    def value(self) -> NixPin:
        return NixPin(
            input_sha256=self.input_sha256,
            revision=self.revision,
            root=self.root,
            bin=tuple(self.bin),
            paths=tuple(path.value() for path in self.paths),
        )


class _LockDocument(_Document):
    format: Literal[1]
    locked_at: Text
    locked_by: Text
    wheels: dict[str, dict[str, _SetDocument]] = Field(default_factory=dict)
    runtime: dict[str, _SetDocument] = Field(default_factory=dict)
    tools: dict[str, _ToolDocument] = Field(default_factory=dict)
    sources: dict[str, _SourceDocument] = Field(default_factory=dict)
    images: dict[str, dict[str, _ImageDocument]] = Field(default_factory=dict)
    nix: dict[str, dict[str, _NixDocument]] = Field(default_factory=dict)


def lock_schema() -> dict[str, object]:
    """Return the JSON Schema of `release.lock`."""
    return _LockDocument.model_json_schema()


def load_lock(path: Path) -> LockFile:
    """Read `release.lock`.

    Raises:
        Refused: `lock-missing`, `lock-invalid`.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_SIZE_BYTES_MAX + 1)
    except OSError as error:
        raise Refused(
            "lock-missing", "there is no lock", expected="a release.lock", where=path
        ) from error
    return decode_lock(raw, where=str(path))


def decode_lock(raw: bytes, *, where: str = "release.lock") -> LockFile:
    """Check the bytes of a `release.lock`.

    Raises:
        Refused: `lock-invalid`.
    """
    if len(raw) > _SIZE_BYTES_MAX:
        raise _invalid(f"at most {_SIZE_BYTES_MAX} bytes", "more", where)
    try:
        value = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _invalid("TOML 1.0 in UTF-8", error, where) from None
    try:
        document = _LockDocument.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _invalid(first["msg"], repr(first["input"]), f"{where}: {place}") from None
    return LockFile(
        locked_at=document.locked_at,
        locked_by=document.locked_by,
        wheels=MappingProxyType(
            {
                (component, platform): item.value()
                for component, by_platform in document.wheels.items()
                for platform, item in by_platform.items()
            }
        ),
        runtime=MappingProxyType({n: item.value() for n, item in document.runtime.items()}),
        tools=MappingProxyType(
            {n: ToolPin(**item.model_dump()) for n, item in document.tools.items()}
        ),
        sources=MappingProxyType(
            {n: SourcePin(**item.model_dump()) for n, item in document.sources.items()}
        ),
        images=MappingProxyType(
            {
                (component, platform): ImagePin(**item.model_dump())
                for component, by_platform in document.images.items()
                for platform, item in by_platform.items()
            }
        ),
        closures=MappingProxyType(
            {
                (component, platform): closure.value()
                for component, closures in document.nix.items()
                for platform, closure in closures.items()
            }
        ),
    )


def encode_lock(lock: LockFile) -> bytes:
    """Return the text of `release.lock`: sorted, the same for the same pins."""
    lines = [
        _HEAD,
        "format = 1",
        f"locked_at = {_text(lock.locked_at)}",
        f"locked_by = {_text(lock.locked_by)}",
    ]
    for (component, platform), wheels in sorted(lock.wheels.items()):
        lines += _set_lines(("wheels", component, platform), wheels)
    for platform, wheels in sorted(lock.runtime.items()):
        lines += _set_lines(("runtime", platform), wheels)
    for name, tool in sorted(lock.tools.items()):
        lines += [
            "",
            f"[{_keys(('tools', name))}]",
            f"sha256 = {_text(tool.sha256)}",
            f"size_bytes = {tool.size_bytes}",
        ]
    for name, source in sorted(lock.sources.items()):
        lines += [
            "",
            f"[{_keys(('sources', name))}]",
            f"commit = {_text(source.commit)}",
            f"tree = {_text(source.tree)}",
        ]
    for keys, image in sorted(lock.images.items()):
        lines += [
            "",
            f"[{_keys(('images', *keys))}]",
            f"input_sha256 = {_text(image.input_sha256)}",
            f"manifest_sha256 = {_text(image.manifest_sha256)}",
        ]
    for (component, platform), closure in sorted(lock.closures.items()):
        lines += _closure_lines(("nix", component, platform), closure)
    return ("\n".join(lines) + "\n").encode()


def _closure_lines(keys: Iterable[str], pin: NixPin) -> list[str]:
    paths = [
        f"    {{ name = {_text(path.name)}, nar_sha256 = {_text(path.nar_sha256)}, "
        f"nar_bytes = {path.nar_bytes}, references = {_texts(path.references)} }},"
        for path in pin.paths
    ]
    return [
        "",
        f"[{_keys(keys)}]",
        f"input_sha256 = {_text(pin.input_sha256)}",
        f"revision = {_text(pin.revision)}",
        f"root = {_text(pin.root)}",
        f"bin = {_texts(pin.bin)}",
        "paths = [",
        *paths,
        "]",
    ]


def _set_lines(keys: Iterable[str], wheels: WheelSet) -> list[str]:
    pins = [
        f"    {{ name = {_text(pin.name)}, version = {_text(pin.version)}, "
        f"file = {_text(pin.file)}, sha256 = {_text(pin.sha256)}, size_bytes = {pin.size_bytes} }},"
        for pin in sorted(wheels.wheels, key=lambda pin: pin.name)
    ]
    return [
        "",
        f"[{_keys(keys)}]",
        f"input_sha256 = {_text(wheels.input_sha256)}",
        f"target = {_text(wheels.target)}",
        "wheels = [",
        *pins,
        "]",
    ]


def _keys(parts: Iterable[str]) -> str:
    return ".".join(part if _BARE_KEY.fullmatch(part) else _text(part) for part in parts)


def _texts(values: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    # A JSON string is a TOML basic string, but for DEL and for escaped surrogate pairs.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _invalid(expected: object, got: object, where: str) -> Refused:
    return Refused("lock-invalid", "the lock is malformed", expected=expected, got=got, where=where)
