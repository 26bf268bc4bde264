"""Whether everything that says what a host runs says the same: one class, and the evidence.

Pure. A host reports its surfaces as they are; here they are compared, with each other and with what
the controller pinned. Whatever is unsafe, unsigned or in conflict fails closed: only the absence of
the marker alone, with everything else in agreement, is repairable.

Source: design, section 9 ("Markers and identity"); `docs/reference/identity.md`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from capsule_manifest.orders import ABSENT
from capsule_manifest.survey import GenerationSurface, Survey

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


def judge(node: str, pinned_key: str | None, survey: Survey) -> Judged:
    """Return the class of a host that answered with a survey.

    `pinned_key` is the key that the controller met the node with, base64 of its SPKI.
    """
    current = survey.current
    # First: a host whose key can't be read is not yet another host.
    unread = tuple(_unreadable(survey))
    if unread:
        return _judged(Coherence.CONTRADICTORY, current, unread, serving=_serves(survey))
    foreign = tuple(_strangeness(node, pinned_key, survey))
    if foreign:
        return _judged(Coherence.FOREIGN, current, foreign, serving=False)
    found = tuple(_disagreements(survey))
    missing = survey.marker.state == "absent"
    if found:
        return _judged(Coherence.CONTRADICTORY, current, found, serving=_serves(survey))
    if missing and current == ABSENT:
        return _judged(Coherence.FRESH, current, (), serving=False)
    if missing:
        lack = tuple(_missing_evidence(survey))
        kind = Coherence.CONTRADICTORY if lack else Coherence.REPAIRABLE
        return _judged(kind, current, lack, serving=_serves(survey))
    return _judged(Coherence.COHERENT, current, (), serving=_serves(survey))


def _judged(
    coherence: Coherence, current: str, found: tuple[Disagreement, ...], *, serving: bool
) -> Judged:
    return Judged(coherence=coherence, serving=serving, current=current, disagreements=found)


def _unreadable(survey: Survey) -> Iterator[Disagreement]:
    for item in survey.unreadable:
        yield _differ(f"the {item.surface}", item.why, "a whole host", "something that can be read")


def _strangeness(node: str, pinned_key: str | None, survey: Survey) -> Iterator[Disagreement]:
    if survey.node is None and pinned_key is None:
        return
    if survey.node != node:
        yield _differ("the host's enrolment", _text(survey.node), "the route", node)
    if survey.node_key != pinned_key:
        yield _differ(
            "the host's node key", _short(survey.node_key),
            "the key at first contact", _short(pinned_key),
        )  # fmt: skip


def _disagreements(survey: Survey) -> Iterator[Disagreement]:
    """Compare each surface with the `current` link, which decides what would be started."""
    marker, current, link = survey.marker, survey.current, "the current link"
    if marker.state in {"unsafe", "invalid"}:
        yield _differ(
            "the installed marker", f"{marker.state}: {_text(marker.why)}", "a marker must be",
            "a signed file of the host's own user with one name",
        )  # fmt: skip
    if marker.state == "signed":
        if marker.generation != current:
            yield _differ("the installed marker", _text(marker.generation), link, current)
        elif marker.previous != survey.previous:
            yield _differ(
                "the installed marker's previous", _text(marker.previous),
                "the previous link", survey.previous,
            )  # fmt: skip
    if survey.generation and marker.state == "signed" and marker.generation == current:
        for name, said in _said(survey.generation):
            if said != marker.capsule:
                yield _differ(
                    f"the generation's {name}", _text(said),
                    "the installed marker", _text(marker.capsule),
                )  # fmt: skip
    receipt = survey.receipt
    if receipt and receipt.current != current and survey.open_op is None:
        yield _differ("the last receipt", receipt.current, link, current)
    yield from _unit_disagreements(survey)
    for file in survey.files:
        yield _differ(f"the managed file {file.target}", file.got, "the generation", file.expected)


def _said(generation: GenerationSurface) -> tuple[tuple[str, str | None], ...]:
    return ("manifest", generation.manifest), ("staged", generation.staged)


def _unit_disagreements(survey: Survey) -> Iterator[Disagreement]:
    for name, unit in survey.units.items():
        if unit.fragment != "same":
            yield _differ(f"the unit file {name}", unit.fragment, "the generation", "its own")
        if not unit.pid or not unit.is_service:
            continue
        if unit.generation != survey.current:
            yield _differ(
                f"the process of {name}", _text(unit.generation),
                "the current link", survey.current,
            )  # fmt: skip
        elif unit.commit != unit.expected_commit:
            yield _differ(
                f"the commit of {name}", _text(unit.commit), "the generation", unit.expected_commit
            )


def _missing_evidence(survey: Survey) -> Iterator[Disagreement]:
    """Name what a repair of an absent marker would lack."""
    generation, receipt = survey.generation, survey.receipt
    manifest = None if generation is None else generation.manifest
    staged = None if generation is None else generation.staged
    wanted = "to prove the marker"
    if manifest is None or manifest != staged:
        yield _differ(
            "the generation's manifest", _text(manifest), "its signed stage marker", _text(staged)
        )
    if receipt is None or receipt.result != "committed" or receipt.capsule != manifest:
        said = None if receipt is None else receipt.result
        yield _differ("the last receipt", _text(said), wanted, f"committed {survey.current}")
    if not _serves(survey):
        yield _differ("the running process", "none of the generation's", wanted, survey.current)


def _serves(survey: Survey) -> bool:
    return (
        bool(survey.units)
        and survey.hold is None
        and all(unit.active for unit in survey.units.values())
    )


def _differ(surface: str, says: str, other: str, other_says: str) -> Disagreement:
    return Disagreement(surface=surface, says=says, other=other, other_says=other_says)


def _text(value: str | None) -> str:
    return "nothing" if value is None else value


def _short(key: str | None) -> str:
    return "none" if key is None else f"…{key[-16:]}"
