"""What every machine of a rollout has in common: a table, and a refusal that changes nothing."""

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["IllegalTransition", "advance"]

State = TypeVar("State")


class IllegalTransition(AssertionError):
    """An event met a state that decided against it: our own mistake, never a user's."""


def advance(table: Mapping[tuple[State, type], State], state: State, event: object) -> State:
    """Return the state that `table` gives for `event`.

    Raises:
        IllegalTransition: if the table has no row for the pair.
    """
    following = table.get((state, type(event)))
    if following is None:
        raise IllegalTransition(f"{type(event).__name__} in state {state}")
    return following
