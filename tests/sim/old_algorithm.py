"""The transaction that capsule replaces, written again from its rules, to be run beside it.

Its rules, each defensible alone:
* all selected nodes are stopped, one after the other, before any is changed;
* what a node needs is downloaded after it was stopped;
* one node that can't be changed undoes the whole transaction;
* recovery goes node by node, needs the node's row in the registry, and ends when SSH times out;
* the registry deletes a node whose heartbeat is older than the TTL.

Nothing here is random: it is a walk through time in milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Costs", "OldFleet", "Trouble", "deploy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a step costs on one node, in milliseconds; the defaults are those of the incident.

    `stage_ms` is the download of what the node needs, `install_ms` from the switch to a service
    that runs. `timeout_ms` is how long a silent SSH peer is waited for. The lab puts in what it
    measured on real hosts.
    """

    stage_ms: int = 60_000
    drain_ms: int = 20_000
    stop_ms: int = 10_000
    install_ms: int = 22_000
    restore_ms: int = 90_000
    timeout_ms: int = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Which nodes are in trouble: one that drifted, one frozen, one that times out once later.

    The frozen one can be stopped by nobody and answers nothing. `times_out` answers until recovery.
    """

    drifted: str
    frozen: str
    times_out: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.drifted, self.frozen, self.times_out)


@dataclass(slots=True)
class OldFleet:
    """The fleet as the registry and the outside see it. `down_since_ms` has the stopped nodes."""

    names: Sequence[str]
    ttl_ms: int
    now_ms: int = 0
    down_since_ms: dict[str, int] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    outage_ms_max: int = 0
    out_at_once_max: int = 0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = set(self.names)

    def wait(self, time_ms: int) -> None:
        """Let time pass; the registry deletes whoever was silent for longer than the TTL."""
        self.now_ms += time_ms
        for name, since_ms in self.down_since_ms.items():
            if self.now_ms - since_ms > self.ttl_ms:
                self.rows.discard(name)

    def stop(self, name: str) -> None:
        self.down_since_ms.setdefault(name, self.now_ms)
        self.out_at_once_max = max(self.out_at_once_max, len(self.down_since_ms))

    def start(self, name: str) -> None:
        self.outage_ms_max = max(self.outage_ms_max, self.now_ms - self.down_since_ms.pop(name))

    def say(self, text: str) -> None:
        self.log.append(f"{self.now_ms // 1000} s: {text}")


def deploy(fleet: OldFleet, trouble: Trouble, costs: Costs) -> bool:
    """Run the transaction; say whether the release was installed."""
    if trouble.frozen in fleet.names:
        fleet.stop(trouble.frozen)  # it is frozen before anybody asks for anything
    for name in fleet.names:
        fleet.wait(costs.timeout_ms if name == trouble.frozen else costs.drain_ms + costs.stop_ms)
        fleet.stop(name)
    fleet.say(f"all {len(fleet.names)} nodes are stopped")
    for name in fleet.names:
        fleet.wait(costs.stage_ms)
        if name in {trouble.drifted, trouble.frozen}:
            fleet.say(f"{name} can't be changed; everything is undone")
            _recover(fleet, trouble, costs)
            return False
        fleet.wait(costs.install_ms)
        fleet.start(name)
        fleet.released.add(name)
    return True


def _recover(fleet: OldFleet, trouble: Trouble, costs: Costs) -> None:
    for name in fleet.names:
        if name == trouble.times_out:
            fleet.wait(costs.timeout_ms)
            fleet.say(f"{name} timed out; recovery ended")
            return
        if name not in fleet.rows:
            fleet.say(f"{name} can't be recovered: the registry has no row of it any more")
            continue
        if name in fleet.released:
            # What runs the new release is taken down again to run the old one.
            fleet.stop(name)
            fleet.released.discard(name)
        fleet.wait(costs.restore_ms)
        if name in fleet.down_since_ms and name != trouble.frozen:
            fleet.start(name)
