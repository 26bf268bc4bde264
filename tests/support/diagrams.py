"""docs/reference/state-diagrams.md: every machine of a rollout, drawn from its table."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from capsule.lane import epoch, hold, lane, node, node_table

__all__ = ["state_diagrams_page"]


class _Machine(NamedTuple):
    title: str
    about: str
    first: StrEnum
    table: Mapping[Any, StrEnum]
    events: Iterable[type]


def _machines() -> tuple[_Machine, ...]:
    return (
        _Machine(
            "Node",
            "One node in one epoch, as the ledger knows it.\n"
            "A report may be the first that is heard after several steps: progress skips states.",
            node.NodeState.UNTOUCHED,
            node_table.TABLE,
            node.EVENTS,
        ),
        _Machine(
            "Hold",
            "The epoch's own hold on a node, and with it the permit.",
            hold.HoldState.FREE,
            hold.TABLE,
            hold.EVENTS,
        ),
        _Machine(
            "Lane",
            "Whether nodes of a lane may be taken.",
            lane.LaneState.OPEN,
            lane.TABLE,
            lane.EVENTS,
        ),
        _Machine(
            "Epoch",
            "Whether an epoch takes new permits.",
            epoch.EpochState.RUNNING,
            epoch.TABLE,
            epoch.EVENTS,
        ),
        _Machine(
            "Tenure",
            "Whether a controller attends to the epoch.",
            epoch.Tenure.ATTENDED,
            epoch.TENURE_TABLE,
            epoch.TENURE_EVENTS,
        ),
    )


def state_diagrams_page() -> str:
    """Return the page: a diagram for each machine, and what each event means."""
    return (
        "# State diagrams\n\n"
        "This page is written from the tables in `capsule.lane` by `./dev docs`.\n"
        "A pair of state and event that isn't drawn is refused and changes nothing.\n"
        "What the machines are for is told in [rollouts](../explanation/rollout.md).\n\n"
        + "\n".join(_section(machine) for machine in _machines())
    )


def _section(machine: _Machine) -> str:
    edges: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (before, event), after in machine.table.items():
        edges.setdefault((before, after), []).append(_words(event))
    left = {before for before, after in edges if before is not after}
    ends = [state for state in type(machine.first) if state not in left]
    lines = [f"    [*] --> {machine.first}"]
    lines += [f"    {old} --> {new}: {', '.join(names)}" for (old, new), names in edges.items()]
    lines += [f"    {state} --> [*]" for state in ends]
    rows = [f"| {_words(event)} | {_meaning(event)} |" for event in machine.events]
    return (
        f"## {machine.title}\n\n{machine.about}\n\n"
        "```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n\n"
        "| event | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def _words(event: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", event.__name__).lower()


def _meaning(event: type) -> str:
    assert event.__doc__, event
    return " ".join(event.__doc__.split())
