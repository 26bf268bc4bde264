"""The default dispatcher: the ledger's own holds, for a fleet without a hub or hooks.

The hold of an epoch is a row that was written in the transaction that took the permit, and whoever
gives work to nodes reads it there. So it is in force before it is asked for, and nothing has to be
waited for; how many tasks still run is nobody's knowledge here.
"""

from collections.abc import Callable

from capsule.lane.ports import HoldReport

__all__ = ["LedgerDispatch"]


class LedgerDispatch:
    """Implement `Dispatch`. `serving` says what the epoch knows of a node."""

    def __init__(
        self, *, hear: Callable[[HoldReport], None], serving: Callable[[str], bool]
    ) -> None:
        self._hear = hear
        self._serving = serving

    def hold(self, node: str, turn: int, *, fence: int) -> None:
        """Acknowledge the hold that the ledger has."""
        del fence
        self._report(node, turn, held=True)

    def release(self, node: str, turn: int, *, fence: int) -> None:
        """Acknowledge the release; the row goes with the permit."""
        del fence
        self._report(node, turn, held=False)

    def _report(self, node: str, turn: int, *, held: bool) -> None:
        self._hear(
            HoldReport(
                node=node,
                turn=turn,
                held=held,
                busy=0,
                serving=self._serving(node),
                heartbeat_age_ms=0,
                credential_ms=None,
            )
        )
