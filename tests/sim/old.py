"""The all-selected serial transaction that `capsule` replaces, re-created to be compared with.

Its rules, each defensible alone: stop every selected node, one after the other, before anything is
installed; download while it is down; on the first failure recover every stopped node, one after the
other; a recovery needs the node's row in the registry; a stopped node can't heartbeat; the registry
deletes rows whose heartbeat is older than the TTL; a command that times out ends the run.
"""

from dataclasses import dataclass, field

__all__ = ["OldFleet", "OldResult", "run_old"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFleet:
    """The fleet of one incident; all times in seconds."""

    nodes: int
    drifted: int
    frozen: int
    timing_out: int
    ttl_s: int
    stop_s: int
    recover_s: int
    ssh_timeout_s: int


@dataclass(slots=True, kw_only=True)
class OldResult:
    """What came of it. An outage that had not ended counts up to the end of the watch."""

    updated: int = 0
    down_at_end: list[int] = field(default_factory=list)
    identities_lost: list[int] = field(default_factory=list)
    most_down_at_once: int = 0
    longest_outage_s: int = 0
    ended_at_s: int = 0
    ended_by: str = ""


def run_old(fleet: OldFleet, *, watched_s: int) -> OldResult:
    """Run the transaction and watch the fleet for `watched_s` seconds in all."""
    result = OldResult()
    now = 0
    stopped_at: dict[int, int] = {}
    back_at: dict[int, int] = {}
    for node in range(fleet.nodes):
        now += fleet.stop_s
        if node == fleet.drifted:
            result.ended_by = f"node {node} has drifted"
            break
        stopped_at[node] = now
    result.most_down_at_once = len(stopped_at)
    for node, since in stopped_at.items():
        if now - since >= fleet.ttl_s:
            # Its row is gone, so nothing knows any more how it was to be recovered.
            continue
        if node in {fleet.frozen, fleet.timing_out}:
            now += fleet.ssh_timeout_s
            result.ended_by = f"node {node} timed out during recovery"
            break
        now += fleet.recover_s
        if now - since < fleet.ttl_s:
            back_at[node] = now
    result.ended_at_s = now
    for node, since in stopped_at.items():
        outage = back_at.get(node, watched_s) - since
        result.longest_outage_s = max(result.longest_outage_s, outage)
        if node not in back_at:
            result.down_at_end.append(node)
        if outage >= fleet.ttl_s:
            result.identities_lost.append(node)
    return result
