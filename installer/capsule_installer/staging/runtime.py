"""The on-host program as a component: where a runtime lies, which one this is, and its objects.

At first contact a runtime is unpacked plainly, before anything of it could be verified here. When
its capsule is staged, its files are hashed, given names in the store, and so never sent twice.
"""

import re
from typing import TYPE_CHECKING, Final

from capsule_installer.host.layout import Layout
from capsule_installer.system.disk import Disk, FileKind
from capsule_manifest.digest import ObjectId

if TYPE_CHECKING:
    from capsule_installer.staging.store import ObjectStore
    from capsule_manifest.tree import Tree

__all__ = ["adopt_runtime", "running_runtime", "runtime_name"]

_ID_DIGITS: Final = 8
_NAME: Final = re.compile(r"[0-9a-f]{8}")


def runtime_name(tree: ObjectId) -> str:
    """Return the name of the folder of a runtime, eight hex digits of its tree root."""
    return tree.hex()[:_ID_DIGITS]


def running_runtime(layout: Layout) -> str | None:
    """Return which runtime of this host runs now; None when the program came another way."""
    folder, _, rest = __file__.removeprefix(f"{layout.runtimes}/").partition("/")
    return folder if rest and _NAME.fullmatch(folder) else None


def adopt_runtime(disk: Disk, layout: Layout, store: "ObjectStore", tree: "Tree") -> None:
    """Give what is right of an unpacked runtime a name in the store. Raises: `disk-*`."""
    # Every verb asks for the running runtime; only staging needs the store.
    from capsule_installer.staging.store import hash_file

    folder = f"{layout.runtimes}/{runtime_name(tree.root)}"
    for entry in tree.entries:
        if entry.object is None or store.find(entry.object, entry.size_bytes) is not None:
            continue
        path = f"{folder}/{entry.path}"
        found = disk.stat(path)
        if found is None or found.kind is not FileKind.FILE:
            continue
        if found.size_bytes != entry.size_bytes or hash_file(disk, path) != entry.object:
            continue
        try:
            store.share(path, entry.object, executable=bool(entry.mode & 0o100))
        except OSError:
            # No links here: the object is sent like any other.
            return
