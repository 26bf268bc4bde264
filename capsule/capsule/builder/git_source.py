"""Read the tree of a git commit, the same for everyone who has that commit.

The commit's own objects are read, not the files of the work tree, so neither line-end conversion
nor filters, umask or file order can change what is built. The work tree must still be clean: a
build from a tree that someone is editing is not a build of the commit that it names.

git runs with no configuration but the repository's own, and without hooks, filters, prompts, lazy
fetches and replacement objects.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import IO, BinaryIO, Final
from weakref import finalize

from capsule.builder.model import ComponentInput, External, InputEntry
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.paths import check_link, check_path, escape
from capsule_manifest.release import ComponentKind, Source
from capsule_manifest.tree_entry import EntryKind

__all__ = [
    "WorkTree",
    "clone_at",
    "committed_entries",
    "find_work_tree",
    "is_of_work_tree",
    "nearest_top",
    "open_work_tree",
    "source_input",
]

_TIMEOUT_S: Final = 120
_BLOB_BYTES_MAX: Final = 2 * 1024**3
_BLOB_IN_MEMORY_BYTES_MAX: Final = 16 * 1024**2
_LINK_BYTES_MAX: Final = 4096
_LFS_POINTER: Final = re.compile(rb"version https?://[^\n]*git-lfs[^\n]*/spec/v\d")
_LFS_POINTER_BYTES_MAX: Final = 1024
_MODES: Final = {
    b"100644": (EntryKind.FILE, 0o644),
    b"100664": (EntryKind.FILE, 0o644),
    b"100755": (EntryKind.FILE, 0o755),
    b"120000": (EntryKind.LINK, 0o777),
}
_GITLINK: Final = b"160000"
# Settings of the repository that would start a program or reach the network.
_OPTIONS: Final = (
    "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.quotePath=false",
    "-c", "submodule.recurse=false",
    "-c", "core.attributesFile=/dev/null",
    # Whoever builds and signs a folder has said that he trusts it. git's own list of trusted
    # folders is in the configuration that is left out here.
    "-c", "safe.directory=*",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTree:
    """A git work tree at one commit. `prefix` is where the asked folder lies in it."""

    top: Path
    prefix: str
    source: Source


def open_work_tree(folder: Path) -> WorkTree:
    """Return the commit that the work tree around `folder` is at, if nothing in it differs.

    The whole work tree must be clean, not `folder` alone: the release manifest names one commit.

    Raises:
        Refused: `source-not-git`, `source-dirty`.
        Failed: `source-git-failed`.
    """
    work_tree = find_work_tree(folder)
    _check_clean(work_tree.top)
    return work_tree


def find_work_tree(folder: Path) -> WorkTree:
    """Return the commit that the work tree around `folder` is at, whatever is changed since.

    Raises:
        Refused: `source-not-git`.
    """
    if not folder.is_dir():
        raise Refused("source-not-git", "a source is no folder", expected="a folder", where=folder)
    try:
        top = _git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n")
        prefix = _git(folder, "rev-parse", "--show-prefix").decode().rstrip("\n").rstrip("/")
        line = _git(folder, "log", "-1", "--no-show-signature", "--format=%H %T %ct", "HEAD")
    except Failed as error:
        raise Refused(
            "source-not-git",
            "a source is not in a git work tree with a commit",
            expected="a folder below a git work tree",
            where=folder,
        ) from error
    commit, tree, date_s = line.decode().split()
    return WorkTree(
        top=Path(top), prefix=prefix, source=Source(commit=commit, tree=tree, date_s=int(date_s))
    )


def is_of_work_tree(folder: Path, top: Path | None) -> bool:
    """Say whether a folder belongs to the work tree at `top`, and to none that lies inside it."""
    return nearest_top(folder) == top


def nearest_top(folder: Path) -> Path | None:
    """Return the work tree that a folder lies in, with or without a commit; None if in none."""
    place = folder.resolve()
    return next((path for path in (place, *place.parents) if (path / ".git").exists()), None)


def source_input(
    name: str, folder: Path, *, include: tuple[str, ...] = (), platforms: tuple[str, ...] = ()
) -> tuple[ComponentInput, Source]:
    """Return the files of `folder` as its commit has them, and that commit.

    `include` limits them to these files and folders, relative to `folder`; each must exist.

    Raises:
        Refused: `source-not-git`, `source-dirty`, `source-empty`, `source-entry-refused` (a
            submodule, an LFS pointer, a file with `export-subst`), `path-invalid`, `link-escapes`.
        Failed: `source-git-failed`.
    """
    work_tree = open_work_tree(folder)
    entries = tuple(_entries(work_tree, include))
    _check_included(entries, include, folder)
    _check_attributes(work_tree, [entry.path for entry in entries])
    commit = work_tree.source.commit
    algorithm = "sha1" if len(commit) == 40 else "sha256"
    component = ComponentInput(
        name=name,
        kind=ComponentKind.SOURCE.value,
        platforms=platforms,
        entries=entries,
        external=(External(type="git-commit", name=name, digest=f"{algorithm}:{commit}"),),
    )
    return component, work_tree.source


def committed_entries(
    work_tree: WorkTree, paths: Sequence[str]
) -> Mapping[str, tuple[InputEntry, ...]]:
    """Return what the commit has at each path and below it, with paths from the top of the tree.

    A path that the commit lacks, or that lies outside of the work tree, has no entries.

    Raises:
        Refused: `source-entry-refused`, `path-invalid`, `link-escapes`.
        Failed: `source-git-failed`.
    """
    if not paths:
        return {}
    entries = tuple(_entries(replace(work_tree, prefix=""), tuple(paths)))
    _check_attributes(replace(work_tree, prefix=""), [entry.path for entry in entries])
    return {path: tuple(item for item in entries if _is_below(item.path, path)) for path in paths}


def clone_at(work_tree: WorkTree, folder: Path) -> None:
    """Check the commit of a work tree out in a new folder, which has no file of the other's.

    Objects are read where they are, by their digests: nothing is copied, and a shallow clone or one
    of another owner will do.

    Raises:
        Failed: `source-git-failed`.
    """
    top = work_tree.top
    folder.mkdir(parents=True)
    kind = "sha1" if len(work_tree.source.commit) == 40 else "sha256"
    _git(folder, "init", "--quiet", "--template=", f"--object-format={kind}")
    (folder / ".git/objects/info").mkdir(parents=True, exist_ok=True)
    (folder / ".git/objects/info/alternates").write_text(f"{_git_path(top, 'objects')}\n")
    shallow = _git_path(top, "shallow")
    if shallow.exists():
        (folder / ".git/shallow").write_bytes(shallow.read_bytes())
    _git(folder, "checkout", "--quiet", "--detach", work_tree.source.commit)


def _git_path(top: Path, name: str) -> Path:
    """Return where git keeps something, also for a work tree that shares its repository."""
    found = _git(top, "rev-parse", "--git-path", name).decode().rstrip("\n")
    return (top / found).resolve()


def _check_clean(top: Path) -> None:
    status = _git(
        top,
        *_filters_off(top),
        "status",
        "--porcelain=v1",
        "-z",
        "--untracked-files=all",
        "--ignore-submodules=none",
    )
    changed = [line for line in status.split(b"\0") if line]
    if changed:
        raise Refused(
            "source-dirty",
            f"the work tree has {len(changed)} changes that no commit has",
            expected="a clean work tree, without untracked files",
            got=", ".join(escape(line) for line in changed[:5]) + (", …" if changed[5:] else ""),
            where=top,
        )


def _filters_off(top: Path) -> list[str]:
    """Return options that keep `git status` from starting the repository's own filters."""
    try:
        listed = _git(top, "config", "--includes", "--name-only", "--get-regexp", r"^filter\.")
    except Failed:
        # git's way to say that there is none.
        return []
    options = []
    for key in listed.decode(errors="replace").split():
        value = "false" if key.endswith(".required") else ""
        options += ["-c", f"{key}={value}"]
    return options


def _entries(work_tree: WorkTree, include: tuple[str, ...]) -> Iterator[InputEntry]:
    where = f"{work_tree.top} at {work_tree.source.commit[:12]}"
    start = f"{work_tree.prefix}/" if work_tree.prefix else ""
    listed = _git(work_tree.top, "ls-tree", "-r", "-z", "--full-tree", "-l", work_tree.source.tree)
    wanted: list[tuple[str, bytes, bytes, int]] = []
    for line in listed.split(b"\0"):
        if not line:
            continue
        head, _, raw_path = line.partition(b"\t")
        mode, _, blob, size = head.split()
        if not raw_path.startswith(start.encode()):
            continue
        path = raw_path[len(start.encode()) :].decode(errors="surrogateescape")
        if include and not any(_is_below(path, wish) for wish in include):
            continue
        check_path(path, where)
        if mode == _GITLINK:
            raise _refused_entry("a submodule has no content in this commit", path, where)
        wanted.append((path, mode, blob, int(size)))
    blobs = _Blobs(work_tree.top)
    for path, mode, blob, size_bytes in wanted:
        yield _entry(blobs, path, mode, blob, size_bytes, where)


def _entry(
    blobs: "_Blobs", path: str, mode: bytes, blob: bytes, size_bytes: int, where: str
) -> InputEntry:
    if mode not in _MODES:
        raise _refused_entry(f"an entry has mode {mode.decode()}", path, where)
    if size_bytes > _BLOB_BYTES_MAX:
        raise _refused_entry(f"a file has {size_bytes} bytes", path, where)
    kind, permissions = _MODES[mode]
    if kind is EntryKind.LINK:
        if size_bytes > _LINK_BYTES_MAX:
            raise _refused_entry("a link has a target that is too long", path, where)
        target = blobs.read(blob).decode(errors="surrogateescape")
        check_link(path, target, where)
        return InputEntry(path=path, kind=kind, mode=permissions, target=target)
    if size_bytes <= _LFS_POINTER_BYTES_MAX and _LFS_POINTER.match(blobs.read(blob)):
        raise _refused_entry("a file is a pointer to content outside git (LFS)", path, where)
    return InputEntry(
        path=path,
        kind=kind,
        mode=permissions,
        size_bytes=size_bytes,
        open=partial(blobs.open, blob, size_bytes),
    )


def _check_included(
    entries: tuple[InputEntry, ...], include: tuple[str, ...], folder: Path
) -> None:
    missing = [
        wish for wish in include if not any(_is_below(entry.path, wish) for entry in entries)
    ]
    if missing or not entries:
        raise Refused(
            "source-empty",
            "a source has no committed file",
            expected="a tracked file for every include",
            got=", ".join(missing) or "no file at all",
            where=folder,
        )


def _is_below(path: str, wish: str) -> bool:
    wish = wish.removeprefix("./").rstrip("/")
    return wish in {"", "."} or path == wish or path.startswith(f"{wish}/")


def _check_attributes(work_tree: WorkTree, paths: list[str]) -> None:
    """Refuse files whose committed bytes are not the bytes that people see.

    An export would rewrite one (`export-subst`), a checkout did rewrite the other (`filter`).
    """
    prefix = f"{work_tree.prefix}/" if work_tree.prefix else ""
    names = b"".join(f"{prefix}{path}".encode() + b"\0" for path in paths)
    raw = _git(work_tree.top, "check-attr", "--stdin", "-z", "export-subst", "filter", given=names)
    fields = raw.split(b"\0")
    for path, name, value in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
        if value not in {b"unspecified", b"unset"}:
            where = f"{work_tree.top} at {work_tree.source.commit[:12]}"
            what = f"a file has the attribute {name.decode()}"
            raise _refused_entry(what, path.decode(), where)


class _Blobs:
    """Blobs of one repository, through one `git cat-file --batch` that starts when first needed.

    It ends when the last entry that reads through it is gone.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def open(self, blob: bytes, size_bytes: int) -> BinaryIO:
        """Return a blob as a stream. A large one goes through a file, not through memory.

        Raises:
            Failed: `source-git-failed`.
        """
        if size_bytes <= _BLOB_IN_MEMORY_BYTES_MAX:
            return BytesIO(self.read(blob))
        stream = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
        try:
            _git(self._top, "cat-file", "blob", blob.decode(), output=stream)
            stream.seek(0)
        except BaseException:
            stream.close()
            raise
        return stream

    def read(self, blob: bytes) -> bytes:
        """Return a blob's bytes.

        Raises:
            Failed: `source-git-failed`.
        """
        with self._lock:
            process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(blob + b"\n")
            process.stdin.flush()
            head = process.stdout.readline().split()
            if len(head) != 3:
                raise _failed("git has no such blob", self._top, blob.decode())
            size_bytes = int(head[2])
            content = process.stdout.read(size_bytes + 1)
            if len(content) != size_bytes + 1:
                raise _failed("git ended in the middle of a blob", self._top, blob.decode())
            return content[:-1]

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            ["git", *_OPTIONS, "cat-file", "--batch"],
            cwd=self._top,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._process = process
        finalize(self, process.communicate)
        return process


def _git(
    folder: Path, *arguments: str, given: bytes = b"", output: IO[bytes] | None = None
) -> bytes:
    """Run git and return what it prints, or write that to `output` and return nothing."""
    try:
        done = subprocess.run(
            ["git", *_OPTIONS, *arguments],
            cwd=folder,
            env=_environment(),
            input=given,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise _failed("git is not installed", folder, "no program git") from error
    except subprocess.TimeoutExpired as error:
        raise _failed(
            f"git took longer than {_TIMEOUT_S} s", folder, " ".join(arguments)
        ) from error
    if done.returncode:
        raise _failed("git failed", folder, done.stderr.decode(errors="replace"))
    return done.stdout or b""


def _environment() -> dict[str, str]:
    """Return all that git may know: where programs are, and to ask nobody anything."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        # Reading must not rewrite the index of a tree that someone works in.
        "GIT_OPTIONAL_LOCKS": "0",
    }


def _refused_entry(what: str, path: str, where: str) -> Refused:
    return Refused("source-entry-refused", what, got=escape(path), where=where)


def _failed(what: str, folder: Path, got: str) -> Failed:
    return Failed("source-git-failed", what, got=got.strip(), where=folder)
