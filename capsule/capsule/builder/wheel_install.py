"""Install wheels into the listing of an environment, without writing a file.

The tree is laid out as a virtual environment whose interpreter the host adds:
`lib/python3.11/site-packages/…`, `bin/…` with launchers that run the `python` beside them. It is
the same for everyone with the same wheels. No code of a wheel runs, nothing is compiled, and what
pip writes about its own doing (INSTALLER, RECORD, direct_url.json) is left out: the signed tree
replaces it.

Source: PEP 427, "Installing a wheel"; PEP 376; the entry points specification.
"""

import configparser
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from io import BytesIO
from typing import BinaryIO, Final

from packaging.specifiers import InvalidSpecifier
from packaging.utils import canonicalize_name
from packaging.version import Version

from capsule.builder.launchers import ENTRY_POINT, console_script, relocated_script
from capsule.builder.model import External, InputEntry
from capsule.builder.target import Target
from capsule.builder.wheel_file import Wheel
from capsule_manifest.errors import Refused
from capsule_manifest.paths import check_name, check_path, escape
from capsule_manifest.tree_entry import EntryKind

__all__ = ["external_of", "install_wheels", "picked_members"]

_SCRIPT_BYTES_MAX: Final = 4 * 1024 * 1024
_LEFT_OUT: Final = frozenset(
    {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json"}
)
_SCRIPT_GROUPS: Final = ("console_scripts", "gui_scripts")
# The host puts the interpreter here; a wheel that brings one would decide what runs everything.
_TAKEN: Final = re.compile(r"pyvenv\.cfg|bin/(python|pythonw|python3(\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installed:
    """An entry with what two wheels that write one path are compared by."""

    entry: InputEntry
    sha256: bytes
    file: str


def install_wheels(wheels: Sequence[Wheel], target: Target) -> tuple[InputEntry, ...]:
    """Return the entries of an environment with these wheels, in path order.

    Raises:
        Refused: `wheel-python-unfit`, `wheel-dependency-missing`, `wheel-metadata-invalid`,
            `wheel-layout-invalid`, `requirement-editable`, `wheel-conflict`, `path-invalid`.
    """
    _check_dependencies(wheels, target)
    installed: dict[str, _Installed] = {}
    for wheel in sorted(wheels, key=lambda wheel: wheel.pin.name):
        for item in _install(wheel, target):
            _add(installed, item)
    _check_folders(installed)
    return tuple(installed[path].entry for path in sorted(installed))


def picked_members(wheel: Wheel, pattern: str) -> tuple[InputEntry, ...]:
    """Return the files of a wheel that match a glob, each as the program `bin/<its own name>`.

    Raises:
        Refused: `tool-member-missing`, `wheel-conflict`.
    """
    installed: dict[str, _Installed] = {}
    for name in sorted(wheel.examined):
        if fnmatchcase(name, pattern):
            path = f"bin/{name.rpartition('/')[2]}"
            _add(installed, _copy(wheel, name, path, is_executable=True))
    if not installed:
        raise Refused(
            "tool-member-missing",
            "no file of a wheel matches the pattern",
            expected=escape(pattern),
            got=", ".join(sorted(wheel.examined)[:5]),
            where=wheel.pin.file,
        )
    return tuple(item.entry for item in installed.values())


def external_of(wheel: Wheel) -> External:
    """Return what the Python ecosystem calls this wheel."""
    return External(type="wheel", name=wheel.pin.file, digest=f"sha256:{wheel.pin.sha256}")


def _check_dependencies(wheels: Sequence[Wheel], target: Target) -> None:
    """Refuse an environment that pip would call broken: no host can fetch what is missing."""
    versions = {wheel.pin.name: wheel.pin.version for wheel in wheels}
    for wheel in wheels:
        file = wheel.pin.file
        try:
            is_fit = not wheel.requires_python or target.accepts_python(wheel.requires_python)
        except InvalidSpecifier as error:
            raise _refused(
                "wheel-metadata-invalid", "Requires-Python is malformed", file
            ) from error
        if not is_fit:
            raise Refused(
                "wheel-python-unfit",
                "a wheel is for another Python",
                expected=f"Python {target.platform.python}, for platform {target.name}",
                got=wheel.requires_python,
                where=file,
            )
        for requirement in wheel.requires:
            if not target.needs(requirement.marker, where=file):
                continue
            version = versions.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(
                Version(version), prereleases=True
            ):
                raise Refused(
                    "wheel-dependency-missing",
                    "a wheel needs a distribution that is not locked beside it",
                    expected=f"{requirement.name}{requirement.specifier}",
                    got=version or "none",
                    where=f"{file}, for platform {target.name}",
                )


def _add(installed: dict[str, _Installed], item: _Installed) -> None:
    path = item.entry.path
    check_path(path, item.file)
    if _TAKEN.fullmatch(path):
        raise _refused("wheel-layout-invalid", f"a wheel brings {escape(path)}", item.file)
    other = installed.get(path)
    if other is not None and (other.sha256, other.entry.mode) != (item.sha256, item.entry.mode):
        raise Refused(
            "wheel-conflict",
            "two wheels write different bytes to one path",
            expected=other.file,
            got=item.file,
            where=escape(path),
        )
    installed.setdefault(path, item)


def _check_folders(installed: dict[str, _Installed]) -> None:
    seen: set[str] = set()
    for path, item in installed.items():
        parent = path.rpartition("/")[0]
        while parent and parent not in seen:
            if parent in installed:
                raise Refused(
                    "wheel-conflict",
                    "one wheel's file is another's folder",
                    expected=installed[parent].file,
                    got=item.file,
                    where=escape(parent),
                )
            seen.add(parent)
            parent = parent.rpartition("/")[0]


def _install(wheel: Wheel, target: Target) -> Iterator[_Installed]:
    library = f"lib/python{target.platform.python}/site-packages"
    stem = wheel.dist_info.removesuffix(".dist-info")
    for name in sorted(wheel.examined):
        top, _, rest = name.partition("/")
        if top.startswith("__editable__") or (not rest and top.endswith(".egg-link")):
            raise Refused(
                "requirement-editable",
                "a wheel only points at a folder of the machine it was built on",
                expected="a wheel with its content",
                got=escape(name),
                where=wheel.pin.file,
            )
        if top == wheel.dist_info and rest in _LEFT_OUT:
            continue
        if top.lower().endswith(".data") and rest:
            if top != f"{stem}.data":
                raise _refused(
                    "wheel-layout-invalid", f"{escape(top)} is another's data", wheel.pin.file
                )
            yield from _install_data(wheel, name, rest, library, target)
        elif not _is_bytecode(name):
            yield _copy(wheel, name, f"{library}/{name}")
    yield from _console_scripts(wheel)


def _install_data(
    wheel: Wheel, name: str, rest: str, library: str, target: Target
) -> Iterator[_Installed]:
    scheme, _, path = rest.partition("/")
    match scheme:
        case _ if not path:
            raise _refused("wheel-layout-invalid", f"{escape(name)} has no scheme", wheel.pin.file)
        case "purelib" | "platlib":
            if not _is_bytecode(path):
                yield _copy(wheel, name, f"{library}/{path}")
        case "headers":
            folder = f"include/site/python{target.platform.python}/{wheel.pin.name}"
            yield _copy(wheel, name, f"{folder}/{path}")
        case "data":
            yield _copy(wheel, name, path)
        case "scripts":
            yield _install_script(wheel, name, path)
        case _:
            raise _refused(
                "wheel-layout-invalid", f"{escape(name)} has an unknown scheme", wheel.pin.file
            )


def _install_script(wheel: Wheel, name: str, path: str) -> _Installed:
    with wheel.view.open(name) as stream:
        is_script = stream.read(len(b"#!python")) == b"#!python"
    content = relocated_script(wheel.view.read(name, _SCRIPT_BYTES_MAX)) if is_script else None
    if content is None:
        return _copy(wheel, name, f"bin/{path}", is_executable=True)
    return _made(wheel, f"bin/{path}", content)


def _console_scripts(wheel: Wheel) -> Iterator[_Installed]:
    raw = wheel.read_metadata("entry_points.txt")
    if raw is None:
        return
    file = wheel.pin.file
    # A section for defaults would add its launchers to every group; no file can name this one.
    parser = configparser.RawConfigParser(delimiters=("=",), default_section="\n")
    # A launcher's name keeps its case.
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(raw.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        raise _refused("wheel-metadata-invalid", "entry_points.txt is malformed", file) from error
    for group in _SCRIPT_GROUPS:
        if not parser.has_section(group):
            continue
        for name, value in parser.items(group):
            check_name(name, file)
            point = ENTRY_POINT.fullmatch(value.strip())
            if point is None:
                raise Refused(
                    "wheel-metadata-invalid",
                    f"the entry point {escape(name)} is malformed",
                    expected="module:function",
                    got=value,
                    where=file,
                )
            content = console_script(point["module"], point["attribute"])
            yield _made(wheel, f"bin/{name}", content)


def _copy(wheel: Wheel, name: str, path: str, *, is_executable: bool | None = None) -> _Installed:
    member = wheel.view.members[name]
    executable = member.is_executable if is_executable is None else is_executable
    entry = InputEntry(
        path=path,
        kind=EntryKind.FILE,
        mode=0o755 if executable else 0o644,
        size_bytes=member.size_bytes,
        open=partial(wheel.open, name),
        examined=wheel.examined[name],
    )
    return _Installed(entry=entry, sha256=wheel.examined[name].sha256, file=wheel.pin.file)


def _made(wheel: Wheel, path: str, content: bytes) -> _Installed:
    entry = InputEntry(
        path=path,
        kind=EntryKind.FILE,
        mode=0o755,
        size_bytes=len(content),
        open=partial(_stream, content),
    )
    digest = hashlib.sha256(content).digest()
    return _Installed(entry=entry, sha256=digest, file=wheel.pin.file)


def _stream(content: bytes) -> BinaryIO:
    return BytesIO(content)


def _is_bytecode(name: str) -> bool:
    # The host compiles with the interpreter that will run it; a module that exists as bytecode
    # only lies outside __pycache__ and stays.
    return "__pycache__" in name.split("/")


def _refused(error_id: str, what: str, file: str) -> Refused:
    return Refused(error_id, what, where=file)
