"""Managed files and recovery material: files that a release puts at places of its own choice."""

from itertools import pairwise
from typing import Final

from capsule.builder.committed import CommittedFiles
from capsule.builder.config import FilesSource, RecoverySource
from capsule.builder.model import ComponentInput, InputEntry
from capsule_manifest.errors import Refused
from capsule_manifest.release import ManagedFile
from capsule_manifest.template import placeholders

__all__ = ["check_targets", "files_input", "recovery_input"]

_OWN_FOLDERS: Final = (
    "/opt/capsule", "/var/lib/capsule", "/etc/capsule", "/run", "/proc", "/sys", "/dev",
    "/usr/local/lib/systemd/system",
)  # fmt: skip


def files_input(
    source: FilesSource, committed: CommittedFiles
) -> tuple[ComponentInput, tuple[ManagedFile, ...]]:
    """Read the managed files of a component; their targets become paths of its tree.

    Raises:
        Refused: `managed-file-not-allowed`, `template-invalid`, `input-missing`.
    """
    entries: list[InputEntry] = []
    files: list[ManagedFile] = []
    for item in source.files:
        # The most specific words first: a target below /run of a host is gone at its next boot.
        for own in _OWN_FOLDERS:
            if item.target == own or item.target.startswith(f"{own}/"):
                raise Refused(
                    "managed-file-not-allowed",
                    "a managed file lies where capsule or the kernel rules",
                    got=item.target,
                    where=source.name,
                )
        if item.template:
            _check_placeholders(committed.text(item.source), item.source)
        path = item.target.lstrip("/")
        entries.append(committed.file(item.source, path, mode=0o644))
        files.append(
            ManagedFile(
                file=path,
                target=item.target,
                owner=item.owner,
                group=item.group,
                mode=item.mode,
                template=item.template,
            )
        )
    component = ComponentInput(
        name=source.name,
        kind=source.kind,
        platforms=tuple(sorted(source.platforms)),
        entries=tuple(sorted(entries, key=lambda entry: entry.path)),
        external=(),
    )
    return component, tuple(sorted(files, key=lambda item: item.target))


def _check_placeholders(text: str, where: str) -> None:
    named = sorted(name for name in placeholders(text, where=where) if name.startswith("image."))
    if named:
        raise Refused(
            "template-invalid",
            "only a unit can name an image, because only what a unit runs is loaded and kept",
            got=f"@{{{named[0]}}}",
            where=where,
        )


def check_targets(role: str, files: tuple[ManagedFile, ...]) -> None:
    """Check that no two managed files of a role want one place.

    Raises:
        Refused: `managed-file-not-allowed`.
    """
    # By parts: as plain text "/etc/a-b" would come between "/etc/a" and "/etc/a/b".
    targets = sorted((item.target for item in files), key=lambda target: target.split("/"))
    for target, following in pairwise(targets):
        if following == target or following.startswith(f"{target}/"):
            raise Refused(
                "managed-file-not-allowed",
                "two managed files want one place",
                got=f"{target} and {following}",
                where=f"role {role}",
            )


def recovery_input(source: RecoverySource, committed: CommittedFiles) -> ComponentInput:
    """Return recovery material: files by their name, folders whole below their name.

    Two inputs of one name are refused when the tree is built.
    """
    entries = [entry for name in source.paths for entry in committed.below(name)]
    return ComponentInput(
        name=source.name,
        kind=source.kind,
        platforms=tuple(sorted(source.platforms)),
        entries=tuple(sorted(entries, key=lambda entry: entry.path)),
        external=(),
    )
