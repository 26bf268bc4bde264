"""One epoch of fifty nodes at every stage, for the golden screens. Run it to write them anew."""

from pathlib import Path

from capsule.lane.budget import Budget
from capsule.lane.decide import with_consequences
from capsule.lane.epoch import AbortDecided, Adopted, Ended, Parked, Paused
from capsule.lane.events import Event, HoldReturned, Started
from capsule.lane.lane import LaneResumed, LaneSkipped
from capsule.lane.node import (
    CommitSeen,
    HoldSeen,
    HoldTaken,
    ProofSeen,
    ReplyLost,
    RestoreBegun,
    RestoreSeen,
    Skipped,
    StageSeen,
    StartSeen,
    StopIntended,
    StopSeen,
    SwitchSeen,
)
from capsule.lane.plan import PlannedNode, RolloutPlan, plan_digest
from capsule.lane.state import initial_state
from capsule.rollout.frame import begins_a_clock, render_frame

__all__ = ["FOLDER", "STAGES", "frames"]

FOLDER = Path(__file__).parents[1] / "golden" / "frames"
STAGES = (
    "begun", "draining", "canary-down", "canary-proved", "two-canaries", "full-width", "restoring",
    "held", "unknown", "paused", "parked", "adopted", "resumed", "lane-skipped", "aborting",
    "ended", "canary-failed", "worst",
)  # fmt: skip
_NOW_MS = 1_000_000
_REASONS = {
    "op-worker-05": "started: proof-failed: a unit did not stay up over its soak, 3 restarts"
}


def _plan(lanes: int = 7) -> RolloutPlan:
    nodes = [f"worker-{number:02}" for number in range(50)]
    return RolloutPlan(
        epoch="7-0a1b2c3d.1",
        capsule="sha256:" + "0a1b2c3d" * 8,
        route="sha256:" + "1" * 64,
        preflight="sha256:" + "2" * 64,
        nodes=tuple(
            PlannedNode(name=name, lane=f"rack-{place % lanes}", domain="d", serving=True)
            for place, name in enumerate(nodes)
        ),
        bystanders=0,
        max_unavailable=8,
        floor=40,
        domain_cap=None,
        max_failed_lanes=None,
        allow_outage=False,
        budget=Budget(),
    )


class _Story:
    """An epoch, and when each node came into its state."""

    def __init__(self, plan: RolloutPlan) -> None:
        self.state = initial_state(plan)
        self.since: dict[str, int] = {}
        self.seen: list[tuple[str, str]] = []

    def tell(self, *events: Event, ago_ms: int = 5_000) -> None:
        done, self.state, _ = with_consequences(self.state, events)
        for event in done:
            node = getattr(event, "node", None)
            if node is not None and begins_a_clock(type(event).__name__):
                self.since[node] = _NOW_MS - ago_ms

    def begin(self, node: str) -> None:
        self.tell(HoldTaken(node, True, self.state.tally.committed < 3), HoldSeen(node))

    def order(self, node: str) -> None:
        self.begin(node)
        self.tell(StopIntended(node, f"op-{node}"), StopSeen(node))

    def commit(self, node: str) -> None:
        self.tell(SwitchSeen(node), StartSeen(node), ProofSeen(node, "p"), CommitSeen(node))
        self.tell(HoldReturned(node))

    def show(self, stage: str) -> None:
        self.seen.append((stage, render_frame(self.state, self.since, _NOW_MS, _REASONS)))


def frames() -> list[tuple[str, str]]:
    """Return (stage, screen) of one epoch from its begin to its end."""
    story = _Story(_plan())
    names = [node.name for node in story.state.plan.nodes]
    story.tell(Started(plan_digest(story.state.plan), 3), *(StageSeen(name) for name in names))
    story.show("begun")
    story.begin(names[0])
    story.show("draining")
    story.tell(StopIntended(names[0], "0" * 32), StopSeen(names[0]))
    story.show("canary-down")
    story.tell(SwitchSeen(names[0]), StartSeen(names[0]), ago_ms=1_000)
    story.tell(ProofSeen(names[0], "p"), ago_ms=2_000)
    story.show("canary-proved")
    story.tell(CommitSeen(names[0]), HoldReturned(names[0]))
    for name in names[1:3]:
        story.order(name)
    story.show("two-canaries")
    for name in names[1:3]:
        story.commit(name)
    for name in names[3:11]:
        story.order(name)
    story.tell(SwitchSeen(names[4]), StartSeen(names[4]), ProofSeen(names[4], "p"))
    story.show("full-width")
    story.tell(RestoreBegun(names[5]), ago_ms=40_000)
    story.show("restoring")
    story.tell(RestoreSeen(names[5], True))
    story.show("held")
    story.tell(ReplyLost(names[6]), ago_ms=200_000)
    story.show("unknown")
    story.tell(Paused("interrupted"))
    story.show("paused")
    for name in (*names[3:5], *names[7:11]):
        if name == names[4]:
            story.tell(CommitSeen(name), HoldReturned(name))
        else:
            story.commit(name)
    story.tell(Parked("only unresolved permits remain", 6))
    story.show("parked")
    story.tell(Adopted(4, "another"), RestoreSeen(names[6], False))
    story.show("adopted")
    story.tell(LaneResumed("rack-5"))
    story.show("resumed")
    rest = [m.name for m in story.state.members.values() if m.lane == "rack-6"]
    story.tell(
        LaneSkipped("rack-6"),
        *(Skipped(name, "its lane was skipped") for name in rest if name != names[6]),
    )
    story.show("lane-skipped")
    waiting = [m.name for m in story.state.members.values() if m.state == "staged"]
    story.tell(AbortDecided("enough"), *(Skipped(name, "aborted") for name in waiting))
    story.show("aborting")
    story.tell(Ended("every node is terminal", 6))
    story.show("ended")
    return [*story.seen, ("canary-failed", _failed_canary()), ("worst", _worst())]


def _failed_canary() -> str:
    """Return the screen of an epoch whose first node was restored: no lane goes on."""
    story = _Story(_plan())
    names = [node.name for node in story.state.plan.nodes]
    story.tell(Started(plan_digest(story.state.plan), 3), *(StageSeen(name) for name in names))
    story.order(names[0])
    story.tell(RestoreBegun(names[0]), RestoreSeen(names[0], True))
    story.show("canary-failed")
    return story.seen[0][1]


def _worst() -> str:
    """Return the fullest screen: many small lanes, all permits out, and much to look at."""
    story = _Story(_plan(lanes=25))
    names = [node.name for node in story.state.plan.nodes]
    story.tell(Started(plan_digest(story.state.plan), 3), *(StageSeen(name) for name in names))
    for name in names[:3]:
        story.order(name)
        story.commit(name)
    for name in names[3:13]:
        story.order(name)
        story.tell(RestoreBegun(name), RestoreSeen(name, name > names[5]))
    for name in names[13:21]:
        story.order(name)
    story.show("worst")
    return story.seen[0][1]


if __name__ == "__main__":
    for stage, screen in frames():
        (FOLDER / f"{stage}.txt").write_text(screen, encoding="utf-8")
