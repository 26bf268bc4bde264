"""What an inventory says otherwise than the frozen route. Pure; nothing is looked up.

A rollout goes by the route and by nothing else, so drift is shown and changes nothing: a node that
is gone from the inventory is drift too, and never a deletion.

Source: design, sections 2 (R3) and 11.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from capsule.inventory import Fleet
from capsule.names import as_inventoried
from capsule_manifest.route import Route, RouteNode

__all__ = ["Drift", "drift_of"]

_FIELDS = ("role", "platform", "domain", "lane", "endpoint", "vars")
_RULES = ("max_unavailable", "floor", "guard_min", "hub")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One difference. `where` is a node with a field, or a rule of the fleet."""

    where: str
    frozen: str
    inventory: str


def drift_of(route: Route, fleet: Fleet) -> tuple[Drift, ...]:
    """Return every difference, rules first, then nodes by name."""
    return tuple(_rules(route, fleet)) + tuple(_nodes(route, fleet))


def _rules(route: Route, fleet: Fleet) -> Iterator[Drift]:
    for name in _RULES:
        yield from _compare(name, getattr(route, name), getattr(fleet, name))
    yield from _compare("waivers", route.waivers, fleet.waivers)


def _nodes(route: Route, fleet: Fleet) -> Iterator[Drift]:
    for name in sorted({*route.nodes, *fleet.nodes}):
        frozen, now = _as_inventoried(route.nodes.get(name)), fleet.nodes.get(name)
        if frozen is None or now is None:
            yield Drift(
                where=f"nodes.{name}",
                frozen="absent" if frozen is None else "present",
                inventory="absent" if now is None else "present",
            )
            continue
        for field in _FIELDS:
            yield from _compare(
                f"nodes.{name}.{field}", getattr(frozen, field), getattr(now, field)
            )


def _as_inventoried(node: RouteNode | None) -> RouteNode | None:
    # What a name leads to by now is not asked for: looking it up is what freezing has ended.
    return node and replace(node, endpoint=as_inventoried(node.endpoint))


def _compare(where: str, frozen: object, inventory: object) -> Iterator[Drift]:
    if frozen != inventory:
        yield Drift(where=where, frozen=str(frozen), inventory=str(inventory))
