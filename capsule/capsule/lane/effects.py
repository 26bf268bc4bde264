"""What follows from a recorded event. An effect exists only because its event is durable."""

from typing import NamedTuple

__all__ = ["AskHost", "Effect", "PlaceHold", "ReleaseHold", "SendConfirm", "SendOrder"]


class PlaceHold(NamedTuple):
    """Tell the dispatcher to give the node no more work, and ask what still runs."""

    node: str
    turn: int


class ReleaseHold(NamedTuple):
    """Tell the dispatcher that the epoch's hold is over."""

    node: str
    turn: int


class SendOrder(NamedTuple):
    """Send the node's order, or send it again under the same op id."""

    node: str
    op_id: str


class SendConfirm(NamedTuple):
    """Accept the node's proof."""

    node: str
    op_id: str
    proof: str


class AskHost(NamedTuple):
    """Fence the node's host and ask what it knows of the op."""

    node: str
    op_id: str


Effect = PlaceHold | ReleaseHold | SendOrder | SendConfirm | AskHost
