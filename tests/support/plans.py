"""Plans of a rollout that tests share."""

from capsule.lane.budget import Budget
from capsule.lane.plan import PlannedNode, RolloutPlan

__all__ = ["plan_of_three"]


def plan_of_three(*, max_unavailable: int) -> RolloutPlan:
    """Return a plan for the nodes a, b, c, each in a lane of its own, with three bystanders."""
    return RolloutPlan(
        epoch="e1",
        capsule="c",
        route="r",
        preflight="p",
        nodes=tuple(
            PlannedNode(name=name, lane=f"lane-{name}", domain="d", serving=True)
            for name in ("a", "b", "c")
        ),
        bystanders=3,
        max_unavailable=max_unavailable,
        floor=2,
        domain_cap=None,
        max_failed_lanes=None,
        allow_outage=False,
        budget=Budget(),
    )
