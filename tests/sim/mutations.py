"""Named mutations of the core and of its ports: each is a rule that somebody could forget.

A mutant is a copy of the modules with one text replaced. It has to be caught by the simulator's
invariants within a bounded number of seeds, or the invariants don't say what they should.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MUTATIONS", "Mutation", "build_mutant", "hunt"]

ROOT = Path(__file__).resolve().parents[2]
LANE = "capsule/capsule/lane"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """Replace `before` by `after`, which must stand in `path` exactly once, for each edit."""

    name: str
    edits: tuple[tuple[str, str, str], ...]
    kind: str = "usual"
    seeds_max: int = 150


def _one(name: str, path: str, before: str, after: str, **options: object) -> Mutation:
    return Mutation(name=name, edits=((path, before, after),), **options)  # type: ignore[arg-type]


MUTATIONS = (
    _one(
        "a hold is placed before its permit is recorded",
        f"{LANE}/driver.py",
        "        assert self._lease is not None\n        try:\n            self._seq",
        "        for early in effects:\n            if isinstance(early, PlaceHold):\n"
        "                self._act(early)\n"
        "        assert self._lease is not None\n        try:\n            self._seq",
    ),
    _one(
        "an order is sent before its intent is recorded",
        f"{LANE}/driver.py",
        "        assert self._lease is not None\n        try:\n            self._seq",
        "        for early in effects:\n            if isinstance(early, SendOrder):\n"
        "                self._act(early)\n"
        "        assert self._lease is not None\n        try:\n            self._seq",
    ),
    Mutation(
        name="permits that are out are not counted",
        edits=(
            (
                f"{LANE}/permits.py",
                "    count = min(now.width, now.max_unavailable) - now.outstanding\n",
                "    count = min(now.width, now.max_unavailable)\n",
            ),
            (
                f"{LANE}/proposals.py",
                "    if tally.outstanding >= min(",
                "    if 0 >= min(",
            ),
        ),
    ),
    Mutation(
        name="a permit returns before the dispatcher acknowledged the release",
        edits=(
            (
                f"{LANE}/decide.py",
                "advance_hold(after.hold, ReleaseBegun())",
                "HoldState.FREE",
            ),
        ),
    ),
    _one(
        "the controller commits on a proof instead of the host's outcome",
        f"{LANE}/proposals.py",
        "            return ProofSeen(node, report.proof)\n",
        "            return CommitSeen(node)\n",
    ),
    _one(
        "adoption does not fence what may have been ordered",
        f"{LANE}/proposals.py",
        "            events.append(ReplyLost(member.name))\n",
        "            stale = member.state is NodeState.STOP_INTENT\n"
        "            events.append((OrderVoid if stale else ReplyLost)(member.name))\n",
    ),
    _one(
        "an order counts as void before it has run out",
        f"{LANE}/proposals.py",
        "if report.closed and not member.touched else None",
        "if not member.touched else None",
    ),
    _one(
        "the floor is rounded down",
        f"{LANE}/plan.py",
        "    return ceil(share_percent * nodes / 100)\n",
        "    return share_percent * nodes // 100\n",
    ),
    Mutation(
        name="the floor is not looked at",
        edits=(
            (
                f"{LANE}/permits.py",
                "        count = min(count, now.healthy - now.floor)\n",
                "",
            ),
            (
                f"{LANE}/proposals.py",
                "        if member.serving and above_floor < 1:\n",
                "        if False:\n",
            ),
        ),
    ),
    _one(
        "a held node counts as proved healthy",
        f"{LANE}/state.py",
        "        and member.state is not NodeState.HELD\n",
        "",
    ),
    _one(
        "domain headroom is ignored",
        f"{LANE}/permits.py",
        "            count = min(count, now.domain_cap - now.domain_down)\n",
        "            pass\n",
    ),
    _one(
        "a failed lane stops the others",
        f"{LANE}/proposals.py",
        "    return state.epoch is EpochState.RUNNING and any(",
        "    return state.epoch is EpochState.RUNNING and not state.failed_lanes and any(",
        kind="one_bad",
    ),
    _one(
        "a failed canary halts nothing",
        f"{LANE}/decide.py",
        "    if member.canary:\n",
        "    if member.canary and False:\n",
    ),
    _one(
        "abort lets nodes that are draining be stopped",
        f"{LANE}/proposals.py",
        '    return (AbortDecided(reason), *_skips(state, None, "aborted"))\n',
        "    return (AbortDecided(reason),)\n",
        kind="abort",
    ),
    _one(
        "a node is stopped with work on it",
        f"{LANE}/proposals.py",
        "    if report.busy:\n",
        "    if report.busy and False:\n",
    ),
    _one(
        "an answer about an older hold counts",
        f"{LANE}/proposals.py",
        "    if report.turn != member.attempts:\n        return ()\n",
        "",
        kind="late",
        seeds_max=600,
    ),
    _one(
        "a node that serves again keeps the permit of a node that was down",
        f"{LANE}/proposals.py",
        "    if report.serving and not member.taken_serving:\n",
        "    if False:\n",
        seeds_max=600,
    ),
    _one(
        "a repeated order has a validity of its own",
        "tests/sim/controller.py",
        "        boot, until = self._sent.setdefault(op_id, (host.boot, valid_until))\n",
        "        boot, until = self._sent[op_id] = (host.boot, valid_until)\n",
        kind="late",
        seeds_max=600,
    ),
    Mutation(
        name="the ledger checks neither fence nor sequence",
        edits=(
            (
                "tests/support/memory_ledger.py",
                "        self._check(lease)\n        recorded =",
                "        recorded =",
            ),
            (
                "tests/support/memory_ledger.py",
                "        if len(recorded) != expected_seq:",
                "        if False:",
            ),
        ),
    ),
    _one(
        "a host obeys an older fence",
        "tests/sim/host.py",
        "        if not self.is_up or fence < self.fence:\n",
        "        if not self.is_up:\n",
        kind="late",
        seeds_max=600,
    ),
    _one(
        "a host keeps no op receipts",
        "tests/sim/host.py",
        "        if op_id not in self.records:\n",
        "        if self.records.get(op_id) not in _OPEN:\n",
    ),
    _one(
        "a host takes a confirm after its outcome",
        "tests/sim/host.py",
        "        takes = self.records.get(op_id) is _S.PROVED and",
        "        takes = self.records.get(op_id) in {_S.PROVED, _S.RESTORING, _S.RESTORED} and",
        kind="late",
        seeds_max=600,
    ),
    _one(
        "an expired heartbeat deletes the identity",
        "tests/sim/hub.py",
        "        self.offline |= silent\n",
        "        self.identities -= silent\n",
    ),
    _one(
        "an epoch with unresolved permits waits for ever",
        f"{LANE}/driver.py",
        "            self._record(propose_park(self.state, reason))\n",
        "            self._stalled_ms = now\n",
    ),
    _one(
        "an op that never ends is waited for",
        f"{LANE}/driver.py",
        "        return now - self._begun.get(member.op_id, now) >= limit_ms\n",
        "        return now < 0 * limit_ms\n",
    ),
    _one(
        "what an op that never ends says again is news",
        f"{LANE}/driver.py",
        "            and self._is_overdue(member, now)\n        ):\n",
        "            and now < 0\n        ):\n",
    ),
    _one(
        "a node that is down takes from the floor",
        f"{LANE}/permits.py",
        "    if serving:\n        count = min(",
        "    if True:\n        count = min(",
        kind="calm_fresh",
    ),
    _one(
        "a host has no dead-man",
        "tests/sim/host.py",
        "        if self.records[op_id] in _DOWN:\n",
        "        if False:\n",
    ),
)


def build_mutant(mutation: Mutation, folder: Path) -> None:
    """Write the changed copy of the modules under `folder`."""
    shutil.copytree(ROOT / LANE, folder / LANE)
    (folder / "capsule/capsule/__init__.py").write_text("")
    shutil.copytree(ROOT / "tests/sim", folder / "tests/sim")
    (folder / "tests/support").mkdir()
    shutil.copy(ROOT / "tests/support/memory_ledger.py", folder / "tests/support")
    (folder / "manifest").symlink_to(ROOT / "manifest")
    (folder / "installer").mkdir()
    for path, before, after in mutation.edits:
        text = (folder / path).read_text()
        assert text.count(before) == 1, f"{mutation.name}: {path} has changed, write it anew"
        (folder / path).write_text(text.replace(before, after))


def hunt(folder: Path, *, kind: str, seeds_max: int, nodes: int) -> dict[str, object]:
    """Run seeds of the tree in `folder` until one breaks an invariant."""
    done = subprocess.run(
        [
            sys.executable,
            str(folder / "tests/sim/run.py"),
            *("--epochs", str(seeds_max), "--nodes", str(nodes), "--kind", kind),
            *("--processes", "1", "--until-broken", "--json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode in {0, 1}, done.stderr
    summary: dict[str, object] = json.loads(done.stdout)
    return summary
