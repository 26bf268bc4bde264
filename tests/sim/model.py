"""Explore every state of a small fleet under the five rules of adoption, or with one rule removed.

The model says less than the simulator and covers all of what it says: messages arrive at any time,
in any order and again and again; every controller that ever existed may still be running and send
what it once recorded; a dead-man may fire whenever a node isn't committed. There is no time in it.

Nodes are interchangeable, so a state keeps them as a sorted tuple: one state stands for all its
permutations. A violation comes with its shortest history.

Run it: `python tests/sim/model.py`.

Source: design, section 11, "Five rules, each necessary".
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import NamedTuple

__all__ = ["RULES", "Exploration", "Host", "Rules", "Size", "Status", "explore"]


class Host(IntEnum):
    """What one host runs. `PROVED` is the new release without an outcome."""

    OLD = 0
    DOWN = 1
    PROVED = 2
    COMMITTED = 3
    RESTORED = 4


class Status(IntEnum):
    """What the ledger knows of one node."""

    UNTOUCHED = 0
    INTENDED = 1
    PROVED = 2
    COMMITTED = 3
    HELD = 4
    SKIPPED = 5


_WITH_PERMIT = {Status.INTENDED, Status.PROVED}
_SERVING = {Host.OLD, Host.PROVED, Host.COMMITTED, Host.RESTORED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The five rules. With all of them the model has no violation; with one removed it has."""

    intent_before_effect: bool = True
    fence_in_the_append: bool = True
    fence_at_the_node: bool = True
    unresolved_fenced_on_adopt: bool = True
    op_receipts: bool = True


RULES = tuple(field.name for field in fields(Rules))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the explored fleet is. `fences` is how many controllers there may have been."""

    nodes: int
    floor: int
    max_unavailable: int
    fences: int


class Node(NamedTuple):
    """One node from both sides. Masks have one bit for each fence, the lowest for fence 1.

    `recorded` says whose intents a controller remembers, `ordered` and `confirmed` which messages
    are on their way, for good. `unfenced` says that an adopter has not heard the host yet.
    """

    host: Host
    fence: int
    status: Status
    owner: int
    recorded: int
    ordered: int
    confirmed: int
    unfenced: bool


class State(NamedTuple):
    """A fleet and its ledger. `fence` is the newest controller's."""

    fence: int
    aborted: bool
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What was found: the shortest history to each kind of violation, and what can't end.

    `stuck` counts states from which no continuation brings every node to an end.
    """

    states: int
    is_complete: bool
    violations: dict[str, tuple[str, ...]]
    stuck: int


Step = tuple[str, State]


def _bit(fence: int) -> int:
    return 1 << (fence - 1)


def _with(state: State, index: int, node: Node) -> State:
    nodes = [*state.nodes]
    nodes[index] = node
    return state._replace(nodes=tuple(sorted(nodes)))


def _controller_steps(state: State, rules: Rules, size: Size) -> Iterator[Step]:
    """What a controller, the newest or an older one, does of its own accord."""
    out = sum(node.status in _WITH_PERMIT for node in state.nodes)
    has_permit = out < min(size.max_unavailable, size.nodes - size.floor)
    for fence in range(1, state.fence + 1):
        may_append = fence == state.fence or not rules.fence_in_the_append
        may_take = may_append and not state.aborted and has_permit
        for index, node in enumerate(state.nodes):
            bit = _bit(fence)
            if may_take and node.status is Status.UNTOUCHED:
                taken = node._replace(
                    status=Status.INTENDED, owner=fence, recorded=node.recorded | bit
                )
                yield f"intend@{fence}", _with(state, index, taken)
                if not rules.intent_before_effect:
                    sent = node._replace(ordered=node.ordered | bit)
                    yield f"order-unrecorded@{fence}", _with(state, index, sent)
            if node.recorded & bit and not node.ordered & bit:
                sent = node._replace(ordered=node.ordered | bit)
                yield f"order@{fence}", _with(state, index, sent)


def _newest_steps(state: State, rules: Rules, size: Size) -> Iterator[Step]:
    """What only the newest controller does: hear hosts, conclude, abort, be replaced."""
    fence = state.fence
    for index, node in enumerate(state.nodes):
        if node.unfenced:
            heard = node._replace(fence=max(node.fence, fence), unfenced=False)
            yield f"fence@{fence}", _with(state, index, heard)
        elif node.status in _WITH_PERMIT:
            for name, after in _conclusions(node, fence):
                yield f"{name}@{fence}", _with(state, index, after)
    if not state.aborted:
        skipped = (
            node._replace(status=Status.SKIPPED) if node.status is Status.UNTOUCHED else node
            for node in state.nodes
        )
        yield f"abort@{fence}", state._replace(aborted=True, nodes=tuple(sorted(skipped)))
    if fence < size.fences:
        nodes = (
            node._replace(unfenced=rules.unresolved_fenced_on_adopt and node.status in _WITH_PERMIT)
            for node in state.nodes
        )
        yield f"adopt@{fence + 1}", State(fence + 1, state.aborted, tuple(sorted(nodes)))


def _conclusions(node: Node, fence: int) -> Iterator[tuple[str, Node]]:
    """What the ledger learns from one host, by what the host says now."""
    if node.host is Host.COMMITTED:
        yield "commit", node._replace(status=Status.COMMITTED)
    elif node.host is Host.RESTORED:
        yield "hold", node._replace(status=Status.HELD)
    elif node.host is Host.PROVED and node.status is Status.INTENDED:
        yield "see-proof", node._replace(status=Status.PROVED)
    elif node.host is Host.PROVED and not node.confirmed & _bit(fence):
        yield "confirm", node._replace(confirmed=node.confirmed | _bit(fence))
    elif node.host is Host.OLD and node.status is Status.INTENDED and node.owner < fence:
        # Adopted, and the host has no record of the order: it is given up, not sent again.
        yield "void", node._replace(status=Status.SKIPPED)


def _host_steps(state: State, rules: Rules) -> Iterator[Step]:
    """What reaches a host, late or twice, and what a host does by itself."""
    for index, node in enumerate(state.nodes):
        for fence in range(1, state.fence + 1):
            if rules.fence_at_the_node and fence < node.fence:
                continue
            highest = max(node.fence, fence)
            # Without receipts a host can't tell that it has carried out this order before.
            is_new = node.host is Host.OLD or not rules.op_receipts
            if node.ordered & _bit(fence) and is_new and node.host is not Host.DOWN:
                down = node._replace(host=Host.DOWN, fence=highest)
                yield f"stop-by-order@{fence}", _with(state, index, down)
            if node.confirmed & _bit(fence) and node.host is Host.PROVED:
                committed = node._replace(host=Host.COMMITTED, fence=highest)
                yield f"outcome@{fence}", _with(state, index, committed)
        if node.host is Host.DOWN:
            yield "prove", _with(state, index, node._replace(host=Host.PROVED))
        if node.host in {Host.DOWN, Host.PROVED}:
            yield "dead-man", _with(state, index, node._replace(host=Host.RESTORED))


def _violations(state: State, size: Size) -> Iterator[str]:
    if sum(node.host in _SERVING for node in state.nodes) < size.floor:
        yield "below the floor"
    for node in state.nodes:
        if node.host is Host.DOWN and node.status not in _WITH_PERMIT:
            yield f"stopped while {node.status.name.lower()}"
        if node.status is Status.COMMITTED and node.host is not Host.COMMITTED:
            yield "a committed node was disturbed"


def _is_ended(state: State) -> bool:
    return all(node.status > Status.PROVED for node in state.nodes)


def explore(rules: Rules, size: Size, *, states_max: int) -> Exploration:
    """Visit every state that can be reached, or stop after `states_max`."""
    first = State(1, False, (Node(Host.OLD, 0, Status.UNTOUCHED, 0, 0, 0, 0, False),) * size.nodes)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    leads_back: dict[State, list[State]] = {}
    violations: dict[str, tuple[str, ...]] = {}
    waiting = deque([first])
    while waiting and len(came_from) <= states_max:
        state = waiting.popleft()
        for step, after in (
            *_controller_steps(state, rules, size),
            *_newest_steps(state, rules, size),
            *_host_steps(state, rules),
        ):
            leads_back.setdefault(after, []).append(state)
            if after in came_from:
                continue
            came_from[after] = (state, step)
            for violation in _violations(after, size):
                violations.setdefault(violation, _history(came_from, after))
            waiting.append(after)
    return Exploration(
        states=len(came_from),
        is_complete=not waiting,
        violations=violations,
        stuck=len(came_from) - _count_ending(came_from, leads_back) if not waiting else 0,
    )


def _history(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (origin := came_from[state]) is not None:
        state, step = origin
        steps.append(step)
    return tuple(reversed(steps))


def _count_ending(
    came_from: dict[State, tuple[State, str] | None], leads_back: dict[State, list[State]]
) -> int:
    ending = {state for state in came_from if _is_ended(state)}
    waiting = list(ending)
    while waiting:
        for before in leads_back.get(waiting.pop(), ()):
            if before not in ending:
                ending.add(before)
                waiting.append(before)
    return len(ending)


def main() -> None:
    """Print what each variant of the rules does."""
    size = Size(nodes=3, floor=1, max_unavailable=2, fences=2)
    for removed in (None, *RULES):
        rules = replace(Rules(), **{removed: False}) if removed else Rules()
        found = explore(rules, size, states_max=1_500_000)
        print(f"{removed or 'all rules':28} {found.states:8} states, {found.stuck} stuck")
        for violation, history in found.violations.items():
            print(f"    {violation}: {' '.join(history)}")


if __name__ == "__main__":
    main()
