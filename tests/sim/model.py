"""An explicit-state model of the five rules that keep late messages harmless.

The rules: intent durable before effect; fence checked inside the ledger append; fence checked at
the node; unresolved nodes fenced on adoption; op receipts on the node. The model explores *every*
order of deliveries (late, repeated, in any order), crashes, adoptions, aborts and dead-men for a
few nodes and controllers, all of which may go on running. With all rules no state is bad; without
any one of them a short counterexample exists, which is how we know that the search can fail.

Outside of the model: time, partitions as such, liveness, forged signatures, lost disks.

Source: design, section 11, "Five rules, each necessary".
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

__all__ = ["Finding", "Model", "Rules", "explore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which of the five rules are in force."""

    intent_before_effect: bool = True
    fence_in_append: bool = True
    fence_at_node: bool = True
    fence_on_adoption: bool = True
    op_receipts: bool = True


class Phase(Enum):
    """What a node's service is, in truth."""

    OLD = "old"
    DOWN = "down"
    NEW = "new"


class Entry(Enum):
    """What the ledger says of a node."""

    UNTOUCHED = "untouched"
    STOP_INTENT = "stop_intent"
    STOPPED = "stopped"
    START_INTENT = "start_intent"
    COMMITTED = "committed"
    HELD = "held"
    SKIPPED = "skipped"


_UNRESOLVED = frozenset({Entry.STOP_INTENT, Entry.STOPPED, Entry.START_INTENT})


class Node(NamedTuple):
    phase: Phase
    fence: int
    has_receipt: bool


class Line(NamedTuple):
    """A node's line in the ledger, and the fence it was written under."""

    entry: Entry
    owner: int


class Message(NamedTuple):
    fence: int
    node: int
    is_stop: bool


class State(NamedTuple):
    """`remembered` is what each controller believes to have intended; zombies keep theirs."""

    nodes: tuple[Node, ...]
    ledger: tuple[Line, ...]
    fence: int
    is_aborted: bool
    messages: frozenset[Message]
    remembered: tuple[frozenset[int], ...]
    unfenced: frozenset[int]


Move = tuple[str, State]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How many states there are, and the shortest way to each kind of bad state."""

    states: int
    is_exhaustive: bool
    counterexamples: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A fleet of `nodes` with a floor, and so many controllers one after the other."""

    rules: Rules
    nodes: int = 2
    floor: int = 1
    controllers: int = 2

    def first(self) -> State:
        return State(
            nodes=(Node(Phase.OLD, 0, has_receipt=False),) * self.nodes,
            ledger=(Line(Entry.UNTOUCHED, 0),) * self.nodes,
            fence=1,
            is_aborted=False,
            messages=frozenset(),
            remembered=(frozenset(),) * (self.controllers + 1),
            unfenced=frozenset(),
        )

    def moves(self, state: State) -> Iterator[Move]:
        """Yield everything that can happen next."""
        for controller in range(1, state.fence + 1):
            yield from self._admissions(state, controller)
            for node in state.remembered[controller]:
                message = Message(controller, node, is_stop=True)
                yield f"c{controller} sends stop {node}", _send(state, message)
        yield from self._current(state)
        yield from self._deliveries(state)
        for index, node in enumerate(state.nodes):
            if node.phase is Phase.DOWN:
                restored = _with_node(state, index, node._replace(phase=Phase.OLD))
                yield f"dead-man restores {index}", restored

    def _admissions(self, state: State, controller: int) -> Iterator[Move]:
        may_write = controller == state.fence or not self.rules.fence_in_append
        out = sum(line.entry in _UNRESOLVED for line in state.ledger)
        if not may_write or state.is_aborted or out >= self.nodes - self.floor:
            return
        for index, line in enumerate(state.ledger):
            if line.entry is not Entry.UNTOUCHED:
                continue
            if not self.rules.intent_before_effect:
                message = Message(controller, index, is_stop=True)
                yield f"c{controller} stops {index} unrecorded", _send(state, message)
            remembered = list(state.remembered)
            remembered[controller] |= {index}
            recorded = _with_line(state, index, Line(Entry.STOP_INTENT, controller))
            yield (
                f"c{controller} intends {index}",
                recorded._replace(remembered=tuple(remembered)),
            )

    def _current(self, state: State) -> Iterator[Move]:
        """Yield what the newest controller does beside admitting nodes."""
        fence = state.fence
        for index, node in enumerate(state.nodes):
            if index in state.unfenced:
                fenced = _with_node(state, index, node._replace(fence=max(node.fence, fence)))
                yield (
                    f"c{fence} fences {index}",
                    fenced._replace(unfenced=state.unfenced - {index}),
                )
            else:
                yield from self._resolve(state, index)
        if not state.is_aborted:
            ledger = tuple(
                Line(Entry.SKIPPED, fence) if line.entry is Entry.UNTOUCHED else line
                for line in state.ledger
            )
            yield "abort", state._replace(ledger=ledger, is_aborted=True)
        if fence < self.controllers:
            unresolved = frozenset(
                index for index, line in enumerate(state.ledger) if line.entry in _UNRESOLVED
            )
            unfenced = unresolved if self.rules.fence_on_adoption else frozenset()
            yield f"c{fence + 1} adopts", state._replace(fence=fence + 1, unfenced=unfenced)

    def _resolve(self, state: State, index: int) -> Iterator[Move]:
        """Yield what the newest controller concludes from a node that it may trust."""
        (entry, owner), node, fence = state.ledger[index], state.nodes[index], state.fence
        following: list[Entry] = []
        if entry is Entry.STOP_INTENT:
            if node.phase is Phase.DOWN:
                following.append(Entry.STOPPED)
            elif node.phase is Phase.OLD and node.has_receipt:
                following.append(Entry.HELD)
            elif node.phase is Phase.OLD and owner < fence:
                following.append(Entry.SKIPPED)
        elif entry is Entry.STOPPED:
            following.append(Entry.START_INTENT)
        elif entry is Entry.START_INTENT:
            message = Message(fence, index, is_stop=False)
            yield f"c{fence} sends start {index}", _send(state, message)
            if node.phase is Phase.NEW:
                following.append(Entry.COMMITTED)
            elif node.phase is Phase.OLD:
                following.append(Entry.HELD)
        for after in following:
            yield (
                f"c{fence} records {index} {after.value}",
                _with_line(state, index, Line(after, fence)),
            )

    def _deliveries(self, state: State) -> Iterator[Move]:
        """Yield every message that was ever sent, arriving now, once more."""
        for fence, index, is_stop in state.messages:
            node = state.nodes[index]
            if self.rules.fence_at_node and fence < node.fence:
                continue
            raised = node._replace(fence=max(node.fence, fence))
            done_before = self.rules.op_receipts and node.has_receipt
            if is_stop and node.phase is not Phase.DOWN and not done_before:
                stopped = raised._replace(phase=Phase.DOWN, has_receipt=True)
                yield f"stop of c{fence} reaches {index}", _with_node(state, index, stopped)
            elif not is_stop and node.phase is Phase.DOWN:
                started = raised._replace(phase=Phase.NEW)
                yield f"start of c{fence} reaches {index}", _with_node(state, index, started)

    def faults(self, state: State) -> Iterator[str]:
        """Yield what is bad about a state."""
        down = sum(node.phase is Phase.DOWN for node in state.nodes)
        if down > self.nodes - self.floor:
            yield "floor broken"
        for node, line in zip(state.nodes, state.ledger, strict=True):
            if line.entry is Entry.SKIPPED and node.phase is Phase.DOWN:
                yield "aborted node stopped"
            if line.entry is Entry.COMMITTED and node.phase is not Phase.NEW:
                yield "committed node disturbed"
            if line.entry is Entry.HELD and node.phase is Phase.DOWN:
                yield "held node stopped"


def _with_node(state: State, index: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:index], node, *state.nodes[index + 1 :]))


def _with_line(state: State, index: int, line: Line) -> State:
    return state._replace(ledger=(*state.ledger[:index], line, *state.ledger[index + 1 :]))


def _send(state: State, message: Message) -> State:
    return state._replace(messages=state.messages | {message})


def explore(model: Model, *, states_max: int = 1_000_000) -> Finding:
    """Visit every state, nearest first; stop early only at `states_max`."""
    first = model.first()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    ends: dict[str, State] = {}
    while waiting and len(came_from) < states_max:
        state = waiting.popleft()
        for move, following in model.moves(state):
            if following in came_from:
                continue
            came_from[following] = (state, move)
            waiting.append(following)
            for fault in model.faults(following):
                ends.setdefault(fault, following)
    return Finding(
        states=len(came_from),
        is_exhaustive=not waiting,
        counterexamples={fault: _way_to(came_from, end) for fault, end in ends.items()},
    )


def _way_to(came_from: dict[State, tuple[State, str] | None], end: State) -> tuple[str, ...]:
    moves: list[str] = []
    step = came_from[end]
    while step is not None:
        moves.append(step[1])
        step = came_from[step[0]]
    return tuple(reversed(moves))
