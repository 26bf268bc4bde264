"""How many nodes may be taken out of dispatch now, and why no more.

Invariant: with the permits of this function, taken in one ledger transaction with the hold, the
proved healthy nodes never fall below the floor by the epoch's own doing.

Source: design, section 11, "New permits".
"""

from dataclasses import dataclass

__all__ = ["Availability", "Permits", "count_permits"]


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
    """How many permits there are now, with the arithmetic that gave the number."""

    count: int
    text: str


def count_permits(now: Availability, *, serving: bool) -> Permits:
    """Return the permits for one more node, which is `serving` or not.

    A node that doesn't serve takes from `max_unavailable` only: to install a new fleet, and to fix
    a broken one forward, costs no availability.
    """
    width = min(now.width, now.max_unavailable)
    terms = [(width - now.outstanding, f"{width} allowed out - {now.outstanding} out")]
    if serving:
        terms.append((now.healthy - now.floor, f"{now.healthy} proved healthy - floor {now.floor}"))
        if now.domain_cap is not None:
            terms.append(
                (
                    now.domain_cap - now.domain_down,
                    f"domain cap {now.domain_cap} - {now.domain_down} down",
                )
            )
    count = min(value for value, _ in terms)
    text = "min(" + ", ".join(f"{text} = {value}" for value, text in terms) + f") = {count}"
    return Permits(count=max(count, 0), text=text)
