"""Virtual time and an unreliable network: everything that happens is one entry of one heap.

A world is made from a seed and nothing else, so that a failing run is repeated by its number.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

__all__ = ["Network", "World"]


class World:
    """The heap, the clock and the dice. `now` counts milliseconds from 0."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._counter = 0

    def now_ms(self) -> int:
        return self.now

    def at(self, time_ms: int, act: Callable[..., None], *arguments: Any) -> None:
        """Have `act` called at `time_ms`; what is due at the same moment keeps its order."""
        self._counter += 1
        heappush(self._heap, (max(time_ms, self.now), self._counter, act, arguments))

    def after(self, delay_ms: int, act: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_ms, act, *arguments)

    def step(self) -> bool:
        """Do the next thing; say whether there was one."""
        if not self._heap:
            return False
        self.now, _, act, arguments = heappop(self._heap)
        self.events += 1
        act(*arguments)
        return True


@dataclass(slots=True, kw_only=True)
class Network:
    """What befalls a message while faults last: loss, delay, doubling; order is kept by nobody.

    `dead` maps a name to the moment until which nothing reaches it or comes from it.
    """

    world: World
    faults_until_ms: int
    drop: float
    double: float
    delay_ms_max: int
    dead: dict[str, int]

    def send(self, peer: str, act: Callable[..., None], *arguments: Any) -> None:
        """Carry a message to or from `peer`; it arrives never, once or twice."""
        world = self.world
        if self.dead.get(peer, 0) > world.now:
            return
        dice = world.random.random
        if world.now >= self.faults_until_ms:
            world.after(20 + int(30 * dice()), act, *arguments)
            return
        if dice() < self.drop:
            return
        delay = int(20 + self.delay_ms_max * dice() ** 6)
        world.after(delay, act, *arguments)
        if dice() < self.double:
            world.after(delay + int(self.delay_ms_max * dice()), act, *arguments)
