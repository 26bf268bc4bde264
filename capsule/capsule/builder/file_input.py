"""Single files beside `release.toml` as entries of a component."""

import os
import stat
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from capsule.builder.model import InputEntry
from capsule_manifest.errors import Refused
from capsule_manifest.tree_entry import EntryKind

__all__ = ["file_entry", "read_text"]

_TEXT_BYTES_MAX: Final = 1024 * 1024


def file_entry(folder: Path, name: str, path: str, *, mode: int) -> InputEntry:
    """Return the regular file `name` of `folder` as the entry `path`.

    Raises:
        Refused: `input-missing` for anything but a regular file that can be read.
    """
    source = folder / name
    with _open(source) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
    return InputEntry(
        path=path,
        kind=EntryKind.FILE,
        mode=mode,
        size_bytes=size_bytes,
        open=partial(_open, source),
    )


def read_text(folder: Path, name: str) -> str:
    """Return a text file of `folder`, at most 1 MiB of UTF-8.

    Raises:
        Refused: `input-missing`.
    """
    with _open(folder / name) as stream:
        raw = stream.read(_TEXT_BYTES_MAX + 1)
    try:
        if len(raw) <= _TEXT_BYTES_MAX:
            return raw.decode()
    except UnicodeDecodeError:
        pass
    raise Refused("input-missing", "a file is not short UTF-8 text", where=folder / name)


def _open(path: Path) -> BinaryIO:
    try:
        # A link could lead out of the commit that the rest of the release is taken from.
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")
    except OSError as error:
        raise Refused("input-missing", "an input can't be read", where=path) from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise Refused(
            "input-missing", "an input is of the wrong kind", expected="a regular file", where=path
        )
    return stream
