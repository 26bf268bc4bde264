"""The single-file form of a capsule: a deterministic ustar of plain files, read strictly.

Member order is fixed: what decides trust comes before the first payload byte. Names are short ASCII
and every header field but name and size is constant, so a header is legal only if it is, byte by
byte, what `member_header` writes for that name and size. Links, modes, owners and odd names of the
installed files live in signed trees, never here.

    reader = ContainerReader()
    for chunk in chunks:
        for event in reader.feed(chunk):
            ...
    reader.close()
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = [
    "ContainerEvent",
    "ContainerReader",
    "End",
    "MemberData",
    "MemberEnd",
    "MemberStart",
    "check_member_name",
    "member_header",
    "member_order",
    "write_container",
]

_BLOCK = 512
_NAME_BYTES_MAX = 100
_NAME_END = 100
_SIZE_START, _SIZE_END = 124, 136
_CHECKSUM_START, _CHECKSUM_END = 148, 156
_TRAILER = bytes(2 * _BLOCK)
_KIB, _MIB = 1024, 1024 * 1024
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_OCTAL_SIZE = re.compile(rb"[0-7]{11}\0")


@dataclass(frozen=True, slots=True)
class _Place:
    """Bound the members of one folder, or the one file at the top."""

    name: str
    size_bytes_max: int
    members_max: int = 1
    is_folder: bool = True


# In container order. Trust is decided with the first two, the transfer is planned with the third.
_PLACES: Final = (
    _Place("capsule.json", 8 * _MIB, is_folder=False),
    _Place("signatures", 256 * _KIB, 256),
    _Place("packing.json", 64 * _MIB, is_folder=False),
    _Place("sbom", 64 * _MIB, 64),
    _Place("provenance", 64 * _MIB, 64),
    _Place("bootstrap", 320 * _MIB, 64),
    _Place("trees", 256 * _MIB, 10_000),
    _Place("packs", 256 * _MIB, 100_000),
    _Place("deltas", 256 * _MIB, 100_000),
)
_RANKS: Final = {place.name: rank for rank, place in enumerate(_PLACES)}
_REQUIRED: Final = ("capsule.json", "packing.json")


# Positional, so that `match` can take them apart.
@dataclass(frozen=True, slots=True)
class MemberStart:
    """A member's header was read and is legal."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class MemberData:
    """The next bytes of the member, never empty."""

    data: bytes


@dataclass(frozen=True, slots=True)
class MemberEnd:
    """All bytes of the member came."""

    name: str


@dataclass(frozen=True, slots=True)
class End:
    """The container is complete; no byte may follow."""


ContainerEvent: TypeAlias = MemberStart | MemberData | MemberEnd | End


def check_member_name(name: str) -> None:
    """Refuse a name that no member of a capsule has, in the single-file and the folder form.

    Raises:
        Refused: `container-member-refused`.
    """
    _place(name)


def member_order(name: str) -> tuple[int, str]:
    """Return the sort key that puts member names into container order.

    Raises:
        Refused: `container-member-refused`.
    """
    return _RANKS[_place(name).name], name


def member_header(name: str, size: int) -> bytes:
    """Return the 512 header bytes of a member.

    Raises:
        Refused: `container-member-refused` for a name or size that a capsule can't have.

    Source: POSIX.1-2017, pax, "ustar Interchange Format".
    """
    place = _place(name)
    if not 0 <= size <= place.size_bytes_max:
        raise Refused(
            "container-member-refused",
            "a member has a size out of range",
            expected=f"0 to {place.size_bytes_max} bytes",
            got=size,
            where=name,
        )
    header = b"".join(
        [
            name.encode("ascii").ljust(_NAME_END, b"\0"),
            b"0000644\0",  # mode
            b"0000000\0" * 2,  # owner and group
            b"%011o\0" % size,
            b"00000000000\0",  # time
            b" " * 8,  # the checksum counts itself as spaces
            b"0",  # a plain file
            bytes(100),  # no link target
            b"ustar\x0000",
            bytes(64),  # no names of owner and group
            b"0000000\0" * 2,  # no device
            bytes(155 + 12),  # no name prefix, padding
        ]
    )
    checksum = b"%06o\0 " % sum(header)
    return header[:_CHECKSUM_START] + checksum + header[_CHECKSUM_END:]


def write_container(members: Iterable[tuple[str, int, Iterable[bytes]]]) -> Iterator[bytes]:
    """Yield the bytes of a container from (name, size, chunks) in container order.

    Raises:
        Refused: `container-member-refused` for a name, size, count or order that no reader takes,
            `container-malformed` if the chunks of a member don't add up to its size.
    """
    sequence = _Sequence()
    for name, size_bytes, chunks in members:
        yield member_header(name, size_bytes)
        sequence.add(name)
        written = 0
        for chunk in chunks:
            written += len(chunk)
            yield chunk
        if written != size_bytes:
            raise _malformed("a member changed while it was written", size_bytes, written, name)
        yield bytes(-size_bytes % _BLOCK)
    sequence.end()
    yield _TRAILER


class ContainerReader:
    """Read a container in pieces of any size, and refuse what `write_container` would not write.

    Holds at most one block besides the piece that is fed. After a refusal it stays refused.
    """

    def __init__(self) -> None:
        self._sequence = _Sequence()
        self._block = bytearray()  # a header, a padding or the trailer that is not complete yet
        self._name: str | None = None
        self._remaining = 0
        self._padding = 0
        self._trailing = False
        self._ended = False
        self._refusal: Refused | None = None

    def feed(self, data: bytes | memoryview) -> list[ContainerEvent]:
        """Take the next bytes and return what they complete.

        Raises:
            Refused: `container-malformed`, `container-member-refused`.
        """
        if self._refusal is not None:
            raise self._refusal
        events: list[ContainerEvent] = []
        rest = memoryview(data)
        try:
            while rest:
                rest = self._step(rest, events)
        except Refused as refusal:
            self._refusal = refusal
            raise
        return events

    def close(self) -> None:
        """Say that no more bytes come.

        Raises:
            Refused: `container-truncated`.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self._ended:
            raise Refused(
                "container-truncated",
                "a container ends too early",
                expected="all members and two blocks of zeros",
                got=f"the end inside of {self._name}" if self._name else "the end",
                where="container",
            )

    def _step(self, rest: memoryview, events: list[ContainerEvent]) -> memoryview:
        if self._ended:
            raise _malformed("bytes follow the end", "nothing", f"{len(rest)} bytes", "container")
        if self._remaining:
            data = bytes(rest[: self._remaining])
            self._remaining -= len(data)
            events.append(MemberData(data))
            if not self._remaining:
                self._finish_content(events)
            return rest[len(data) :]
        wanted = self._padding or _BLOCK
        taken = min(wanted - len(self._block), len(rest))
        self._block += rest[:taken]
        if len(self._block) == wanted:
            block = bytes(self._block)
            self._block.clear()
            self._take_block(block, events)
        return rest[taken:]

    def _take_block(self, block: bytes, events: list[ContainerEvent]) -> None:
        if self._padding:
            if any(block):
                raise _malformed("padding is not zero", "zeros", "other bytes", str(self._name))
            self._padding = 0
            self._end_member(events)
        elif self._trailing:
            if any(block):
                raise _malformed("the end is not two blocks of zeros", "zeros", "other", "end")
            self._ended = True
            events.append(End())
        elif not any(block):
            self._sequence.end()
            self._trailing = True
        else:
            self._start_member(block, events)

    def _start_member(self, block: bytes, events: list[ContainerEvent]) -> None:
        name = block[:_NAME_END].rstrip(b"\0").decode("ascii", errors="replace")
        size = block[_SIZE_START:_SIZE_END]
        if not _OCTAL_SIZE.fullmatch(size):
            raise _malformed("a size is not in octal form", "11 digits", escape(size), escape(name))
        size_bytes = int(size[:-1], 8)
        if member_header(name, size_bytes) != block:
            raise _malformed(
                "a member's header is not the one form that capsule writes",
                "a plain file with constant fields",
                "other bytes",
                escape(name),
            )
        self._sequence.add(name)
        self._name = name
        self._remaining = size_bytes
        self._padding = -size_bytes % _BLOCK
        events.append(MemberStart(name, size_bytes))
        if not size_bytes:
            self._end_member(events)

    def _finish_content(self, events: list[ContainerEvent]) -> None:
        if not self._padding:
            self._end_member(events)

    def _end_member(self, events: list[ContainerEvent]) -> None:
        assert self._name is not None
        events.append(MemberEnd(self._name))
        self._name = None


class _Sequence:
    """Check the order and the number of members; one rule for writer and reader."""

    def __init__(self) -> None:
        self._last = (-1, "")
        self._counts = dict.fromkeys(_RANKS, 0)

    def add(self, name: str) -> None:
        key = member_order(name)
        if self._last == (-1, "") and name != _REQUIRED[0]:
            raise _refused("a container begins with another member", _REQUIRED[0], name)
        if key <= self._last:
            raise _refused("a member is repeated or out of order", f"after {self._last[1]}", name)
        self._last = key
        place = _PLACES[key[0]]
        self._counts[place.name] += 1
        if self._counts[place.name] > place.members_max:
            raise _refused("a folder has too many members", f"at most {place.members_max}", name)

    def end(self) -> None:
        for name in _REQUIRED:
            if not self._counts[name]:
                raise _refused("a container lacks a member", name, "the end")


def _place(name: str) -> _Place:
    top, slash, rest = name.partition("/")
    rank = _RANKS.get(top)
    if rank is not None and len(name) <= _NAME_BYTES_MAX:
        place = _PLACES[rank]
        if place.is_folder and _FILE_NAME.fullmatch(rest):
            return place
        if not place.is_folder and not slash:
            return place
    raise _refused(
        "a capsule has no such member",
        "capsule.json, packing.json, or FOLDER/NAME with a name of a-z 0-9 . _ - in one of "
        + ", ".join(place.name for place in _PLACES if place.is_folder),
        name,
    )


def _refused(what: str, expected: object, got: str) -> Refused:
    return Refused(
        "container-member-refused", what, expected=expected, got=escape(got), where="container"
    )


def _malformed(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("container-malformed", what, expected=expected, got=got, where=where)
