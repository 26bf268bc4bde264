"""The hub in virtual time: the gate that gives work, and the registry of identities.

It honours the turns of holds as its Protocol asks, and an expired heartbeat only marks a node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capsule.lane.ports import HoldReport
from sim.world import World

__all__ = ["Hub", "Slot"]


@dataclass(slots=True)
class Slot:
    """One node at the gate. `ended` is the last turn whose release was taken in."""

    turn: int = 0
    ended: int = 0
    held: bool = False
    idle_at: int = 0
    credential_until: int | None = None


class Hub:
    """Gate and registry of one fleet."""

    def __init__(
        self,
        world: World,
        names: list[str],
        *,
        busy_ms_max: int,
        is_serving: Callable[[str], bool],
    ) -> None:
        self.is_serving = is_serving
        self.world = world
        self.busy_ms_max = busy_ms_max
        self.down_until = 0
        self.slots = {name: Slot() for name in names}
        self.identities = set(names)
        self.offline: set[str] = set()
        self.stuck: set[str] = set()

    @property
    def is_down(self) -> bool:
        return self.world.now < self.down_until

    def hold(self, node: str, turn: int, reply: Any) -> None:
        if self.is_down:
            return
        slot = self.slots[node]
        if turn > slot.ended:
            if not slot.held:
                # Work that was given before the hold still has to end.
                busy_ms = int(self.busy_ms_max * self.world.random.random() ** 4)
                slot.idle_at = self.world.now + (10**12 if node in self.stuck else busy_ms)
            slot.held = True
            slot.turn = turn
        self._say(node, turn, reply)

    def release(self, node: str, turn: int, reply: Any) -> None:
        if self.is_down:
            return
        slot = self.slots[node]
        slot.ended = max(slot.ended, turn)
        if slot.held and slot.turn <= turn:
            slot.held = False
        self._say(node, turn, reply)

    def expire(self, silent: set[str]) -> None:
        """Let the TTL of silent nodes run out: they count as offline, and stay known."""
        self.offline |= silent

    def is_idle(self, node: str) -> bool:
        slot = self.slots[node]
        return slot.held and slot.idle_at <= self.world.now

    def _say(self, node: str, turn: int, reply: Any) -> None:
        slot = self.slots[node]
        now = self.world.now
        reply(
            HoldReport(
                node=node,
                turn=turn,
                held=slot.held and slot.turn == turn,
                busy=int(slot.idle_at > now),
                serving=self.is_serving(node),
                heartbeat_age_ms=0,
                credential_ms=None
                if slot.credential_until is None
                else slot.credential_until - now,
            )
        )
