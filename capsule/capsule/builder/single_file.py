"""The single-file form of a capsule directory: the same members, trust first."""

from collections.abc import Iterator
from pathlib import Path

from capsule.builder.opened import OpenCapsule, open_capsule
from capsule.durable import publish_path
from capsule_manifest.container import member_order, write_container
from capsule_manifest.errors import Failed

__all__ = ["write_single_file"]


def write_single_file(folder: Path) -> Path:
    """Write `FOLDER.tar` beside the capsule directory FOLDER, at once and durably.

    Raises:
        Refused: `container-*`.
        Failed: `controller-disk`, `capsule-incomplete`.
    """
    source = open_capsule(folder)
    target = folder.with_name(folder.name + ".tar")
    temporary = folder.with_name(f".{folder.name}.tar.new")
    try:
        with temporary.open("wb") as file:
            for data in write_container(_members(source)):
                file.write(data)
        # A capsule that is carried away on a medium must not be an empty name.
        publish_path(temporary, target)
    except OSError as error:
        raise Failed("controller-disk", "a capsule can't be written", where=target) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _members(source: OpenCapsule) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    for name in sorted(source.members, key=member_order):
        yield name, source.size(name), source.chunks(name)
