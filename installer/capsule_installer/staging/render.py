"""Render units and managed files for this node: strict placeholders, no logic, nothing else.

Pure: texts of signed trees and values of the signed route in, bytes out. To every unit the host
adds what it must be able to rely on: that nothing starts while the hold file is there, that the
file systems are mounted, and who the processes are, for the proof. It is added at the end, so that
a release can't take it back.

Source: ADR 0080; systemd.syntax(7); systemd.unit(5).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from capsule_installer.host.layout import BOOT_UNIT, Layout
from capsule_manifest.digest import CapsuleId
from capsule_manifest.engine_units import is_image_id
from capsule_manifest.errors import Refused
from capsule_manifest.release import Component, ComponentKind, Release
from capsule_manifest.template import substitute

__all__ = ["TEXT_BYTES_MAX", "image_values", "node_values", "render", "unit_addition"]

TEXT_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest managed file; larger content belongs into a component of its own."""


def node_values(
    layout: Layout, *, generation: str, node: str, node_vars: Mapping[str, str]
) -> dict[str, str]:
    """Return what each placeholder stands for on this node."""
    return {
        "root": layout.root,
        "generation": layout.generation(generation),
        "current": layout.current,
        "node.id": node,
    } | {f"node.{name}": value for name, value in node_vars.items() if name != "id"}


def image_values(components: Iterable[Component]) -> dict[str, str]:
    """Return what `@{image.NAME}` stands for: the id by which an engine knows the image."""
    return {
        f"image.{component.name}": item.digest
        for component in components
        if component.kind is ComponentKind.IMAGE
        for item in component.external
        if item.type == "image-config" and is_image_id(item.digest)
    }


def render(
    components: Iterable[Component],
    values: Mapping[str, str],
    addition: Callable[[str], str],
    read: Callable[[Component, str], bytes],
) -> dict[str, bytes]:
    """Return every rendered file by its path in the generation, `units/NAME` or `files/TARGET`.

    `read` returns the bytes of a path of a component's tree. Probe addresses are rendered too, so
    that a missing value is found here and not while a service is stopped.

    Raises:
        Refused: `template-*`; `rehearsal-failed` for a text that is not UTF-8, or two of one name.
    """
    rendered: dict[str, bytes] = {}
    # Only a unit runs an image; who else named one would find it neither loaded nor kept.
    plain = {name: value for name, value in values.items() if not name.startswith("image.")}
    for component in components:
        for unit in component.units:
            text = _text(read(component, unit.file), f"{component.name}/{unit.file}")
            where = f"unit {unit.name}"
            body = substitute(text, values, where=where)
            _add(rendered, f"units/{unit.name}", f"{body}\n\n{addition(unit.name)}".encode())
            if unit.probe is not None:
                substitute(unit.probe.http, values, where=f"probe of {unit.name}")
        for managed in component.files:
            raw = read(component, managed.file)
            if managed.template:
                text = _text(raw, f"{component.name}/{managed.file}")
                raw = substitute(text, plain, where=managed.target).encode()
            _add(rendered, f"files{managed.target}", raw)
    return rendered


def unit_addition(
    layout: Layout, release: Release, *, capsule: CapsuleId, generation: str
) -> Callable[[str], str]:
    """Return what is added to the unit of a given name."""
    unit_lines = ["[Unit]", f"ConditionPathExists=!{layout.hold}"]
    if not layout.root:
        # Below a folder there is no mount to wait for, and nothing starts by itself at boot.
        unit_lines.append(f"RequiresMountsFor={layout.opt} {layout.var}")
        # Ordered and not required: a rescue that fails keeps units down by the hold file.
        unit_lines.append(f"After={BOOT_UNIT}")
    service_lines = [
        "[Service]",
        f"Environment=CAPSULE_ID={capsule} CAPSULE_GENERATION={generation}",
        f"Environment=CAPSULE_COMMIT={release.source.commit}",
    ]

    def addition(name: str) -> str:
        lines = unit_lines + (service_lines if name.endswith(".service") else [])
        return "\n".join(lines) + "\n"

    return addition


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Refused("rehearsal-failed", "a text is not UTF-8", got=error, where=where) from None


def _add(rendered: dict[str, bytes], path: str, data: bytes) -> None:
    if path in rendered:
        raise Refused("rehearsal-failed", "two components of one role bring one file", got=path)
    rendered[path] = data
