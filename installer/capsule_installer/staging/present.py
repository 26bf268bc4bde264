"""Whether a staged generation is still as it was sealed: a stat of each file, few of them hashed.

This is what makes a repeated staging quick. It finds what is missing, changed in size, mode or
kind, and every damage of what the host made itself; a changed byte of a file that is linked from
the store is `capsule verify`'s to find.
"""

from typing import Final

from capsule_installer.host.host import Host
from capsule_installer.staging.generation import LINKED_KINDS, is_whole
from capsule_installer.staging.incoming import Delivery
from capsule_installer.staging.render import TEXT_BYTES_MAX
from capsule_installer.staging.runtime import runtime_name
from capsule_installer.staging.seal import read_listing
from capsule_installer.staging.store import ObjectStore
from capsule_installer.staging.venv import venv_links, venv_settings
from capsule_installer.system.disk import FileKind
from capsule_manifest.digest import object_id
from capsule_manifest.records import Marker
from capsule_manifest.release import ComponentKind

__all__ = ["BYTECODE", "LISTED", "RUNTIME_BYTECODE", "is_as_staged"]

BYTECODE: Final = "bytecode"
"""The key under which a marker names the listing of a generation's bytecode."""

RUNTIME_BYTECODE: Final = "runtime-bytecode"
"""The key under which a marker names the listing of its runtime's bytecode."""

LISTED: Final = frozenset({BYTECODE, RUNTIME_BYTECODE})
"""Keys of a marker whose value is the root of a kept listing, not the digest of a file."""


def is_as_staged(host: Host, delivery: Delivery, marker: Marker, store: ObjectStore) -> bool:
    """Say whether the generation of `marker` is whole and what `delivery` would make.

    Rendered files are compared with the marker, not with the delivery, whose route may differ.

    Raises: `disk-*`.
    """
    roots = {component.name: component.tree for component in delivery.components}
    return (
        marker.trees == roots
        and _reads(host, delivery, "capsule.json") == delivery.manifest
        and _has_trees(host, delivery, store)
        and _has_derived(host, delivery, marker)
        and _has_interpreter(host, delivery, marker)
    )


def _has_trees(host: Host, delivery: Delivery, store: ObjectStore) -> bool:
    for component in delivery.components:
        if component.kind is ComponentKind.RUNTIME:
            folder = f"{host.layout.runtimes}/{runtime_name(component.tree)}"
        elif component.kind in LINKED_KINDS:
            folder = f"{host.layout.generation(delivery.generation)}/{component.name}"
        else:
            continue
        tree = delivery.listings[component.tree].tree
        if not is_whole(host.disk, store, tree, folder):
            return False
    return True


def _has_derived(host: Host, delivery: Delivery, marker: Marker) -> bool:
    for path, digest in marker.derived.items():
        if path in LISTED:
            tree = read_listing(host, digest)
            generation = host.layout.generation(delivery.generation)
            folder = generation if path == BYTECODE else host.layout.runtimes
            if tree is None or not is_whole(host.disk, None, tree, folder):
                return False
            continue
        data = _reads(host, delivery, path)
        if data is None or object_id(data) != digest:
            return False
    return True


def _has_interpreter(host: Host, delivery: Delivery, marker: Marker) -> bool:
    """Say whether each venv is of the interpreter that would be taken today."""
    python = delivery.release.platforms[delivery.begin.platform].python
    settings = object_id(venv_settings(delivery.interpreter, python))
    for component in delivery.components:
        if component.kind is not ComponentKind.WHEELS:
            continue
        if marker.derived.get(f"{component.name}/pyvenv.cfg") != settings:
            return False
        folder = f"{host.layout.generation(delivery.generation)}/{component.name}"
        for name, target in venv_links(delivery.interpreter).items():
            found = host.disk.stat(f"{folder}/{name}")
            if found is None or found.kind is not FileKind.LINK:
                return False
            if host.disk.read_link(f"{folder}/{name}") != target:
                return False
    return True


def _reads(host: Host, delivery: Delivery, path: str) -> bytes | None:
    try:
        return host.disk.read(
            f"{host.layout.generation(delivery.generation)}/{path}", TEXT_BYTES_MAX
        )
    except FileNotFoundError:
        return None
