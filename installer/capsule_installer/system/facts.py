"""What kind of machine this is, as far as a release may depend on it.

Facts are read, never guessed: what can't be read is said to be empty and then matches no platform.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["Machine", "MachineFacts", "RealMachine"]

_FOLDERS: Final = ("/usr/bin", "/usr/local/bin")
_MINORS: Final = range(11, 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Machine as `uname -m` says, glibc as `confstr` says, interpreters by minor version."""

    machine: str
    glibc: str
    pythons: Mapping[str, str]


class Machine(Protocol):
    """This machine, its user and its source of randomness."""

    def facts(self) -> MachineFacts:
        """Return what kind of machine it is."""
        ...

    def uid(self) -> int:
        """Return the user that this program runs as."""
        ...

    def is_noexec(self, path: str) -> bool:
        """Say whether programs below `path` can't be run; the path must exist."""
        ...

    def interpreter(self) -> str:
        """Return the Python that runs this program, with all links resolved."""
        ...

    def nonce(self) -> str:
        """Return 32 hex digits that nobody can foresee."""
        ...


class RealMachine:
    """The machine that this program runs on."""

    def facts(self) -> MachineFacts:
        """Ask the kernel, the C library and the folders of programs.

        The interpreter that runs this program counts where none of its version is installed.
        """
        running = {f"{sys.version_info[0]}.{sys.version_info[1]}": self.interpreter()}
        return MachineFacts(
            machine=os.uname().machine, glibc=_glibc(), pythons=running | _pythons()
        )

    def uid(self) -> int:
        """Return the effective user id."""
        return os.geteuid()

    def is_noexec(self, path: str) -> bool:
        """Ask for mount flags. Source: statvfs(3)."""
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)

    def interpreter(self) -> str:
        """Ask the kernel, which can't be told a story by an environment variable."""
        return os.path.realpath("/proc/self/exe")

    def nonce(self) -> str:
        """Return 128 bits of the kernel's randomness."""
        return os.urandom(16).hex()


def _glibc() -> str:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return ""
    return version if name == "glibc" else ""


def _pythons() -> dict[str, str]:
    found: dict[str, str] = {}
    for minor in _MINORS:
        for folder in _FOLDERS:
            path = f"{folder}/python3.{minor}"
            if os.access(path, os.X_OK):
                found[f"3.{minor}"] = path
                break
    return found
