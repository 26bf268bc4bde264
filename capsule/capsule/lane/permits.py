"""How many nodes may be taken out of dispatch now, and why no more.

Invariant: with the permits of this function, taken in one ledger transaction with the hold, the
proved healthy nodes never fall below the floor by the epoch's own doing.

Source: design, section 11, "New permits".
"""

from dataclasses import dataclass

__all__ = ["Availability", "Permits", "count_permits", "explain_permits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """What the fleet has and may miss now, in nodes.

    `healthy` counts nodes that are proved, not held, not unknown, and without a permit out.
    `domain_cap` None is no bound. `width` is the canary's: 1, 2, or `max_unavailable`.
    """

    max_unavailable: int
    outstanding: int
    width: int
    healthy: int
    floor: int
    domain_cap: int | None
    domain_down: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Permits:
    """How many permits there are now; `terms` are the numbers that `count` is the least of."""

    count: int
    terms: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """Return the arithmetic as an operator reads it."""
        terms = ", ".join(f"{text} = {value}" for text, value in self.terms)
        return f"min({terms})"


def count_permits(now: Availability, *, serving: bool) -> int:
    """Return the permits for one more node, which is `serving` or not; never below 0.

    A node that doesn't serve takes from `max_unavailable` only: to install a new fleet, and to fix
    a broken one forward, costs no availability.
    """
    count = min(now.width, now.max_unavailable) - now.outstanding
    if serving:
        count = min(count, now.healthy - now.floor)
        if now.domain_cap is not None:
            count = min(count, now.domain_cap - now.domain_down)
    return max(count, 0)


def explain_permits(now: Availability, *, serving: bool) -> Permits:
    """Return the same number with the arithmetic that gave it."""
    width = min(now.width, now.max_unavailable)
    terms = [(f"{width} may be out - {now.outstanding} out", width - now.outstanding)]
    if serving:
        terms.append((f"{now.healthy} proved healthy - floor {now.floor}", now.healthy - now.floor))
        if now.domain_cap is not None:
            terms.append(
                (
                    f"domain cap {now.domain_cap} - {now.domain_down} down",
                    now.domain_cap - now.domain_down,
                )
            )
    return Permits(count=count_permits(now, serving=serving), terms=tuple(terms))
