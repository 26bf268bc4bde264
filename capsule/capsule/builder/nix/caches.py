"""Where store paths come from without Nix: binary caches, as folders or over HTTP.

Nothing that a cache says is believed: what an archive is, its digest decides, and which digest a
path has, the lock or a signature.
"""

import hashlib
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

import zstandard

from capsule.builder.nix.narinfo import NARINFO_BYTES_MAX, NarInfo
from capsule_manifest.errors import Failed, Refused

__all__ = ["BinaryCache", "FolderCache", "HttpCache", "open_caches", "unpack_nar"]

_CHUNK_BYTES: Final = 1024 * 1024
_HASH_CHARACTERS: Final = 32
_XZ_MEMORY_BYTES_MAX: Final = 256 * 1024**2
_WINDOW_BYTES_MAX: Final = 2**27


class BinaryCache(Protocol):
    """Store paths by name. `address` is for messages."""

    @property
    def address(self) -> str:
        """Return how a person finds the cache."""

    def narinfo(self, name: str) -> bytes | None:
        """Return what the cache says of a store path, or None if it hasn't got it.

        Raises:
            Failed: `nix-path-unavailable` when it can't be asked.
        """

    def read(self, url: str) -> Iterator[bytes]:
        """Yield the archive at `url`, an address below the cache, as it is kept there.

        Raises:
            Failed: `nix-path-unavailable`.
        """


class FolderCache:
    """A cache as a folder, such as `nix copy --to file://…` writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def address(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def narinfo(self, name: str) -> bytes | None:
        """Return what the cache says. See `BinaryCache`."""
        path = self._folder / f"{name[:_HASH_CHARACTERS]}.narinfo"
        try:
            with path.open("rb") as stream:
                return stream.read(NARINFO_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable("a binary cache can't be read", error, str(path)) from error

    def read(self, url: str) -> Iterator[bytes]:
        """Yield an archive. See `BinaryCache`."""
        path = self._folder / url
        try:
            with path.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise _unavailable("an archive can't be read", error, str(path)) from error


class HttpCache:
    """A cache over HTTP. `get` yields the bytes of an answer, or returns None where there is none.

    It raises `Failed` when the cache can't be asked.
    """

    def __init__(self, base: str, get: Callable[[str], Iterator[bytes] | None]) -> None:
        self._base = base.rstrip("/")
        self._get = get

    @property
    def address(self) -> str:
        """Return the base address."""
        return self._base

    def narinfo(self, name: str) -> bytes | None:
        """Return what the cache says. See `BinaryCache`."""
        answer = self._get(f"{self._base}/{name[:_HASH_CHARACTERS]}.narinfo")
        if answer is None:
            return None
        raw = b""
        for chunk in answer:
            raw += chunk
            if len(raw) > NARINFO_BYTES_MAX:
                break
        return raw

    def read(self, url: str) -> Iterator[bytes]:
        """Yield an archive. See `BinaryCache`."""
        address = f"{self._base}/{quote(url)}"
        answer = self._get(address)
        if answer is None:
            raise _unavailable("an archive is not in the cache that names it", "nothing", address)
        yield from answer


def open_caches(
    text: str, get: Callable[[str], Iterator[bytes] | None]
) -> tuple[FolderCache | HttpCache, ...]:
    """Return the caches of a list of addresses, separated by spaces, in the order of asking.

    Raises:
        Refused: `nix-cache-invalid` for an address that is neither `file:///…` nor HTTP.
    """
    caches: list[FolderCache | HttpCache] = []
    for address in text.split():
        parts = urlsplit(address)
        if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
            caches.append(FolderCache(Path(unquote(parts.path))))
        elif parts.scheme in {"http", "https"} and parts.netloc:
            caches.append(HttpCache(address, get))
        else:
            raise Refused(
                "nix-cache-invalid", "the address of a binary cache is none",
                expected="file:///FOLDER, or https://cache.example.org/…", got=address,
                where="CAPSULE_NIX_CACHES",
            )  # fmt: skip
    return tuple(caches)


def unpack_nar(cache: BinaryCache, info: NarInfo, stream: BinaryIO) -> None:
    """Write the archive of a path, uncompressed, if it is what the cache has said.

    Never more than the stated size is written, whatever the compressed bytes say.

    Raises:
        Refused: `nix-nar-mismatch`.
        Failed: `nix-path-unavailable`.
    """
    digest = hashlib.sha256()
    size_bytes = 0
    where = f"{cache.address}: {info.name}"
    try:
        for chunk in _plain(cache.read(info.url), info):
            size_bytes += len(chunk)
            if size_bytes > info.nar_bytes:
                break
            digest.update(chunk)
            stream.write(chunk)
    except (lzma.LZMAError, zstandard.ZstdError, EOFError) as error:
        raise _mismatch(f"data compressed as {info.compression}", str(error), where) from error
    if size_bytes != info.nar_bytes:
        got = "more" if size_bytes > info.nar_bytes else f"{size_bytes}"
        raise _mismatch(f"{info.nar_bytes} bytes", got, where)
    if digest.hexdigest() != info.nar_sha256:
        raise _mismatch(f"sha256:{info.nar_sha256}", f"sha256:{digest.hexdigest()}", where)


def _plain(chunks: Iterator[bytes], info: NarInfo) -> Iterator[bytes]:
    match info.compression:
        case "xz":
            return _from_xz(chunks)
        case "zstd":
            return _from_zstd(chunks)
        case _:
            return chunks


def _from_xz(chunks: Iterator[bytes]) -> Iterator[bytes]:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES_MAX)
    for chunk in chunks:
        yield decoder.decompress(chunk, _CHUNK_BYTES)
        while not decoder.needs_input and not decoder.eof:
            yield decoder.decompress(b"", _CHUNK_BYTES)
        if decoder.unused_data:
            raise EOFError("something follows the compressed data")
    if not decoder.eof:
        raise EOFError("the compressed data is cut off")


def _from_zstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).stream_reader(
        cast("BinaryIO", _Chunks(chunks)), read_across_frames=True
    )
    while chunk := reader.read(_CHUNK_BYTES):
        yield chunk


class _Chunks:
    """Chunks as a stream, for the decoder that pulls: so that no bomb is held whole."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size_bytes: int) -> bytes:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._rest = chunk
        data, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        return data


def _mismatch(expected: str, got: str, where: str) -> Refused:
    return Refused(
        "nix-nar-mismatch", "an archive is not what its binary cache says",
        expected=expected, got=got, where=where,
    )  # fmt: skip


def _unavailable(what: str, got: object, where: str) -> Failed:
    return Failed("nix-path-unavailable", what, got=got, where=where, retryable=True)
