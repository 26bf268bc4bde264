"""Unpack the host program on a host that has nothing but Python. Runs as `python3 -I -S -c`.

Sent as text by `first_contact.py`; never imported by the controller. Standard library only, no
configuration, no network. Arguments: the host's root folder, the runtime's id, the SHA-256 and the
size of the stream on standard input. The stream is eight bytes length, an index as JSON, then the
files' contents in the order of the index.

Nothing is unpacked before the digest of the whole stream was found right. The folder appears under
its name only when everything in it is on the disk; a folder that is there already is compared and,
where it differs, replaced. Then the launcher is replaced in one step.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import stat
import string
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

__all__ = ["main"]

PYTHON_LEAST = (3, 11)
STREAM_BYTES_MAX = 320 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
LAUNCHER = "site/capsule_installer/bin_capsule.sh"
SAFE_CHARACTERS = frozenset(string.ascii_letters + string.digits + "/._+-")

EXIT_SPACE = 20
EXIT_INCOMPATIBLE = 21


class RefusedHere(Exception):
    """Say why nothing was changed: what, expected, got."""


def main(arguments: Sequence[str]) -> int:
    """Unpack, answer with one record, and return the exit code."""
    root, runtime, digest, size = arguments
    try:
        if sys.version_info < PYTHON_LEAST:
            raise RefusedHere("the interpreter is too old", "3.11 or newer", sys.version.split()[0])
        os.umask(0o022)
        opt = make_folders(check_root(root), "opt", "capsule")
        base = make_folders(opt, "runtime")
        with Locked(base):
            files = unpack(base, runtime, digest, int(size))
            put_launcher(make_folders(opt, "bin"), os.path.join(base, runtime))
    except RefusedHere as refusal:
        return answer_error("first-contact-refused", refusal.args, root, EXIT_INCOMPATIBLE)
    except OSError as error:
        said = ("the disk refused", "", error)
        return answer_error("first-contact-failed", said, root, EXIT_SPACE)
    answer({"record": "runtime", "runtime": runtime, "files": files})
    return 0


def answer(record: dict[str, object]) -> None:
    """Write one framed record."""
    sys.stdout.buffer.write(b"\x1e" + json.dumps(record).encode() + b"\n")
    sys.stdout.buffer.flush()


def answer_error(error: str, said: Sequence[object], root: str, exit_code: int) -> int:
    """Write an error record; return its exit code."""
    what, expected, got = (str(item) for item in said)
    record = {"what": what, "expected": expected, "got": got, "where": root}
    answer({"record": "error", "error": error, **record})
    return exit_code


def check_root(root: str) -> str:
    """Return the root without a slash at its end, if it is a folder that only we can change."""
    status = os.lstat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise RefusedHere("the root is no folder", "a folder, not a link", root)
    if status.st_uid != os.geteuid():
        raise RefusedHere("the root belongs to somebody else", os.geteuid(), status.st_uid)
    if status.st_mode & 0o002:
        raise RefusedHere("the root can be changed by everybody", "mode 0755", oct(status.st_mode))
    return root.rstrip("/")


def make_folders(folder: str, *names: str) -> str:
    """Create folders one by one, refusing links, and make their names durable."""
    for name in names:
        parent, folder = folder or "/", f"{folder}/{name}"
        try:
            os.mkdir(folder, 0o755)
            sync(parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                raise RefusedHere("a state folder is no folder", "a folder", folder) from None
    return folder


class Locked:
    """Hold a lock on a folder, so that two controllers don't unpack into each other."""

    def __init__(self, folder: str) -> None:
        self.descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> None:
        """Take the lock or refuse."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.descriptor)
            raise RefusedHere("another first contact is under way", "one", "two") from None

    def __exit__(self, *_: object) -> None:
        """Free the lock."""
        os.close(self.descriptor)


def unpack(base: str, runtime: str, digest: str, size: int) -> int:
    """Receive, check and unpack the stream; return how many entries there are."""
    if size > STREAM_BYTES_MAX or not (runtime.isascii() and runtime.isalnum()):
        raise RefusedHere("the arguments are out of range", f"{STREAM_BYTES_MAX} bytes", size)
    incoming = os.path.join(base, ".incoming")
    new = os.path.join(base, ".new")
    final = os.path.join(base, runtime)
    remove(incoming)  # left by one that was killed
    try:
        with open(incoming, "xb+") as stream:
            receive(stream, digest, size)
            stream.seek(0)
            entries = read_index(stream, runtime)
            if is_unpacked(final, entries, stream):
                return len(entries)
            remove(new)
            write_files(new, entries, stream)
        # Every byte before the name: after a power loss a folder of this name is whole.
        sync_filesystem(base)
        put_aside(base, final)
        os.rename(new, final)
        sync(base)
        return len(entries)
    finally:
        remove(incoming)
        remove(new)


def receive(stream: BinaryIO, digest: str, size: int) -> None:
    """Copy standard input to `stream` and check its size and digest."""
    hasher = hashlib.sha256()
    got = 0
    while chunk := sys.stdin.buffer.read(min(CHUNK_BYTES, size + 1 - got)):
        got += len(chunk)
        hasher.update(chunk)
        stream.write(chunk)
    if got != size:
        raise RefusedHere("the stream has a wrong length", size, got)
    if hasher.hexdigest() != digest:
        raise RefusedHere("the stream is not what was announced", digest, hasher.hexdigest())


def read_index(stream: BinaryIO, runtime: str) -> list[tuple[str, str, int, int]]:
    """Return the entries (kind, path, mode, size) after checking every one."""
    index = json.loads(stream.read(int.from_bytes(stream.read(8), "big")))
    if index["runtime"] != runtime:
        raise RefusedHere("the stream is another runtime", runtime, index["runtime"])
    entries = [tuple(entry) for entry in index["entries"]]
    for kind, path, mode, _ in entries:
        unsafe = {"", ".", ".."} & set(path.split("/"))
        if kind not in {"file", "directory"} or mode & ~0o777 or unsafe:
            raise RefusedHere("an entry can't be unpacked", "a plain relative path", path)
    return entries


def write_files(
    folder: str, entries: Sequence[tuple[str, str, int, int]], stream: BinaryIO
) -> None:
    """Write all entries below `folder`, which must not exist."""
    os.mkdir(folder, 0o755)
    for kind, path, mode, size in entries:
        target = os.path.join(folder, path)
        if kind == "directory":
            os.mkdir(target, mode)
            continue
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(target, flags, mode), "wb") as file:
            for chunk in chunks(stream, size):
                file.write(chunk)


def is_unpacked(
    folder: str, entries: Sequence[tuple[str, str, int, int]], stream: BinaryIO
) -> bool:
    """Say whether `folder` holds these files; leave `stream` where the contents begin."""
    start = stream.tell()
    try:
        return all(holds(folder, entry, stream) for entry in entries)
    finally:
        stream.seek(start)


def holds(folder: str, entry: tuple[str, str, int, int], stream: BinaryIO) -> bool:
    """Compare one entry with what is there; its content is next in the stream."""
    kind, path, _, size = entry
    target = os.path.join(folder, path)
    try:
        mode = os.lstat(target).st_mode
        if kind == "directory":
            return stat.S_ISDIR(mode)
        if not stat.S_ISREG(mode):
            return False
        with open(target, "rb") as file:
            same = all(file.read(len(chunk)) == chunk for chunk in chunks(stream, size))
            return same and not file.read(1)
    except FileNotFoundError:
        return False


def chunks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of `stream`."""
    while size:
        chunk = stream.read(min(CHUNK_BYTES, size))
        if not chunk:
            raise RefusedHere(
                "the stream is shorter than its index says", f"{size} more", "nothing"
            )
        size -= len(chunk)
        yield chunk


def put_aside(base: str, final: str) -> None:
    """Remove what is there and differs; what runs from it keeps its open files."""
    if os.path.lexists(final):
        aside = os.path.join(base, ".damaged")
        remove(aside)
        os.rename(final, aside)
        remove(aside)


def remove(path: str) -> None:
    """Remove a file or a folder with all in it, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def put_launcher(folder: str, runtime: str) -> None:
    """Replace the launcher by the one that this runtime brings."""
    # The launcher quotes these names, but a quote in one would end the quoting.
    python = sys.executable if set(sys.executable) <= SAFE_CHARACTERS else ""
    with open(os.path.join(runtime, LAUNCHER), "rb") as file:
        text = file.read().replace(b"@RUNTIME@", os.path.basename(runtime).encode())
    text = text.replace(b"@PYTHON@", python.encode())
    text = text.replace(b"@PYTHON@", sys.executable.encode())
    temporary = os.path.join(folder, ".capsule")
    remove(temporary)
    with open(temporary, "xb") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), 0o755)
        os.fsync(file.fileno())
    os.rename(temporary, os.path.join(folder, "capsule"))
    sync(folder)


def sync(folder: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(folder: str) -> None:
    """Make everything written so far durable: one call instead of one for each of 1,500 files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed", folder)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
