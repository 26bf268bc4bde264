"""Nodes that are held because they contradict themselves: with evidence, and with explicit exits.

A quarantine is a hold in the ledger that no epoch owns, so that no epoch takes the node, and a file
of evidence. It ends when a later preflight finds the node coherent or fresh and an operator
releases it: never by itself, and never because evidence was lost.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capsule.durable import make_folder, read_bounded, replace_file
from capsule.home import ProductHome
from capsule.ledger.store import SqlLedger
from capsule.rollout.coherence import Coherence
from capsule.rollout.preflight import Finding, Preflight
from capsule_manifest.canonical import DEFAULT_LIMITS, decode, encode
from capsule_manifest.errors import Refused
from capsule_manifest.fields import root_object

__all__ = ["QUARANTINE", "Quarantined", "check_release", "quarantine_unfit", "read_evidence"]

QUARANTINE: Final = "quarantine"
"""The owner of such a hold."""

_SCHEMA: Final = "capsule-quarantine/1"
_SIZE_BYTES_MAX: Final = 1024 * 1024
_HELD: Final = frozenset({Coherence.CONTRADICTORY, Coherence.FOREIGN, Coherence.REPAIRABLE})
_EXITS: Final = frozenset({Coherence.COHERENT, Coherence.FRESH})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """Why a node is held. `preflight` is the digest of the result that showed it."""

    node: str
    coherence: str
    preflight: str
    evidence: tuple[str, ...]


def quarantine_unfit(
    home: ProductHome, ledger: SqlLedger, preflight: Preflight
) -> tuple[Quarantined, ...]:
    """Hold every node whose identity is not whole, before anything is changed anywhere.

    Evidence is written before the hold. Repeating it changes nothing but the evidence.

    Raises:
        Failed: `controller-disk`, `ledger-unavailable`, `ledger-full`.
    """
    held = []
    for node, finding in sorted(preflight.nodes.items()):
        if finding.coherence in _HELD:
            item = Quarantined(
                node=node,
                coherence=str(finding.coherence),
                preflight=preflight.digest,
                evidence=finding.disagreements,
            )
            _keep(home, item)
            ledger.place_hold(node, QUARANTINE)
            held.append(item)
    return tuple(held)


def read_evidence(home: ProductHome, node: str) -> Quarantined | None:
    """Return why a node is held, None if it never was. Raises: `json-*`, `document-*`."""
    path = _path(home, node)
    raw = read_bounded(path, _SIZE_BYTES_MAX)
    if raw is None:
        return None
    where = str(path)
    document = root_object(
        decode(raw, limits=DEFAULT_LIMITS, where=where), schema=_SCHEMA, name=where
    )
    item = Quarantined(
        node=document.text("node"),
        coherence=document.text("class"),
        preflight=document.sha256("preflight"),
        evidence=document.texts("evidence"),
    )
    document.end()
    return item


def check_release(node: str, finding: Finding | None) -> None:
    """Refuse to release a node that a preflight has not found whole since.

    Raises:
        Refused: `quarantine-stays`.
    """
    if finding is None or finding.coherence not in _EXITS:
        raise Refused(
            "quarantine-stays",
            "the node is quarantined, and the last preflight does not find it whole",
            expected="coherent or fresh",
            got=str(finding.coherence) if finding else "no preflight",
            where=node,
        )


def _keep(home: ProductHome, item: Quarantined) -> None:
    path = _path(home, item.node)
    make_folder(path.parent)
    replace_file(
        path,
        encode(
            {
                "schema": _SCHEMA,
                "node": item.node,
                "class": item.coherence,
                "preflight": item.preflight,
                "evidence": list(item.evidence),
            }
        ),
    )


def _path(home: ProductHome, node: str) -> Path:
    return home.folder / "quarantine" / f"{node}.json"
