"""One epoch of fifty nodes at every stage, for the golden screens. Run it to write them anew."""

from pathlib import Path

from capsule.lane.budget import Budget
from capsule.lane.decide import with_consequences
from capsule.lane.epoch import AbortDecided, Adopted, Ended, Parked, Paused
from capsule.lane.events import Event, HoldReturned, Started
from capsule.lane.lane import LaneResumed
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
from capsule.rollout.frame import render_frame

__all__ = ["FOLDER", "STAGES", "frames"]

FOLDER = Path(__file__).parents[1] / "golden" / "frames"
STAGES = (
    "begun", "canary-down", "two-canaries", "full-width", "restoring", "held", "unknown", "paused",
    "parked", "adopted", "resumed", "aborting", "ended",
)  # fmt: skip
_NOW_MS = 1_000_000


def _plan() -> RolloutPlan:
    nodes = [f"worker-{number:02}" for number in range(50)]
    return RolloutPlan(
        epoch="7-0a1b2c3d.1",
        capsule="sha256:" + "0a1b2c3d" * 8,
        route="sha256:" + "1" * 64,
        preflight="sha256:" + "2" * 64,
        nodes=tuple(
            PlannedNode(name=name, lane=f"rack-{place % 7}", domain="d", serving=True)
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

    def __init__(self) -> None:
        self.state = initial_state(_plan())
        self.since: dict[str, int] = {}
        self.seen: list[tuple[str, str]] = []

    def tell(self, *events: Event, ago_ms: int = 5_000) -> None:
        done, self.state, _ = with_consequences(self.state, events)
        for event in done:
            node = getattr(event, "node", None)
            if node is not None:
                self.since[node] = _NOW_MS - ago_ms

    def begin(self, node: str) -> None:
        self.tell(HoldTaken(node, True, self.state.tally.committed < 3), HoldSeen(node))

    def order(self, node: str) -> None:
        self.begin(node)
        self.tell(StopIntended(node, "0" * 32), StopSeen(node))

    def commit(self, node: str) -> None:
        self.tell(SwitchSeen(node), StartSeen(node), ProofSeen(node, "p"), CommitSeen(node))
        self.tell(HoldReturned(node))

    def show(self, stage: str) -> None:
        self.seen.append((stage, render_frame(self.state, self.since, _NOW_MS)))


def frames() -> list[tuple[str, str]]:
    """Return (stage, screen) of one epoch from its begin to its end."""
    story = _Story()
    names = [node.name for node in story.state.plan.nodes]
    story.tell(Started(plan_digest(story.state.plan), 3), *(StageSeen(name) for name in names))
    story.show("begun")
    story.order(names[0])
    story.show("canary-down")
    story.commit(names[0])
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
    story.tell(LaneResumed("rack-5"), LaneResumed("rack-6"))
    story.show("resumed")
    waiting = [m.name for m in story.state.members.values() if m.state == "staged"]
    story.tell(AbortDecided("enough"), *(Skipped(name, "aborted") for name in waiting))
    story.show("aborting")
    story.tell(Ended("every node is terminal", 6))
    story.show("ended")
    return story.seen


if __name__ == "__main__":
    for stage, screen in frames():
        (FOLDER / f"{stage}.txt").write_text(screen, encoding="utf-8")
