"""The components of `release.toml` as values: legal by construction, paths not yet looked at.

Times are whole milliseconds, modes are numbers, paths are relative to the folder of the file.
"""

from dataclasses import dataclass

from capsule_manifest.release import ComponentKind, Probe

__all__ = [
    "ComponentSource",
    "FilesSource",
    "GitSource",
    "ImageSource",
    "ManagedFileSource",
    "NixOrigin",
    "PathOrigin",
    "RecoverySource",
    "ServiceSource",
    "ToolOrigin",
    "ToolSource",
    "UnitSource",
    "UrlOrigin",
    "WheelOrigin",
    "WheelsSource",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """A git work tree, or a folder in one. `include` limits it to these paths; empty takes all."""

    name: str
    platforms: tuple[str, ...]
    path: str
    include: tuple[str, ...]
    kind: ComponentKind = ComponentKind.SOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelsSource:
    """A Python environment: `locked` is a hash-locked requirements file or a `pylock.toml`."""

    name: str
    platforms: tuple[str, ...]
    locked: str
    is_pylock: bool
    kind: ComponentKind = ComponentKind.WHEELS


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOrigin:
    """A file or folder beside `release.toml`, pinned by its content."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlOrigin:
    """A file or archive at an address. `member` picks files of an archive by a glob."""

    url: str
    sha256: str
    member: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelOrigin:
    """A wheel `name==version`. `member` picks files of it by a glob; None installs it."""

    requirement: str
    member: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NixOrigin:
    """A component of a flake: `flake` is a path in the release's work tree, or a flake reference.

    `component` is its name in the flake, None for the same. With `keys`, as Nix writes public keys,
    every store path must be signed by one of them.
    """

    flake: str
    component: str | None
    keys: tuple[str, ...]


ToolOrigin = PathOrigin | UrlOrigin | WheelOrigin | NixOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSource:
    """A helper or toolchain: programs that come ready to run."""

    name: str
    platforms: tuple[str, ...]
    kind: ComponentKind
    origin: ToolOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSource:
    """One unit file with what proves it."""

    file: str
    soak_ms: int
    probe: Probe | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSource:
    """Units that are stopped and started together, and steps run before them under the guard."""

    name: str
    platforms: tuple[str, ...]
    units: tuple[UnitSource, ...]
    guarded_steps: tuple[tuple[str, ...], ...]
    kind: ComponentKind = ComponentKind.SERVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedFileSource:
    """A file of this folder that capsule owns at `target` on the host."""

    source: str
    target: str
    owner: str
    group: str
    mode: int
    template: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSource:
    """Managed files."""

    name: str
    platforms: tuple[str, ...]
    files: tuple[ManagedFileSource, ...]
    kind: ComponentKind = ComponentKind.FILES


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySource:
    """What a person needs at a broken host: files and folders, taken as they are."""

    name: str
    platforms: tuple[str, ...]
    paths: tuple[str, ...]
    kind: ComponentKind = ComponentKind.RECOVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """A container image: either `layout`, a path, or `reference`, a name in a registry.

    `digest`, `sha256:<hex>` of a manifest or an index, fixes which one; None leaves it to the lock.
    """

    name: str
    platforms: tuple[str, ...]
    layout: str | None
    reference: str | None
    digest: str | None
    kind: ComponentKind = ComponentKind.IMAGE


ComponentSource = (
    GitSource
    | WheelsSource
    | ToolSource
    | ImageSource
    | ServiceSource
    | FilesSource
    | RecoverySource
)
