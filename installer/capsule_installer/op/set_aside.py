"""Keep what somebody changed, and put back what the release says: the way on after an edit.

An edited managed file is never overwritten by an op. This is how an operator says that it may go:
what is found keeps its bytes, mode and owner below `quarantine/files`, and the receipt says where.
With a staged generation it moves out of the way what stands where that one puts a new file.

The found file first gets a second name beside itself, durable; only then is its own name given to
the release's bytes, and only when the copy in quarantine is durable is the second name removed. So
a stop anywhere leaves the bytes under a name that the next run looks for.

Source: design, section 9; ADR 0247.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from capsule_installer.op.effects import Effects
from capsule_installer.op.installed import Installation, PlacedFile, require_coherent
from capsule_installer.op.managed_files import (
    ABSENT_FILE,
    FILE_BYTES_MAX,
    difference,
    names_aside,
)
from capsule_installer.op.prepare import wanted_file
from capsule_installer.op.settle import require_quiet
from capsule_installer.op.supervisor import await_lock, load_installation
from capsule_installer.op.switch_plan import aside_name
from capsule_installer.system.disk import Disk, FileKind
from capsule_installer.system.disk_errors import translated
from capsule_installer.system.fsops import make_dirs
from capsule_manifest.envelope import Envelope
from capsule_manifest.errors import CapsuleError, Refused
from capsule_manifest.orders import ABSENT
from capsule_manifest.records import Receipt

__all__ = ["FileState", "SetAside", "look_at_files", "set_aside"]

_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A managed file: `difference` is "" when it is as the generation puts it.

    `is_new`: the generation is only staged and would put it where capsule has put none.
    """

    file: PlacedFile
    difference: str
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """What was done: `kept` maps targets to where the found is now, `put_back` has the rest.

    Of a target with more than one edit the others are under the names that they had beside it.
    """

    kept: Mapping[str, str]
    put_back: tuple[str, ...]
    receipt: Envelope | None


def look_at_files(effects: Effects, *, generation: str = "") -> list[FileState]:
    """Return the managed files of what is installed, or those that are new in `generation`.

    Raises:
        Refused: `generation-not-staged`, `installed-contradictory`, `account-unknown`; as
            `load_generation`.
    """
    marker = require_coherent(effects)
    current = None if marker is None else load_installation(effects, marker)
    if generation:
        return list(_new_files(effects, generation, current))
    files = () if current is None else current.files
    return [
        FileState(
            file=file, difference=difference(effects.disk, wanted_file(effects, file)), is_new=False
        )
        for file in files
    ]


def set_aside(effects: Effects, *, generation: str = "", fence: int = 0) -> SetAside:
    """Keep everything that differs and put the release's files in place; nothing to do is no error.

    `fence` is the controller's; 0 is the host's own operator.

    Raises:
        Refused: `order-fenced`; `managed-file-edited` for a folder, or for a file that is being
            changed at this moment; as `look_at_files`.
        Failed: `host-busy`, `op-open`, `disk-*`.
    """
    lock = await_lock(effects)
    try:
        require_quiet(effects)
        if fence:
            effects.state.raise_fence(fence)
        states = look_at_files(effects, generation=generation)
        sequence, _ = effects.chain.next_link()
        work = _Work(effects, f"{effects.layout.quarantine}/files/{sequence:08}")
        try:
            for state in states:
                work.finish_earlier(state.file.target)
                if state.difference:
                    work.do(state)
        except (CapsuleError, OSError):
            # What was done until here is told all the same; why the rest was not, is the error.
            with suppress(CapsuleError, OSError):
                work.receipt(generation)
            raise
        receipt = work.receipt(generation)
    finally:
        lock.release()
    return SetAside(kept=work.kept, put_back=tuple(work.put_back), receipt=receipt)


def _new_files(
    effects: Effects, generation: str, current: Installation | None
) -> Iterator[FileState]:
    staged = effects.state.staged_marker(generation, effects.signer.public)
    if staged is None:
        raise Refused("generation-not-staged", "there is no such generation here", got=generation)
    ours = set() if current is None else {file.target for file in current.files}
    for file in load_installation(effects, staged).files:
        if file.target in ours:
            continue
        found = difference(effects.disk, wanted_file(effects, file))
        # Nothing there, or the same bytes: nothing is in the way.
        is_free = found == ABSENT_FILE or (found and not _differs_in_bytes(effects.disk, file))
        yield FileState(file=file, difference="" if is_free else found, is_new=True)


def _differs_in_bytes(disk: Disk, file: PlacedFile) -> bool:
    found = disk.stat(file.target)
    if found is None or found.kind is not FileKind.FILE:
        return True
    ours = disk.stat(file.source)
    if ours is None or found.size_bytes != ours.size_bytes:
        return True
    return disk.read(file.target, FILE_BYTES_MAX) != disk.read(file.source, FILE_BYTES_MAX)


class _Work:
    """One run. Everything is named after the receipt that will tell of it."""

    def __init__(self, effects: Effects, folder: str) -> None:
        self._effects = effects
        self._disk = effects.disk
        self._folder = folder
        self.kept: dict[str, str] = {}
        self.put_back: list[str] = []

    def finish_earlier(self, target: str) -> None:
        """Keep what a run left beside its place that was stopped."""
        for beside in reversed(names_aside(self._disk, target)):
            self._keep(target, beside)

    def do(self, state: FileState) -> None:
        """Set one file aside and put the generation's in its place."""
        target, disk = state.file.target, self._disk
        found = disk.stat(target)
        if found is not None and found.kind is FileKind.DIRECTORY:
            raise _blocked("a folder stands where a managed file belongs", target)
        if not state.is_new:
            self._lay_new(state.file)
        if found is not None:
            _second_name(disk, target, aside_name(target))
            # Before the target's own name goes to other bytes.
            disk.fsync_dir(_folder(target), "name of what is set aside")
            again = disk.stat(target)
            if again is not None and again.inode != found.inode:
                disk.unlink(aside_name(target))
                raise _blocked("a managed file is being changed at this moment", target)
        if state.is_new and disk.stat(target) is not None:
            disk.unlink(target)
        elif not state.is_new:
            disk.rename(_new_name(target), target)
            self.put_back.append(target)
        disk.fsync_dir(_folder(target), "put-back file's name")
        if found is not None:
            self._keep(target, aside_name(target))

    def receipt(self, generation: str) -> Envelope | None:
        """Append the receipt of what was done; None if that was nothing."""
        if not self.kept and not self.put_back:
            return None
        effects = self._effects
        current = effects.state.generation_of(effects.layout.current)
        details = {f"kept {target}": path for target, path in self.kept.items()}
        details |= {f"put back {target}": "as released" for target in self.put_back}
        return effects.chain.append(
            lambda sequence, previous: Receipt(
                sequence=sequence,
                previous=previous,
                kind="files",
                node=effects.node,
                node_key=effects.signer.public.keyid,
                op_id="",
                epoch="",
                fence=effects.state.fence(),
                route="",
                capsule="",
                source=current,
                target=generation or current or ABSENT,
                result="done",
                reason="an operator set changed files aside",
                guard="",
                details=details,
            )
        )

    def _lay_new(self, file: PlacedFile) -> None:
        disk, path = self._disk, _new_name(file.target)
        make_dirs(disk, _folder(file.target), 0o755)
        if disk.stat(path) is not None:
            disk.unlink(path)
        with disk.create(path, file.mode) as writer:
            writer.write(disk.read(file.source, FILE_BYTES_MAX))
            # It becomes the managed file by its name alone.
            writer.fsync("put-back file's data")
        ids = self._effects.accounts.ids(file.owner, file.group)
        if ids is not None:
            disk.chown(path, *ids)
            disk.chmod(path, file.mode)

    def _keep(self, target: str, beside: str) -> None:
        disk = self._disk
        kept = self._free_name(target)
        make_dirs(disk, _folder(kept), 0o700)
        found = disk.stat(beside)
        assert found is not None, beside
        if found.kind is FileKind.LINK:
            disk.symlink(disk.read_link(beside), kept)
        elif found.kind is FileKind.FILE:
            _copy(disk, beside, kept, found.mode)
        else:
            disk.rename(beside, kept)
        if found.kind in {FileKind.LINK, FileKind.FILE}:
            disk.chown(kept, found.uid, found.gid)
        # The only other name of these bytes is removed next.
        disk.fsync_dir(_folder(kept), "kept file's name")
        if disk.stat(beside) is not None:
            disk.unlink(beside)
        # Of several edits of one file each has its line in the receipt.
        self.kept[beside if target in self.kept else target] = kept

    def _free_name(self, target: str) -> str:
        inside = target.removeprefix(self._effects.layout.root)
        name, number = f"{self._folder}{inside}", 1
        while self._disk.stat(name) is not None:
            # A run that was stopped before its receipt had the same number.
            number += 1
            name = f"{self._folder}{inside}~{number}"
        return name


def _copy(disk: Disk, source: str, kept: str, mode: int) -> None:
    """Copy an edit of any size: quarantine may lie on another file system than the file."""
    try:
        with (
            translated(source),
            disk.open_read(source) as reader,
            disk.create(kept, mode) as writer,
        ):
            while chunk := reader.read(_CHUNK_BYTES):
                writer.write(chunk)
            writer.fsync("kept file's data")
    except (CapsuleError, OSError):
        # The edit has its name beside the target still. Half a copy would be taken for one.
        with suppress(CapsuleError, OSError):
            disk.unlink(kept)
        raise


def _second_name(disk: Disk, path: str, name: str) -> None:
    try:
        disk.link(path, name)
    except OSError as error:
        if isinstance(error, FileExistsError | FileNotFoundError):
            raise
        # No second name is possible here: the place is empty for a moment.
        disk.rename(path, name)


def _new_name(target: str) -> str:
    folder, _, name = target.rpartition("/")
    return f"{folder}/.{name}.capsule-put-back"


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _blocked(what: str, target: str) -> Refused:
    return Refused("managed-file-edited", what, expected="a file", where=target)
