"""Make a wheels tree a virtual environment at its final path, with bytecode and without pip.

Three things are missing in the tree because they belong to the host: `pyvenv.cfg`, the link to the
interpreter, and bytecode. Bytecode is compiled as `unchecked-hash`: Python then never compares it
with its source nor writes it again, so nothing changes in a generation once it is sealed; its
digests are sealed with it.

Source: PEP 405; PEP 552; ADR 0082.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from capsule_installer.staging.store import hash_file
from capsule_installer.system.disk import Disk, FileKind
from capsule_installer.system.fsops import remove_tree
from capsule_installer.system.processes import Processes
from capsule_manifest.errors import Failed
from capsule_manifest.tree import Entry, EntryKind, Tree, build_tree

__all__ = ["Python", "RealPython", "bytecode_tree", "make_venv", "venv_links", "venv_settings"]

_COMPILE_LIMIT_MS: Final = 900_000
_REHEARSE_LIMIT_MS: Final = 120_000
_LEVELS_MAX: Final = "64"
# An accelerator may insist on being imported by the package that it is for. So what failed is tried
# once more after the packages of those distributions that require its own.
_IMPORTS: Final = """\
import importlib, importlib.metadata as metadata, json, re, sys

def attempt(names):
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed

def spelled(name):
    return re.sub(r"[-_.]+", "-", name).lower()

def askers(names):
    owners = metadata.packages_distributions()
    own = {spelled(owner) for name in names for owner in owners.get(name.partition(".")[0], ())}
    asking = {
        spelled(item.metadata["Name"] or "")
        for item in metadata.distributions()
        for line in item.requires or ()
        if spelled(re.match(r"[A-Za-z0-9._-]*", line)[0]) in own
    }
    return [top for top, found in owners.items() if asking & {spelled(one) for one in found}]

failed = attempt(sys.argv[1:])
if failed:
    attempt(askers(failed))
    failed = attempt(failed)
print("\\x1e" + json.dumps(failed))
"""


class Python(Protocol):
    """What staging asks of the platform's interpreter."""

    def compile(self, folder: str, interpreter: str) -> None:
        """Write bytecode beside every source below `folder`; what is no Python is left alone.

        Raises:
            Failed: `process-*`.
        """
        ...

    def imports(self, interpreter: str, modules: Sequence[str]) -> dict[str, str]:
        """Import modules in one process of a venv's interpreter; return those that failed and why.

        Raises:
            Failed: `process-*`; `rehearsal-failed` when the process itself ended.
        """
        ...


class RealPython:
    """The platform's interpreter as a child process with a clean environment."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def compile(self, folder: str, interpreter: str) -> None:
        """Run compileall, whose exit code also counts templates that are no valid Python."""
        options = ["-q", "-q", "-r", _LEVELS_MAX, "--invalidation-mode", "unchecked-hash"]
        self._processes.run(
            [interpreter, "-I", "-S", "-B", "-m", "compileall", *options, folder],
            timeout_ms=_COMPILE_LIMIT_MS,
        )

    def imports(self, interpreter: str, modules: Sequence[str]) -> dict[str, str]:
        """Import in isolated mode and without writing bytecode."""
        done = self._processes.run(
            [interpreter, "-I", "-B", "-c", _IMPORTS, *modules], timeout_ms=_REHEARSE_LIMIT_MS
        )
        # Modules may print as they like; the answer is what follows the last separator.
        _, separator, answer = done.output.rpartition("\x1e")
        if done.exit_code != 0 or not separator:
            raise Failed(
                "rehearsal-failed",
                "importing the packages ended the interpreter",
                got=f"exit code {done.exit_code}: {done.output[-300:]}",
                where=interpreter,
            )
        failed = json.loads(answer)
        return {str(name): str(why) for name, why in failed.items()}


def venv_settings(interpreter: str, python: str) -> bytes:
    """Return `pyvenv.cfg` for an interpreter of minor version `python`."""
    home = interpreter.rpartition("/")[0]
    return (
        f"home = {home}\n"
        "include-system-site-packages = false\n"
        f"version = {python}\n"
        f"executable = {interpreter}\n"
    ).encode()


def make_venv(disk: Disk, folder: str, *, interpreter: str, python: str) -> bytes:
    """Add `pyvenv.cfg` and `bin/python` to a realised wheels tree; return the former's bytes.

    Raises: `disk-*`.
    """
    settings = venv_settings(interpreter, python)
    remove_tree(disk, f"{folder}/pyvenv.cfg")
    with disk.create(f"{folder}/pyvenv.cfg", 0o444) as writer:
        writer.write(settings)
    if disk.stat(f"{folder}/bin") is None:
        disk.mkdir(f"{folder}/bin", 0o755)
    for name, target in venv_links(interpreter).items():
        remove_tree(disk, f"{folder}/{name}")
        disk.symlink(target, f"{folder}/{name}")
    return settings


def venv_links(interpreter: str) -> dict[str, str]:
    """Return the links of a venv and their targets, by path in the wheels tree."""
    return {"bin/python": interpreter, "bin/python3": "python"}


def bytecode_tree(disk: Disk, folder: str, trees: dict[str, Tree]) -> Tree:
    """Return a listing of all bytecode below `folder`, for each component's tree by its name.

    Its files become 0444. Entries say 0644, as those of any tree do.

    Raises: `disk-*`.
    """
    entries: list[Entry] = []
    for name, tree in trees.items():
        for path in _folders(tree):
            base = f"{name}/{path}" if path else name
            entries.extend(_bytecode(disk, folder, f"{base}/__pycache__"))
    return build_tree(entries)


def _folders(tree: Tree) -> Iterator[str]:
    yield ""
    for entry in tree.entries:
        if entry.kind is EntryKind.DIRECTORY:
            yield entry.path


def _bytecode(disk: Disk, folder: str, cache: str) -> Iterator[Entry]:
    found = disk.stat(f"{folder}/{cache}")
    if found is None or found.kind is not FileKind.DIRECTORY:
        return
    for name in disk.list(f"{folder}/{cache}"):
        path = f"{folder}/{cache}/{name}"
        file = disk.stat(path)
        if not name.endswith(".pyc") or file is None or file.kind is not FileKind.FILE:
            continue
        disk.chmod(path, 0o444)
        yield Entry(
            path=f"{cache}/{name}",
            kind=EntryKind.FILE,
            mode=0o644,
            size_bytes=file.size_bytes,
            object=hash_file(disk, path),
        )
