"""Whether everything that says what a host runs says the same: one class, and the evidence.

Pure. A host reports its surfaces as they are; here they are compared, with each other and with what
the controller pinned. Whatever is unsafe, unsigned or in conflict fails closed: only the absence of
the marker alone, with everything else in agreement, is repairable.

Source: design, section 9 ("Markers and identity"); `docs/reference/identity.md`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from capsule.host_records import HostRecord
from capsule_manifest.canonical import JsonValue
from capsule_manifest.orders import ABSENT

__all__ = ["Coherence", "Disagreement", "Judged", "judge"]


class Coherence(StrEnum):
    """How the surfaces of one host stand to each other."""

    COHERENT = "coherent"
    FRESH = "fresh"
    REPAIRABLE = "repairable"
    CONTRADICTORY = "contradictory"
    UNREACHABLE = "unreachable"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two surfaces that say different things, with both values."""

    surface: str
    says: str
    other: str
    other_says: str

    @property
    def text(self) -> str:
        """Return it as an operator reads it."""
        return f"{self.surface} says {self.says}, {self.other} says {self.other_says}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The class of one host. `serving` says whether its own services run what is current."""

    coherence: Coherence
    serving: bool
    current: str
    disagreements: tuple[Disagreement, ...]


def judge(node: str, pinned_key: str | None, record: HostRecord) -> Judged:
    """Return the class of a host that answered with an `identity` record.

    `pinned_key` is the key that the controller met the node with, base64 of its SPKI.
    """
    current = _text(record.get("current"))
    foreign = tuple(_strangeness(node, pinned_key, record))
    if foreign:
        return _judged(Coherence.FOREIGN, current, foreign, serving=False)
    marker = _map(record.get("marker"))
    receipt = _map(record.get("receipt"))
    found = tuple(_disagreements(record, marker, receipt, current))
    nothing = current == ABSENT and marker.get("state") == "absent"
    if nothing and not found:
        return _judged(Coherence.FRESH, current, (), serving=False)
    missing = marker.get("state") == "absent"
    if found:
        return _judged(Coherence.CONTRADICTORY, current, found, serving=_serves(record))
    if missing:
        lack = tuple(_missing_evidence(record, receipt, current))
        kind = Coherence.CONTRADICTORY if lack else Coherence.REPAIRABLE
        return _judged(kind, current, lack, serving=_serves(record))
    return _judged(Coherence.COHERENT, current, (), serving=_serves(record))


def _judged(
    coherence: Coherence, current: str, found: tuple[Disagreement, ...], *, serving: bool
) -> Judged:
    return Judged(coherence=coherence, serving=serving, current=current, disagreements=found)


def _strangeness(node: str, pinned_key: str | None, record: HostRecord) -> Iterator[Disagreement]:
    said, key = record.get("node"), record.get("node_key")
    if said is None and pinned_key is None:
        return
    if said != node:
        yield _differ("the host's enrolment", _text(said), "the route", node)
    if key != pinned_key:
        yield _differ(
            "the host's node key", _short(key), "the key at first contact", _short(pinned_key)
        )


def _disagreements(
    record: HostRecord,
    marker: Mapping[str, JsonValue],
    receipt: Mapping[str, JsonValue],
    current: str,
) -> Iterator[Disagreement]:
    """Compare each surface with the `current` link, which decides what would be started."""
    state = marker.get("state")
    if state in {"unsafe", "invalid"}:
        yield _differ(
            "the installed marker", f"{state}: {_text(marker.get('why'))}", "a marker must be",
            "a signed file of the host's own user with one name",
        )  # fmt: skip
    link = "the current link"
    if state == "signed":
        if marker.get("generation") != current:
            yield _differ("the installed marker", _text(marker.get("generation")), link, current)
        elif marker.get("previous") != record.get("previous"):
            yield _differ(
                "the installed marker's previous", _text(marker.get("previous")),
                "the previous link", _text(record.get("previous")),
            )  # fmt: skip
    generation = _map(record.get("generation"))
    if generation and state == "signed" and marker.get("generation") == current:
        for name in ("manifest", "staged"):
            if generation.get(name) != marker.get("capsule"):
                yield _differ(
                    f"the generation's {name}", _text(generation.get(name)),
                    "the installed marker", _text(marker.get("capsule")),
                )  # fmt: skip
    if receipt and receipt.get("current") != current and record.get("open_op") is None:
        yield _differ("the last receipt", _text(receipt.get("current")), link, current)
    yield from _unit_disagreements(record, current)
    for file in _list(record.get("files")):
        item = _map(file)
        yield _differ(
            f"the managed file {_text(item.get('target'))}", _text(item.get("got")),
            "the generation", _text(item.get("expected")),
        )  # fmt: skip


def _unit_disagreements(record: HostRecord, current: str) -> Iterator[Disagreement]:
    for name, value in _map(record.get("units")).items():
        unit = _map(value)
        if unit.get("fragment") != "same":
            yield _differ(
                f"the unit file {name}", _text(unit.get("fragment")), "the generation", "its own"
            )
        if not unit.get("pid") or not unit.get("is_service"):
            continue
        if unit.get("generation") != current:
            yield _differ(
                f"the process of {name}", _text(unit.get("generation")), "the current link", current
            )
        elif unit.get("commit") != unit.get("expected_commit"):
            yield _differ(
                f"the commit of {name}", _text(unit.get("commit")),
                "the generation", _text(unit.get("expected_commit")),
            )  # fmt: skip


def _missing_evidence(
    record: HostRecord, receipt: Mapping[str, JsonValue], current: str
) -> Iterator[Disagreement]:
    """Name what a repair of an absent marker would lack."""
    generation = _map(record.get("generation"))
    manifest, staged = generation.get("manifest"), generation.get("staged")
    wanted = "to prove the marker"
    if manifest is None or manifest != staged:
        yield _differ(
            "the generation's manifest", _text(manifest), "its signed stage marker", _text(staged)
        )
    if receipt.get("result") != "committed" or receipt.get("capsule") != manifest:
        yield _differ(
            "the last receipt", _text(receipt.get("result")), wanted, f"committed {current}"
        )
    if not _serves(record):
        yield _differ("the running process", "none of the generation's", wanted, current)


def _serves(record: HostRecord) -> bool:
    units = _map(record.get("units"))
    return (
        bool(units)
        and record.get("hold") is None
        and all(bool(_map(unit).get("active")) for unit in units.values())
    )


def _differ(surface: str, says: str, other: str, other_says: str) -> Disagreement:
    return Disagreement(surface=surface, says=says, other=other, other_says=other_says)


def _map(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, Mapping) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _text(value: JsonValue) -> str:
    return "nothing" if value is None else str(value)


def _short(key: JsonValue) -> str:
    return "none" if key is None else f"…{str(key)[-16:]}"
