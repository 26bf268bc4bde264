"""The one event that no controller decided: what a host's receipts said of its node."""

from dataclasses import dataclass
from typing import Final

__all__ = ["REBUILT", "NodeRebuilt"]

REBUILT: Final = "rebuilt:nodes"
"""The stream of these events; no epoch can have this name, since an epoch's has no colon."""


@dataclass(frozen=True, slots=True)
class NodeRebuilt:
    """A node entered a ledger that had been lost.

    `generation` is the target of the last committed receipt, or `absent`; `fence` the highest that
    the host has seen. `receipts` counts the chain that was checked and `head` is the digest of its
    last, "" if there is none. `source` says who showed it: `host`, or `copies` for a host that did
    not answer.
    """

    node: str
    node_key: str
    generation: str
    fence: int
    receipts: int
    head: str
    source: str
