"""Read a Nix archive: the exact serialisation of one store path.

Every archive has one spelling: names strictly sorted, padding of zeros, nothing after the end.
Anything else is refused, also what versions of Nix accept, so that an archive and its entries stand
for each other. Content is not read here: an entry names a range of the archive.

Source: Nix manual, "Nix Archive (NAR) Format".
"""

import struct
from dataclasses import dataclass
from typing import BinaryIO, Final

from capsule_manifest.errors import Refused
from capsule_manifest.paths import PATH_BYTES_MAX, PATH_LEVELS_MAX, escape
from capsule_manifest.tree_entry import EntryKind

__all__ = ["NarEntry", "read_nar"]

_WORD_BYTES: Final = 8
_TOKEN_BYTES_MAX: Final = 16
_NAME_BYTES_MAX: Final = 255
_ENTRIES_MAX: Final = 1_000_000


def _words(*tokens: bytes) -> bytes:
    return b"".join(
        struct.pack("<Q", len(token)) + token + bytes(-len(token) % _WORD_BYTES) for token in tokens
    )


# Where the format leaves no choice its words are read at once: an entry has more than a dozen.
_MAGIC: Final = _words(b"nix-archive-1")
_BEGIN: Final = _words(b"(", b"type")
_BEGIN_NAME: Final = _words(b"(", b"name")
_BEGIN_NODE: Final = _words(b"node")
_END: Final = _words(b")")
_NO_VALUE: Final = _words(b"", b"contents")
_TARGET: Final = _words(b"target")
_TYPES: Final = (b"regular", b"symlink", b"directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class NarEntry:
    """One path of an archive; the path of its root is empty.

    A file has `size_bytes` at `offset` in the archive, a link has `target`.
    """

    path: str
    kind: EntryKind
    is_executable: bool = False
    offset: int = 0
    size_bytes: int = 0
    target: str | None = None


def read_nar(stream: BinaryIO, size_bytes: int, *, where: str) -> tuple[NarEntry, ...]:
    """Return the entries of an archive of `size_bytes`, folders before what is in them.

    `stream` can be sought and stands at the archive's begin. Names and targets are UTF-8; whether
    they are legal in a tree is for the tree to say, but no name stands for a folder itself or holds
    a slash.

    Raises:
        Refused: `nar-malformed`.
    """
    return _Reader(stream, size_bytes, where).archive()


class _Reader:
    def __init__(self, stream: BinaryIO, size_bytes: int, where: str) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._position = 0
        self._where = where
        self._entries: list[NarEntry] = []

    def archive(self) -> tuple[NarEntry, ...]:
        self._fixed(_MAGIC)
        self._node("", 0)
        if self._position != self._size_bytes:
            raise self._malformed("something follows the archive", "its end", "more bytes")
        return tuple(self._entries)

    def _node(self, path: str, level: int) -> None:
        if level > PATH_LEVELS_MAX:
            raise self._malformed("folders nest too deep", f"{PATH_LEVELS_MAX} levels", path)
        if len(self._entries) >= _ENTRIES_MAX:
            raise self._malformed("there are too many entries", f"{_ENTRIES_MAX}", "more")
        self._fixed(_BEGIN)
        match self._expect(*_TYPES):
            case b"regular":
                self._file(path)
            case b"symlink":
                self._fixed(_TARGET)
                target = self._text(PATH_BYTES_MAX - 1, "a link target")
                self._entries.append(NarEntry(path=path, kind=EntryKind.LINK, target=target))
                self._fixed(_END)
            case _:
                self._entries.append(NarEntry(path=path, kind=EntryKind.DIRECTORY))
                self._folder(path, level)

    def _file(self, path: str) -> None:
        is_executable = self._expect(b"executable", b"contents") == b"executable"
        if is_executable:
            # A marker, followed by a string that has always been empty.
            self._fixed(_NO_VALUE)
        size_bytes = self._number()
        offset = self._position
        self._skip(size_bytes)
        self._padding(size_bytes)
        self._entries.append(
            NarEntry(
                path=path,
                kind=EntryKind.FILE,
                is_executable=is_executable,
                offset=offset,
                size_bytes=size_bytes,
            )
        )
        self._fixed(_END)

    def _folder(self, path: str, level: int) -> None:
        previous = b""
        while self._expect(b"entry", b")") == b"entry":
            self._fixed(_BEGIN_NAME)
            raw = self._string(_NAME_BYTES_MAX, "a name")
            if raw in {b"", b".", b".."} or b"/" in raw or b"\0" in raw:
                raise self._malformed("a name is none", "one path segment", raw)
            # Strictly: an equal name would be a second entry for one path.
            if raw <= previous:
                raise self._malformed("names are not in order, each once", escape(previous), raw)
            previous = raw
            name = self._decoded(raw, "a name")
            self._fixed(_BEGIN_NODE)
            self._node(f"{path}/{name}" if path else name, level + 1)
            self._fixed(_END)

    def _fixed(self, words: bytes) -> None:
        found = self._read(len(words))
        if found != words:
            raise self._malformed("words of the format are wrong", _shown(words), _shown(found))

    def _expect(self, *tokens: bytes) -> bytes:
        found = self._string(_TOKEN_BYTES_MAX, "a word of the format")
        if found not in tokens:
            words = " or ".join(token.decode() or "nothing" for token in tokens)
            raise self._malformed("a word of the format is wrong", words, found)
        return found

    def _text(self, limit: int, what: str) -> str:
        raw = self._string(limit, what)
        if not raw or b"\0" in raw:
            raise self._malformed(f"{what} is empty or holds NUL", "text", raw)
        return self._decoded(raw, what)

    def _decoded(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._malformed(f"{what} is not UTF-8", "UTF-8", raw) from None

    def _string(self, limit: int, what: str) -> bytes:
        size_bytes = self._number()
        if size_bytes > limit:
            raise self._malformed(f"{what} is too long", f"at most {limit} bytes", size_bytes)
        raw = self._read(size_bytes)
        self._padding(size_bytes)
        return raw

    def _number(self) -> int:
        (number,) = struct.unpack("<Q", self._read(_WORD_BYTES))
        assert isinstance(number, int), "the format says so"
        return number

    def _padding(self, size_bytes: int) -> None:
        if size_bytes % _WORD_BYTES and self._read(-size_bytes % _WORD_BYTES).strip(b"\0"):
            raise self._malformed("padding is not of zeros", "zeros", "other bytes")

    def _read(self, size_bytes: int) -> bytes:
        raw = self._stream.read(size_bytes)
        if len(raw) != size_bytes or self._position + size_bytes > self._size_bytes:
            raise self._malformed("the archive is cut off", "more bytes", "its end")
        self._position += size_bytes
        return raw

    def _skip(self, size_bytes: int) -> None:
        # Seeking beyond the end succeeds, so the length is compared first.
        if size_bytes > self._size_bytes - self._position:
            raise self._malformed("the archive is cut off", f"{size_bytes} bytes", "its end")
        self._position += size_bytes
        self._stream.seek(size_bytes, 1)

    def _malformed(self, what: str, expected: str | bytes, got: str | bytes | int) -> Refused:
        return Refused(
            "nar-malformed", what,
            expected=escape(expected) if isinstance(expected, bytes) else expected,
            got=got if isinstance(got, int) else escape(got),
            where=f"{self._where}, byte {self._position}",
        )  # fmt: skip


def _shown(words: bytes) -> bytes:
    # Lengths and padding say nothing to a person.
    return b" ".join(words.replace(b"\0", b" ").split())
