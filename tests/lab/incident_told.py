"""The object that the incident prints, made from what a run left; and what it must say to pass."""

import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lab.incident_measured import Fields, measure, pair_ms, window_ms
from lab.incident_outside import Outside
from sim.incident import TTL_MS, run_old
from sim.old_algorithm import Trouble

__all__ = ["Evidence", "Run", "told"]

CANARIES_MIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was done to a node, and whether it may commit all the same."""

    done: str
    may_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that a run left. `first` is the report before lanes are resumed, `last` after."""

    permits: int
    evidence: Mapping[str, Evidence]
    outside: Outside
    staged: Fields
    preflight: Fields
    first: Fields
    last: Fields
    events: list[Fields]
    receipts: list[Fields]
    resumed: list[str]
    code: int
    wall_s: float
    timeout_ms: int
    window_bound_s: float
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]
    serving: Mapping[str, str]
    old_trouble: tuple[str, str, str]

    @property
    def bad(self) -> set[str]:
        """The nodes that can't commit."""
        return {node for node, item in self.evidence.items() if not item.may_commit}

    def states(self, report: Fields) -> dict[str, str]:
        """Return each node's state in a report."""
        return {node: str(item["state"]) for node, item in report["nodes"].items()}

    def of_class(self, name: str) -> list[str]:
        """Return the nodes that preflight put into a class."""
        nodes = self.preflight["nodes"].items()
        return sorted(node for node, item in nodes if item["class"] == name)


def told(run: Run) -> dict[str, Any]:
    """Return the object; `failed` names every demand that it does not meet."""
    states = run.states(run.last)
    committed = [node for node, state in states.items() if state == "committed"]
    shown = [node for node, state in states.items() if state in {"held", "skipped", "unknown"}]
    longest = run.outside.longest()
    outages = [longest[node] for node in committed]
    windows = [window_ms(receipt) for receipt in run.receipts if receipt["result"] == "committed"]
    restores = [window_ms(receipt) for receipt in run.receipts if receipt["result"] != "committed"]
    found: dict[str, Any] = {
        "nodes": len(run.serving),
        "committed": run.first["committed"],
        "committed_after_resume": run.last["committed"],
        "held": sorted(node for node, state in states.items() if state == "held"),
        "skipped": sorted(node for node, state in states.items() if state == "skipped"),
        "quarantined": run.of_class("repairable"),
        "unreachable": run.of_class("unreachable"),
        "identities_lost": sum(run.after.get(node) != who for node, who in run.before.items()),
        "permits": run.permits,
        "out_of_service_max": run.outside.out_max,
        "outage_median_s": round(statistics.median(outages), 3) if outages else None,
        "outage_max_s": round(max(outages, default=0.0), 3),
        "window_max_s": round(max(longest.values(), default=0.0), 3),
        "window_bound_s": run.window_bound_s,
        "wall_s": round(run.wall_s, 1),
        "exit_code": run.code,
        "old_algorithm": _old(run),
        "windows": {
            "window_max_s": "seen from outside: last good answer to first good answer",
            "receipts_max_s": _seconds(windows),
            "receipts_max_s_is": "signed by the hosts: stop to proved, its soak included",
            "receipts": len(windows),
            "restored_at_least_s": _seconds(restores),
            "restored_at_least_s_is": "signed by the hosts: steps that failed are not in a receipt",
        },
        "sample_ms": round(run.outside.sample_ms()),
        "out_of_service_nodes": list(run.outside.out_nodes_max),
        "canaries": _canaries(run),
        "unknown_before_resume": run.first["unknown"],
        "lanes_resumed": run.resumed,
        "evidence": {
            node: _evidence(run, node, states)
            for node in (*run.evidence, *(n for n in shown if n not in run.evidence))
        },
        "serving": dict(run.serving),
        "load": [round(value, 1) for value in os.getloadavg()],
    }
    found["failed"] = list(_failures(run, found, committed))
    found["passed"] = not found["failed"]
    return found


def _old(run: Run) -> dict[str, Any]:
    """Return what the old transaction makes of this fleet, at the durations of this run."""
    measured = measure(
        staged=run.staged, events=run.events, receipts=run.receipts, timeout_ms=run.timeout_ms
    )
    drifted, frozen, times_out = run.old_trouble
    trouble = Trouble(drifted=drifted, frozen=frozen, times_out=times_out)
    numbers = run_old(tuple(run.serving), trouble, measured.costs())
    return {"measured_ms": asdict(measured), "ttl_s": TTL_MS // 1000, **numbers}


def _canaries(run: Run) -> list[str]:
    """Return the nodes that were taken as canaries, in order."""
    taken = [e["node"] for e in run.events if e["event"] == "HoldTaken" and e["canary"]]
    return list(dict.fromkeys(taken))


def _evidence(run: Run, node: str, states: Mapping[str, str]) -> dict[str, str]:
    """Return what was done to a node, what became of it, and the words for it."""
    item = run.evidence.get(node, Evidence(done="nothing", may_commit=True))
    finding = run.preflight["nodes"][node]
    if node not in states:
        said = [*finding["problems"], *finding["disagreements"], *finding["notes"]]
        return {"done": item.done, "state": finding["class"], "said": "; ".join(said)}
    said = [str(run.last["nodes"][node]["reason"])]
    said += [r["reason"] for r in run.receipts if r["result"] != "committed" and r["node"] == node]
    heard = pair_ms(run.events, "StopIntended", "StopSeen").get(node)
    if states[node] == "committed" and heard is not None:
        said.append(f"ordered, first heard {heard / 1000:.1f} s later")
    return {
        "done": item.done, "state": states[node], "said": "; ".join(text for text in said if text)
    }  # fmt: skip


def _failures(run: Run, found: Mapping[str, Any], committed: list[str]) -> Iterator[str]:
    """Yield every demand that is not met, in words."""
    for node in sorted(set(run.serving) - run.bad - set(committed)):
        yield f"{node} is healthy and was not committed"
    early = {node for node, state in run.states(run.first).items() if state == "committed"}
    lanes = {node: str(item["lane"]) for node, item in run.first["nodes"].items()}
    for node in sorted(set(committed) - early):
        if lanes[node] not in run.resumed:
            yield f"{node} needed an operator, but its lane was not stopped"
    for node in committed:
        if run.serving[node] != "2":
            yield f"{node} is committed and serves {run.serving[node] or 'nothing'}"
    for node in sorted(run.bad & set(committed)):
        yield f"{node} is broken and was committed"
    for node in sorted(run.bad & set(found["canaries"])):
        yield f"canary {node} is broken"
    # A node that is taken before the last canary has committed is one too.
    if len(found["canaries"]) < CANARIES_MIN or not set(found["canaries"]) <= early:
        yield f"the canaries were {', '.join(found['canaries'])}, not all of them committed"
    if found["out_of_service_max"] > run.permits:
        yield f"{found['out_of_service_max']} were out of service, {run.permits} may be"
    if found["identities_lost"] or set(run.before) != set(run.after):
        yield f"{found['identities_lost']} identities are lost"
    for name, value in (("outside", found["window_max_s"]),
                        ("receipts", found["windows"]["receipts_max_s"]),
                        ("restores", found["windows"]["restored_at_least_s"] or 0)):  # fmt: skip
        if value is None or value > run.window_bound_s:
            yield f"the longest window by {name} is {value} s, above {run.window_bound_s} s"
    shown = {*found["held"], *found["skipped"], *found["quarantined"], *found["unreachable"]}
    for node in sorted(run.bad - shown):
        yield f"{node} is broken and neither held, skipped, quarantined nor unreachable"
    for node, item in found["evidence"].items():
        if not item["said"]:
            yield f"{node} has no evidence"
    if (run.code, found["unknown_before_resume"]) != (6, 1):
        yield f"exit {run.code} with {found['unknown_before_resume']} unknown, not 6 with 1"


def _seconds(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(max(known) / 1000, 3) if known else None
