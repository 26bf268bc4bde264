"""A realised generation as the install half sees it: its units, managed files and declared steps.

Read from the generation's own folder and from the signed marker that says what the host derived for
it. The *installed marker* is the host's signed word of what is current; it is exchanged together
with the links, so that it never says something else than they do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from capsule_installer.engines.base import WantedImage
from capsule_installer.engines.wanted import wanted_images
from capsule_installer.host.layout import Layout
from capsule_installer.op.effects import Effects
from capsule_installer.staging.render import image_values, node_values
from capsule_installer.system.disk import Disk
from capsule_manifest.digest import ObjectId
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.orders import ABSENT, Order
from capsule_manifest.records import MARKER_TYPE, Marker, decode_marker, encode_marker
from capsule_manifest.release import Budgets, Release, Unit, capsule_id, decode_release
from capsule_manifest.route import RouteNode
from capsule_manifest.template import substitute

__all__ = [
    "Installation",
    "PlacedFile",
    "encode_installed_marker",
    "installed_marker_path",
    "load_generation",
    "read_installed_marker",
    "require_coherent",
]

_RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
_UNIT_BYTES_MAX: Final = 1024 * 1024
_UNITS: Final = "units/"
_FILES: Final = "files/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """A managed file: `source` in the generation, `target` on the host, both whole paths."""

    target: str
    source: str
    digest: ObjectId
    owner: str
    group: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One generation. `units` are rendered texts; `specs` has their limits, probes rendered."""

    marker: Marker
    folder: str
    commit: str
    units: Mapping[str, str]
    specs: tuple[Unit, ...]
    files: tuple[PlacedFile, ...]
    guarded_steps: tuple[tuple[str, ...], ...]
    budgets: Budgets
    images: tuple[WantedImage, ...] = ()


def installed_marker_path(layout: Layout) -> str:
    """Return where the marker of the current generation lies."""
    return layout.installed_marker


def encode_installed_marker(signer: Signer, new: Installation, order: Order) -> bytes:
    """Return the signed marker that the switch puts in place."""
    marker = replace(
        new.marker,
        kind="installed",
        previous=order.prior,
        route=order.route,
        fence=order.fence,
        op_id=order.op_id,
    )
    envelope = sign(encode_marker(marker), payload_type=MARKER_TYPE, signer=signer)
    return encode_record(envelope)


def read_installed_marker(disk: Disk, layout: Layout, key: PublicKey) -> Marker | None:
    """Return the marker of what is installed, None on a host where nothing is.

    Raises:
        Refused: `json-*`, `document-*`, `key-unknown`, `signature-*`.
    """
    path = installed_marker_path(layout)
    try:
        raw = disk.read(path, _RECORD_BYTES_MAX)
    except FileNotFoundError:
        return None
    payload = decode_record(raw, where=path).verify(key, payload_type=MARKER_TYPE, where=path)
    return decode_marker(payload, where=path)


def require_coherent(effects: Effects) -> Marker | None:
    """Return the installed marker after checking that the links say the same.

    Raises:
        Refused: `installed-contradictory`, and whatever `read_installed_marker` raises.
    """
    marker = read_installed_marker(effects.disk, effects.layout, effects.signer.public)
    said = marker.generation if marker else ABSENT
    current = effects.state.generation_of(effects.layout.current)
    if said != current:
        raise Refused(
            "installed-contradictory",
            "the installed marker and the current link disagree",
            expected=f"marker: {said}",
            got=f"link: {current}",
            where=effects.layout.current,
        )
    return marker


def load_generation(
    disk: Disk, layout: Layout, marker: Marker, *, node: str, route_node: RouteNode
) -> Installation:
    """Return what a realised generation holds.

    Raises:
        Refused: `generation-damaged` when its manifest is not the marker's, `template-*`, and
            whatever `decode_release` raises.
    """
    folder = layout.generation(marker.generation)
    manifest = disk.read(f"{folder}/capsule.json", _RECORD_BYTES_MAX)
    if capsule_id(manifest) != marker.capsule:
        raise Refused(
            "generation-damaged", "a generation holds another manifest than its marker says",
            expected=marker.capsule, got=capsule_id(manifest), where=folder,
        )  # fmt: skip
    release = decode_release(manifest, where=f"{folder}/capsule.json")
    values = node_values(layout, generation=marker.generation, node=node, node_vars=route_node.vars)
    components = [item for item in release.components if marker.trees.get(item.name) == item.tree]
    values |= image_values(components)
    names = [key.removeprefix(_UNITS) for key in marker.derived if key.startswith(_UNITS)]
    units = {name: _unit_text(disk, f"{folder}/{_UNITS}{name}") for name in sorted(names)}
    return Installation(
        marker=marker,
        folder=folder,
        commit=release.source.commit,
        units=units,
        specs=_specs(release, marker, set(names), values),
        files=_files(layout, release, marker, folder),
        guarded_steps=_steps(release, marker, folder, values),
        budgets=release.budgets,
        images=wanted_images(components, units, folder),
    )


def _unit_text(disk: Disk, path: str) -> str:
    return disk.read(path, _UNIT_BYTES_MAX).decode()


def _specs(
    release: Release, marker: Marker, names: set[str], values: Mapping[str, str]
) -> tuple[Unit, ...]:
    units = [
        unit
        for component in release.components
        if component.name in marker.trees
        for unit in component.units
        if unit.name in names
    ]
    return tuple(_with_probe(unit, values) for unit in units)


def _with_probe(unit: Unit, values: Mapping[str, str]) -> Unit:
    if unit.probe is None:
        return unit
    address = substitute(unit.probe.http, values, where=f"probe of {unit.name}")
    return replace(unit, probe=replace(unit.probe, http=address))


def _files(layout: Layout, release: Release, marker: Marker, folder: str) -> tuple[PlacedFile, ...]:
    placed = []
    for component in release.components:
        if component.name not in marker.trees:
            continue
        for file in component.files:
            key = _FILES + file.target.removeprefix("/")
            if key in marker.derived:
                placed.append(
                    PlacedFile(
                        target=layout.inside(file.target),
                        source=f"{folder}/{key}",
                        digest=marker.derived[key],
                        owner=file.owner,
                        group=file.group,
                        mode=file.mode,
                    )
                )
    return tuple(placed)


def _steps(
    release: Release, marker: Marker, folder: str, values: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    steps = []
    for component in release.components:
        if component.name in marker.trees:
            for argv in component.guarded_steps:
                words = [substitute(word, values, where="guarded step") for word in argv]
                if "/" in words[0] and not words[0].startswith("/"):
                    words[0] = f"{folder}/{words[0]}"
                steps.append(tuple(words))
    return tuple(steps)
