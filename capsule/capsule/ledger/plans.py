"""The plans that epochs were started with, checked against the digest that their event names."""

from sqlalchemy import Connection, select

from capsule.lane.events import Started
from capsule.lane.plan import RolloutPlan, decode_plan
from capsule.ledger.codec import decode_event
from capsule.ledger.rebuilt import REBUILT
from capsule.ledger.tables import events, plans
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Refused

__all__ = ["epochs", "plan_of"]


def epochs(connection: Connection) -> tuple[str, ...]:
    """Return every epoch that was ever started, by name."""
    found = select(events.c.stream).where(events.c.stream != REBUILT).distinct()
    return tuple(connection.execute(found.order_by(events.c.stream)).scalars())


def plan_of(connection: Connection, stream: str) -> RolloutPlan:
    """Return the plan of an epoch.

    Raises:
        Refused: `epoch-unknown` if it was never started; `ledger-damaged` if its first event is
            another, or its plan is gone or not the one that the event names.
    """
    first = connection.execute(
        select(events.c.body).where(events.c.stream == stream, events.c.seq == 1)
    ).scalar_one_or_none()
    if first is None or stream == REBUILT:
        raise Refused("epoch-unknown", "no epoch has this name", got=stream)
    where = f"{stream}, event 1"
    started = decode_event(first)
    if not isinstance(started, Started):
        raise Refused(
            "ledger-damaged", "an epoch begins with another event", expected="Started",
            got=type(started).__name__, where=where,
        )  # fmt: skip
    body = connection.execute(
        select(plans.c.body).where(plans.c.digest == started.plan)
    ).scalar_one_or_none()
    if body is None:
        raise Refused("ledger-damaged", "the plan is gone", expected=started.plan, where=where)
    digest = sha256_text(body.encode())
    if digest != started.plan:
        raise Refused(
            "ledger-damaged", "a plan differs from its digest", expected=started.plan, got=digest,
            where=where,
        )  # fmt: skip
    plan = decode_plan(body.encode(), where=f"the plan of {stream}")
    if plan.epoch != stream:
        raise Refused(
            "ledger-damaged", "a plan is of another epoch", expected=stream, got=plan.epoch,
            where=where,
        )  # fmt: skip
    return plan
