"""Read a zip file in the only way it can be read; refuse one that readers could see differently.

A zip names its members twice: in a header before each member and in the central directory. Readers
differ in which they believe, in what they do with names that occur twice, and with bytes that
belong to no member. Here both must agree, members must cover the file without gap or overlap, and
every name is a legal path. Nothing is ever written: a member is a stream, checked while it is read.

Source: APPNOTE.TXT 6.3.10; bounds are of this project.
"""

import io
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from capsule.builder.zip_stream import (
    DEFLATED,
    STORED,
    WHOLE_BYTES_MAX,
    MemberReader,
    MemberStream,
    ZipMember,
    read_member,
)
from capsule_manifest.errors import Refused
from capsule_manifest.paths import check_path, escape

__all__ = ["DEFAULT_ZIP_LIMITS", "OpenZip", "ZipLimits", "ZipMember", "ZipView"]

_END: Final = struct.Struct("<4s4H2IH")
_END64_LOCATOR: Final = struct.Struct("<4sIQI")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_LOCAL: Final = struct.Struct("<4s5H3I2H")
_FULL16: Final = 0xFFFF
_FULL32: Final = 0xFFFFFFFF
_HAS_DESCRIPTOR: Final = 0x0008
_IS_UTF8: Final = 0x0800
# Bits 1 and 2 say how hard the writer compressed.
_FLAGS_KNOWN: Final = 0x0006 | _HAS_DESCRIPTOR | _IS_UTF8
_EXTRA_ZIP64: Final = 0x0001
_EXTRA_OTHER_NAME: Final = 0x7075
_MADE_ON_UNIX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipLimits:
    """Bounds that are checked before a member is decompressed. Sizes are of content."""

    members_max: int = 200_000
    member_bytes_max: int = 4 * 1024**3
    content_bytes_max: int = 8 * 1024**3
    # Deflate can't exceed about 1032; real programs and data stay far below this.
    ratio_max: int = 250
    # A few small members may compress as well as they like.
    ratio_free_bytes: int = 64 * 1024**2
    directory_bytes_max: int = 64 * 1024**2


DEFAULT_ZIP_LIMITS: Final = ZipLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Central:
    raw_name: bytes
    name: str
    flags: int
    method: int
    crc: int
    stored_bytes: int
    size_bytes: int
    mode: int
    offset: int
    is_folder: bool


class ZipView:
    """The files of one archive by name, in the order of the central directory."""

    def __init__(
        self,
        path: Path,
        *,
        limits: ZipLimits = DEFAULT_ZIP_LIMITS,
        known: Mapping[str, ZipMember] | None = None,
    ) -> None:
        """Read and check all headers of the file at `path`; `known` is what that once gave.

        Raises:
            Refused: `zip-refused`, `path-invalid`.
        """
        self.members: Mapping[str, ZipMember]
        self._path = path
        self._where = path.name
        self._limits = limits
        if known is not None:
            self.members = known
            return
        with path.open("rb") as stream:
            central, central_offset = self._read_central(stream)
            self.members = self._read_members(stream, central, central_offset)

    def open(self, name: str) -> BinaryIO:
        """Return a member's content as a stream that ends with an error if it is not as listed.

        Raises:
            Refused: `zip-refused`, while reading or before: size, checksum or compressed data are
                wrong.
        """
        member = self.members[name]
        if member.is_short:
            with self._path.open("rb", buffering=0) as file:
                return io.BytesIO(read_member(file, member, self._where))
        stream = self._path.open("rb", buffering=0)
        raw = MemberStream(stream, member, self._where)
        return io.BufferedReader(raw, WHOLE_BYTES_MAX)

    @contextmanager
    def opened(self) -> Iterator["OpenZip"]:
        """Keep the file open for many members, by one thread."""
        with self._path.open("rb", buffering=0) as file:
            yield OpenZip(file, self.members, self._where)

    def read(self, name: str, size_bytes_max: int) -> bytes:
        """Return a small member whole.

        Raises:
            Refused: `zip-refused`.
        """
        size_bytes = self.members[name].size_bytes
        if size_bytes > size_bytes_max:
            raise self._refused(
                f"{escape(name)} is too large", f"{size_bytes_max} bytes", size_bytes
            )
        with self.open(name) as stream:
            return stream.read()

    def _read_central(self, stream: BinaryIO) -> tuple[list[_Central], int]:
        size, offset, count = self._read_end(stream)
        limits = self._limits
        if size > limits.directory_bytes_max or count > limits.members_max:
            raise self._refused("the directory is too large", limits.members_max, count)
        stream.seek(offset)
        raw = stream.read(size)
        entries: list[_Central] = []
        position = 0
        while position < len(raw):
            entry, position = self._read_central_entry(raw, position)
            entries.append(entry)
        if len(entries) != count or len(raw) != size:
            raise self._refused("the directory has another length", count, len(entries))
        self._check_names(entries)
        self._check_sizes(entries)
        return entries, offset

    def _read_end(self, stream: BinaryIO) -> tuple[int, int, int]:
        """Return size, offset and count of the central directory."""
        end = stream.seek(0, io.SEEK_END)
        at = end - _END.size
        if at < 0:
            raise self._refused("the file is too short for a zip", _END.size, end)
        stream.seek(at)
        (magic, disk, first_disk, count_here, count, size, offset, comment) = _END.unpack(
            stream.read(_END.size)
        )
        # A comment could hold a second end record, which other readers would prefer.
        if magic != b"PK\5\6" or comment:
            raise self._refused(
                "the file does not end with an end record", "no bytes after", "some"
            )
        if _FULL16 in {count_here, count, disk, first_disk} or _FULL32 in {size, offset}:
            at -= _END64_LOCATOR.size + _END64.size
            if at < 0:
                raise self._refused("the 64-bit end record is missing", "one", "none")
            stream.seek(at)
            record = _END64.unpack(stream.read(_END64.size))
            locator = _END64_LOCATOR.unpack(stream.read(_END64_LOCATOR.size))
            disk, first_disk, count_here, count, size, offset = record[4:10]
            if record[:2] != (b"PK\6\6", _END64.size - 12) or locator != (b"PK\6\7", 0, at, 1):
                raise self._refused("the 64-bit end record is not where it must be", at, "other")
        if disk or first_disk or count_here != count:
            raise self._refused("the archive spans several files", 1, max(disk, first_disk) + 1)
        if offset + size != at:
            raise self._refused("the directory does not end at the end record", at, offset + size)
        return size, offset, count

    def _read_central_entry(self, raw: bytes, position: int) -> tuple[_Central, int]:
        if len(raw) - position < _CENTRAL.size:
            raise self._refused("a directory entry is cut off", _CENTRAL.size, len(raw) - position)
        (
            magic, made_by, _, flags, method, _, _, crc, stored, size,
            name_length, extra_length, comment_length, disk, _, attributes, offset,
        ) = _CENTRAL.unpack_from(raw, position)  # fmt: skip
        start = position + _CENTRAL.size
        end = start + name_length + extra_length + comment_length
        if magic != b"PK\1\2" or end > len(raw):
            raise self._refused("a directory entry is malformed", "PK\\1\\2", magic)
        raw_name = raw[start : start + name_length]
        name, is_folder = self._read_name(raw_name, flags)
        extra = raw[start + name_length : start + name_length + extra_length]
        size, stored, offset, disk = self._read_extra(extra, name, [size, stored, offset, disk])
        if disk or flags & ~_FLAGS_KNOWN or method not in {STORED, DEFLATED}:
            raise self._refused(
                f"{escape(name)} is stored in a way that not every reader knows",
                "stored or deflated, not encrypted",
                f"method {method}, flags {flags:#06x}",
            )
        if (method == STORED and size != stored) or (is_folder and size):
            raise self._refused(f"{escape(name)} has two sizes", stored, size)
        mode = attributes >> 16 if made_by >> 8 == _MADE_ON_UNIX else 0
        if stat.S_IFMT(mode) not in {0, stat.S_IFDIR if is_folder else stat.S_IFREG}:
            raise self._refused(
                f"{escape(name)} is a link or a special file", "a plain file", stat.filemode(mode)
            )
        entry = _Central(
            raw_name=raw_name, name=name, flags=flags, method=method, crc=crc, stored_bytes=stored,
            size_bytes=size, mode=mode, offset=offset, is_folder=is_folder,
        )  # fmt: skip
        return entry, end

    def _read_name(self, raw_name: bytes, flags: int) -> tuple[str, bool]:
        try:
            # Without the flag the encoding is whatever the writer's machine used.
            name = raw_name.decode("utf-8" if flags & _IS_UTF8 else "ascii")
        except UnicodeDecodeError:
            raise self._refused(
                "a name is not marked as UTF-8", "UTF-8", escape(raw_name)
            ) from None
        if "\\" in name:
            raise self._refused("a name holds a backslash", "slashes", escape(name))
        is_folder = name.endswith("/")
        path = name.removesuffix("/")
        check_path(path, self._where)
        return path, is_folder

    def _read_extra(self, extra: bytes, name: str, values: list[int]) -> list[int]:
        """Return `values` with those that say "see the 64-bit field" taken from it."""
        position = 0
        seen64 = False
        while position < len(extra):
            if len(extra) - position < 4:
                raise self._refused(f"{escape(name)} has a malformed extra field", 4, "less")
            field_id, length = struct.unpack_from("<2H", extra, position)
            content = extra[position + 4 : position + 4 + length]
            position += 4 + length
            if len(content) != length or field_id == _EXTRA_OTHER_NAME:
                raise self._refused(
                    f"{escape(name)} has a malformed extra field or a second name",
                    f"{length} bytes",
                    f"field {field_id:#06x}",
                )
            if field_id == _EXTRA_ZIP64:
                if seen64:
                    raise self._refused(f"{escape(name)} has two 64-bit fields", 1, 2)
                seen64 = True
                values = self._read_extra64(content, name, values)
        return values

    def _read_extra64(self, content: bytes, name: str, values: list[int]) -> list[int]:
        position = 0
        result = []
        for index, value in enumerate(values):
            is_disk = index == 3
            if value != (_FULL16 if is_disk else _FULL32):
                result.append(value)
                continue
            length = 4 if is_disk else 8
            if len(content) - position < length:
                raise self._refused(f"{escape(name)} has a short 64-bit field", length, "less")
            result.append(int.from_bytes(content[position : position + length], "little"))
            position += length
        return result

    def _check_names(self, entries: list[_Central]) -> None:
        kinds: dict[str, bool] = {}
        for entry in entries:
            if entry.name in kinds:
                raise self._refused("a name is listed twice", "each once", escape(entry.name))
            kinds[entry.name] = entry.is_folder
        seen: set[str] = set()
        for name in kinds:
            parent = name.rpartition("/")[0]
            while parent and parent not in seen:
                if kinds.get(parent) is False:
                    raise self._refused("a file is used as a folder", "a folder", escape(parent))
                seen.add(parent)
                parent = parent.rpartition("/")[0]

    def _check_sizes(self, entries: list[_Central]) -> None:
        limits = self._limits
        content = sum(entry.size_bytes for entry in entries)
        stored = sum(entry.stored_bytes for entry in entries)
        largest = max((entry.size_bytes for entry in entries), default=0)
        if largest > limits.member_bytes_max or content > limits.content_bytes_max:
            raise self._refused("the content is too large", limits.content_bytes_max, content)
        if content > limits.ratio_free_bytes and content > stored * limits.ratio_max:
            raise self._refused(
                "the content is much larger than the archive",
                f"at most {limits.ratio_max} times",
                f"{content} bytes from {stored}",
            )

    def _read_members(
        self, stream: BinaryIO, central: list[_Central], central_offset: int
    ) -> Mapping[str, ZipMember]:
        position = 0
        offsets: dict[str, int] = {}
        for entry in sorted(central, key=lambda entry: entry.offset):
            if entry.offset != position:
                raise self._refused(
                    f"bytes belong to no member or to two, before {escape(entry.name)}",
                    position,
                    entry.offset,
                )
            offsets[entry.name] = self._read_local(stream, entry)
            position = offsets[entry.name] + entry.stored_bytes
            if entry.flags & _HAS_DESCRIPTOR:
                position += self._read_descriptor(stream, entry, position)
        if position != central_offset:
            raise self._refused("bytes belong to no member", central_offset, position)
        members = {
            entry.name: ZipMember(
                name=entry.name,
                size_bytes=entry.size_bytes,
                is_executable=bool(entry.mode & 0o111),
                crc=entry.crc,
                method=entry.method,
                stored_bytes=entry.stored_bytes,
                data_offset=offsets[entry.name],
            )
            for entry in central
            if not entry.is_folder
        }
        return MappingProxyType(members)

    def _read_local(self, stream: BinaryIO, entry: _Central) -> int:
        """Check the header before a member against the directory; return where its data starts."""
        stream.seek(entry.offset)
        raw = stream.read(_LOCAL.size)
        if len(raw) != _LOCAL.size:
            raise self._refused(f"{escape(entry.name)} is cut off", _LOCAL.size, len(raw))
        (
            magic, _, flags, method, _, _, crc, stored, size, name_length, extra_length,
        ) = _LOCAL.unpack(raw)  # fmt: skip
        raw_name = stream.read(name_length)
        extra = stream.read(extra_length)
        # The local field has no offset and no disk.
        size, stored, _, _ = self._read_extra(extra, entry.name, [size, stored, 0, 0])
        here = (magic, flags, method, raw_name, crc, stored, size)
        listed = (
            b"PK\3\4", entry.flags, entry.method, entry.raw_name,
            entry.crc, entry.stored_bytes, entry.size_bytes,
        )  # fmt: skip
        unset = (*listed[:4], 0, 0, 0)
        if here != listed and not (flags & _HAS_DESCRIPTOR and here == unset):
            raise self._refused(
                f"{escape(entry.name)} differs between its header and the directory", listed, here
            )
        return stream.tell()

    def _read_descriptor(self, stream: BinaryIO, entry: _Central, position: int) -> int:
        """Return the length of the descriptor at `position`, which must repeat the directory."""
        stream.seek(position)
        raw = stream.read(24)
        values = (entry.crc, entry.stored_bytes, entry.size_bytes)
        forms = [struct.pack("<IQQ", *values)]
        if max(values) <= _FULL32:
            forms.insert(0, struct.pack("<III", *values))
        for form in forms:
            for candidate in (b"PK\7\x08" + form, form):
                if raw.startswith(candidate):
                    return len(candidate)
        raise self._refused(f"{escape(entry.name)} has a wrong descriptor", values, "other values")

    def _refused(self, what: str, expected: object, got: object) -> Refused:
        return Refused("zip-refused", what, expected=expected, got=got, where=self._where)


class OpenZip:
    """The members of one open archive."""

    def __init__(self, file: BinaryIO, members: Mapping[str, ZipMember], where: str) -> None:
        self._file = file
        self._members = members
        self._where = where

    def read_short(self, name: str) -> bytes | None:
        """Return a short member whole, or None if it is longer than `WHOLE_BYTES_MAX`.

        Raises:
            Refused: `zip-refused`.
        """
        member = self._members[name]
        return read_member(self._file, member, self._where) if member.is_short else None

    def chunks(self, name: str, size_bytes: int) -> Iterator[bytes]:
        """Yield a member in chunks of one size, but the last.

        Raises:
            Refused: `zip-refused`.
        """
        return MemberReader(self._file, self._members[name], self._where).chunks(size_bytes)
