"""The `runtime` component: the host program with everything it imports, for each platform.

The sources are those of the two packages that are installed beside this one; they are found
without importing the host program, which the controller never runs. The wheels are locked in
`runtime.lock`, which ships with this package: what installs a release is what was tested.

The tree holds `site/` (packages) and `VERSION`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from capsule import __version__
from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.target import Target
from capsule.builder.wheel_file import Wheel
from capsule.builder.wheel_install import external_of, install_wheels
from capsule.builder.wheels import Wanted, input_digest, parse_requirements
from capsule_manifest.errors import Failed
from capsule_manifest.release import ComponentKind
from capsule_manifest.tree_entry import EntryKind

__all__ = ["runtime_input", "runtime_name", "runtime_wanted"]

_LOCK: Final = "runtime.lock"
_PACKAGES: Final = ("capsule_installer", "capsule_manifest")


def runtime_name(platform: str) -> str:
    """Return the name of the runtime component for a platform."""
    return f"runtime-{platform}"


def runtime_wanted(target: Target) -> tuple[tuple[Wanted, ...], str]:
    """Return what the host program needs on the target, and the digest of the lock that says so.

    Raises:
        Refused: as `parse_requirements`.
    """
    raw = files("capsule.builder").joinpath(_LOCK).read_bytes()
    return parse_requirements(raw, target, where=_LOCK), input_digest(raw)


def runtime_input(target: Target, wheels: Sequence[Wheel]) -> ComponentInput:
    """Return the host program for the target.

    Raises:
        Refused: as `install_wheels`.
        Failed: `runtime-source-missing`.
    """
    library = f"lib/python{target.platform.python}/site-packages/"
    entries = [
        InputEntry(
            path=f"site/{entry.path.removeprefix(library)}",
            kind=entry.kind,
            mode=entry.mode,
            size_bytes=entry.size_bytes,
            open=entry.open,
            examined=entry.examined,
        )
        for entry in install_wheels(wheels, target)
        # The host program imports; it starts no launcher of a wheel.
        if entry.path.startswith(library)
    ]
    for package in _PACKAGES:
        entries += _package_entries(package)
    version = f"{__version__}\n".encode()
    entries.append(
        InputEntry(
            path="VERSION",
            kind=EntryKind.FILE,
            mode=0o644,
            size_bytes=len(version),
            open=partial(BytesIO, version),
        )
    )
    return ComponentInput(
        name=runtime_name(target.name),
        kind=ComponentKind.RUNTIME.value,
        platforms=(target.name,),
        entries=tuple(sorted(entries, key=lambda entry: entry.path)),
        external=tuple(external_of(wheel) for wheel in wheels),
    )


def _package_entries(package: str) -> Iterator[InputEntry]:
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise Failed(
            "runtime-source-missing", "the host program is not installed here", expected=package
        )
    folder = Path(folders[0])
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if "__pycache__" in relative.parts or not path.is_file():
            continue
        yield InputEntry(
            path=f"site/{package}/{relative.as_posix()}",
            kind=EntryKind.FILE,
            mode=0o755 if path.suffix == ".sh" else 0o644,
            size_bytes=path.stat().st_size,
            open=partial(_open, path),
        )


def _open(path: Path) -> BinaryIO:
    return path.open("rb")
