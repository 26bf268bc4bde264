"""Repairs: a controller asks a host to write the one marker that all other evidence proves.

The request says what the controller saw; the host compares it with what it finds itself and writes
nothing unless everything agrees. It can't be used to install, and to repeat it changes nothing.

Source: design, section 9 ("`node repair`"); `docs/adr/0182-repair-proves-before-it-writes.md`.
"""

import re
from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import Limits, decode, encode
from capsule_manifest.digest import CapsuleId
from capsule_manifest.fields import root_object

__all__ = ["REPAIR_TYPE", "Repair", "decode_repair", "encode_repair"]

REPAIR_SCHEMA: Final = "capsule-repair/1"
REPAIR_TYPE: Final = "application/vnd.capsule.repair.v1+json"

_LIMITS = Limits(size_bytes_max=16 * 1024, depth_max=2, values_max=32)
_OP_ID = re.compile(r"[0-9a-f]{32}")
_GENERATION = re.compile(r"[0-9]+-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A request to write the installed marker anew.

    `installed_by` is the op id of the last receipt, which must have committed `generation`.
    """

    op_id: str
    node: str
    node_key: str
    route: str
    fence: int
    generation: str
    capsule: CapsuleId
    installed_by: str


def encode_repair(repair: Repair) -> bytes:
    """Return the canonical bytes that a controller signs as `REPAIR_TYPE`."""
    return encode(
        {
            "schema": REPAIR_SCHEMA,
            "op_id": repair.op_id,
            "node": repair.node,
            "node_key": repair.node_key,
            "route": repair.route,
            "fence": repair.fence,
            "generation": repair.generation,
            "capsule": repair.capsule,
            "installed_by": repair.installed_by,
        }
    )


def decode_repair(raw: bytes, *, where: str = "repair") -> Repair:
    """Read a request strictly: an unknown key is refused.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`.
    """
    document = root_object(
        decode(raw, limits=_LIMITS, where=where), schema=REPAIR_SCHEMA, name=where
    )
    repair = Repair(
        op_id=document.matching("op_id", _OP_ID),
        node=document.text("node"),
        node_key=document.text("node_key"),
        route=document.sha256("route"),
        fence=document.integer("fence"),
        generation=document.matching("generation", _GENERATION),
        capsule=CapsuleId(document.sha256("capsule")),
        installed_by=document.matching("installed_by", _OP_ID),
    )
    document.end()
    return repair
