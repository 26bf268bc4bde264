"""What every verb is given: this host's disk, places, clock, machine, and where answers go."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from capsule_installer.host.layout import Layout
from capsule_installer.host.state import HostState
from capsule_installer.system.clock import Clock
from capsule_installer.system.disk import Disk, FileKind, Lock
from capsule_installer.system.facts import Machine
from capsule_installer.system.fsops import make_dirs
from capsule_installer.system.report import Reporter
from capsule_manifest.errors import CapsuleError, Refused

__all__ = ["Host"]

_WRITABLE_BY_OTHERS: Final = 0o022
_BOOT_ID_BYTES_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host as a verb sees it."""

    disk: Disk
    layout: Layout
    clock: Clock
    machine: Machine
    reporter: Reporter

    @property
    def state(self) -> HostState:
        """Return what the host remembers."""
        return HostState(self.disk, self.layout)

    def prepare(self) -> None:
        """Make the host's folders and refuse ones that somebody else could change.

        Raises:
            Refused: `host-folder-unsafe`.
            Failed: `disk-*`.
        """
        if self.layout.root:
            # Its parent is the operator's own choice, so only the root itself must exist.
            self._check(self.layout.root)
        are_kept = self._are_kept()
        for path, mode in self.layout.folders():
            if not are_kept:
                make_dirs(self.disk, path, mode)
            # Before the next one: nothing may be made below a folder that is a link.
            self._check(path)
        if not are_kept:
            self._remember_kept()

    def take_lock(self) -> Lock:
        """Become the only program that changes this host. `prepare` was called before.

        Raises:
            Failed: `host-busy`.
        """
        return self.disk.lock(self.layout.lock)

    def _are_kept(self) -> bool:
        """Say whether all folders are there, and durable since this boot: an fsync takes time.

        What says so is withdrawn before one of them is made again: a stop may come in between.
        """
        try:
            boot_id = self.disk.read(self.layout.kept, _BOOT_ID_BYTES_MAX).decode(
                "ascii", "replace"
            )
        except (FileNotFoundError, CapsuleError):
            # What is wrong with it is said by the checks.
            return False
        folders = self.layout.folders()
        if boot_id == self.clock.boot_id() and all(self.disk.stat(path) for path, _ in folders):
            return True
        with suppress(FileNotFoundError):
            self.disk.unlink(self.layout.kept)
        return False

    def _remember_kept(self) -> None:
        # Whoever else has just made them says the same.
        # Nor does a full disk hinder anybody: the next one looks again.
        with (
            suppress(FileExistsError, CapsuleError),
            self.disk.create(self.layout.kept, 0o600) as writer,
        ):
            writer.write(self.clock.boot_id().encode("ascii"))

    def _check(self, path: str) -> None:
        found = self.disk.stat(path)
        if found is None or found.kind is not FileKind.DIRECTORY:
            raise _unsafe(
                "is not a folder", "a folder", "nothing" if found is None else found.kind, path
            )
        if found.uid != self.machine.uid():
            raise _unsafe("belongs to another user", self.machine.uid(), found.uid, path)
        if found.mode & _WRITABLE_BY_OTHERS:
            raise _unsafe("can be written by others", "mode 0755 or less", f"{found.mode:#o}", path)


def _unsafe(what: str, expected: object, got: object, path: str) -> Refused:
    return Refused(
        "host-folder-unsafe", f"a folder of capsule {what}", expected=expected, got=got, where=path
    )
