"""The arithmetic that compares a node's worst stopped window with what the node can live through.

Nothing here has a term in the number of nodes: a window is bounded by the node's own dead-man, not
by a controller's progress. Only the estimated length of an epoch grows with the fleet, and that is
compared with credentials, never with liveness.

All times are milliseconds.

Source: design, section 11, "Budget".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Final

from capsule_manifest.errors import Refused

__all__ = [
    "MARGIN_PERCENT",
    "Budget",
    "Liveness",
    "Step",
    "Verdict",
    "check_node",
    "check_plan_length",
    "estimate_length_ms",
    "judge_node",
    "restore_bound_ms",
    "step_bound_ms",
]

MARGIN_PERCENT: Final = 115


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one epoch. The defaults hang together: `judge_node` passes with them.

    `d1_ms` is from stop to proved, `d2_ms` from proved to confirmed, both kept by the host.
    `restore_ms` bounds the host's own restore. `skew_ms` bounds how far two clocks drift apart in
    one window.
    """

    ttl_ms: int = 1_800_000
    heartbeat_ms: int = 30_000
    skew_ms: int = 5_000
    renew_lead_ms: int = 300_000
    d1_ms: int = 120_000
    d2_ms: int = 120_000
    restore_ms: int = 110_000
    drain_ms: int = 300_000

    @property
    def window_ms(self) -> int:
        """Return W: the longest that a node is away before it is proved or restored."""
        return max(self.d1_ms, self.d2_ms) + self.restore_ms

    @property
    def op_ms(self) -> int:
        """Return the longest from stop to the host's outcome carried out."""
        return self.d1_ms + self.d2_ms + self.restore_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """What is known of one node's clocks. `credential_ms` None is a credential that never ends."""

    node: str
    heartbeat_age_ms: int
    credential_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a window: so many attempts of so long, with pauses and a bounded connect."""

    attempts: int
    timeout_ms: int
    backoff_ms: int
    connect_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a node may be stopped, with the arithmetic; `error_id` is empty if it may."""

    error_id: str
    text: str


def step_bound_ms(step: Step) -> int:
    """Return S = attempts x time-out + back-off between them + connect bound."""
    return step.attempts * step.timeout_ms + (step.attempts - 1) * step.backoff_ms + step.connect_ms


def restore_bound_ms(*, kill_ms: int, stop_ms: int, reload_ms: int, start_ms: int) -> int:
    """Return R, from the parts that a dead-man's restore consists of."""
    return kill_ms + stop_ms + reload_ms + start_ms


def judge_node(budget: Budget, liveness: Liveness) -> Verdict:
    """Say whether the node outlives its own window, at this moment.

    Decided when the plan is made and again when the node is drained, since a drain takes time.
    """
    lead = budget.skew_ms + budget.heartbeat_ms
    need = -(-MARGIN_PERCENT * budget.window_ms // 100) + lead
    have = budget.ttl_ms - liveness.heartbeat_age_ms
    text = (
        f"1.15 x {_s(budget.window_ms)} + skew {_s(budget.skew_ms)} + heartbeat "
        f"{_s(budget.heartbeat_ms)} = {_s(need)} against TTL {_s(budget.ttl_ms)} - age "
        f"{_s(liveness.heartbeat_age_ms)} = {_s(have)}"
    )
    if need > have:
        return Verdict(error_id="window-above-ttl", text=text)
    if liveness.credential_ms is None:
        return Verdict(error_id="", text=text)
    # A credential has to outlive the confirm too, and the restore after a late one.
    need = -(-MARGIN_PERCENT * budget.op_ms // 100) + lead
    have = liveness.credential_ms - budget.renew_lead_ms
    text = (
        f"1.15 x {_s(budget.op_ms)} + skew {_s(budget.skew_ms)} + heartbeat "
        f"{_s(budget.heartbeat_ms)} = {_s(need)} against credential "
        f"{_s(liveness.credential_ms)} - renewal {_s(budget.renew_lead_ms)} = {_s(have)}"
    )
    return Verdict(error_id="credential-ends-inside" if need > have else "", text=text)


def check_node(budget: Budget, liveness: Liveness) -> None:
    """Refuse a node that would not outlive its window.

    Raises:
        Refused: `window-above-ttl`, `credential-ends-inside`.
    """
    verdict = judge_node(budget, liveness)
    if verdict.error_id:
        raise Refused(
            verdict.error_id,
            "a node would not outlive its own stopped window",
            expected="the left side not above the right",
            got=verdict.text,
            where=liveness.node,
        )


def estimate_length_ms(budget: Budget, *, nodes: int, max_unavailable: int) -> int:
    """Return how long an epoch takes at most if every node uses its whole budget.

    One canary, then two at once, then `max_unavailable` at once.
    """
    rounds = min(nodes, 1) + ceil(min(max(nodes - 1, 0), 2) / min(2, max_unavailable))
    rounds += ceil(max(nodes - 3, 0) / max_unavailable)
    return rounds * (budget.drain_ms + budget.op_ms)


def check_plan_length(
    budget: Budget, livenesses: Iterable[Liveness], *, nodes: int, max_unavailable: int
) -> None:
    """Refuse a plan that takes longer than a credential lives, and list what to rotate first.

    Raises:
        Refused: `credential-ends-first`.
    """
    length = estimate_length_ms(budget, nodes=nodes, max_unavailable=max_unavailable)
    ending = sorted(
        (liveness.credential_ms, liveness.node)
        for liveness in livenesses
        if liveness.credential_ms is not None
        and liveness.credential_ms - budget.renew_lead_ms < length
    )
    if ending:
        raise Refused(
            "credential-ends-first",
            "the epoch may take longer than credentials of its nodes live",
            expected=f"credential - renewal {_s(budget.renew_lead_ms)} >= length {_s(length)}",
            got=", ".join(f"{node} {_s(remaining)}" for remaining, node in ending),
            where=f"limiting node {ending[0][1]}",
        )


def _s(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
