"""Whatever is called in whatever order: no identity is lost, no fence falls, every chain holds."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import select

from capsule.lane.budget import Budget
from capsule.lane.events import Started
from capsule.lane.node import HoldTaken, StageSeen
from capsule.lane.plan import PlannedNode, RolloutPlan, plan_digest
from capsule.lane.ports import Rows
from capsule.ledger.audit import audit_ledger
from capsule.ledger.engine import begin, open_engine
from capsule.ledger.rebuild import rebuild
from capsule.ledger.rebuilt import NodeRebuilt
from capsule.ledger.schema import migrate
from capsule.ledger.store import SqlLedger
from capsule.ledger.tables import leases
from capsule_manifest.errors import Refused

NODES = ("n1", "n2", "n3", "n4")
STREAMS = ("e1", "e2")
SCOPES = ("fleet", "other")
EXPECTED = frozenset(
    {"lease-busy", "fence-stale", "ledger-conflict", "epoch-unfinished", "permit-taken"}
)
some_nodes = st.lists(st.sampled_from(NODES), unique=True, max_size=3).map(tuple)


def plan_for(stream):
    return RolloutPlan(
        epoch=stream,
        capsule="c",
        route="r",
        preflight="p",
        nodes=tuple(PlannedNode(name=n, lane="l", domain="d", serving=True) for n in NODES),
        bystanders=0,
        max_unavailable=1,
        floor=0,
        domain_cap=None,
        max_failed_lanes=None,
        allow_outage=True,
        budget=Budget(),
    )


class AnySequence(RuleBasedStateMachine):
    """Calls of two controllers, an operator, and an upgrade or a restart between them."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.open()
        self.known = set()
        self.fences = {}
        self.leases = []
        self.lengths = dict.fromkeys(STREAMS, 0)

    def open(self):
        self.engine = open_engine(str(Path(self.folder.name) / "ledger.db"))
        migrate(self.engine)
        self.ledger = SqlLedger(self.engine)

    def teardown(self):
        self.engine.dispose()
        self.folder.cleanup()

    def call(self, work):
        """Do `work`; a refusal has to be one of those that the Protocol names."""
        try:
            return work()
        except Refused as refusal:
            if refusal.error_id not in EXPECTED:
                raise
            return None

    @rule(names=some_nodes)
    def add_nodes(self, names):
        self.ledger.add_nodes(names)
        self.known |= set(names)

    @rule()
    def add_every_node(self):
        self.add_nodes(NODES)

    @rule(
        scope=st.sampled_from(SCOPES), holder=st.sampled_from(("c1", "c2")), takeover=st.booleans()
    )
    def acquire(self, scope, holder, takeover):
        lease = self.call(lambda: self.ledger.acquire(scope, holder, takeover=takeover))
        if lease is not None:
            assert lease.fence > self.fences.get(scope, 0)
            self.fences[scope] = lease.fence
            self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), renews=st.booleans())
    def renew_or_release(self, data, renews):
        lease = data.draw(st.sampled_from(self.leases))
        self.call(lambda: (self.ledger.renew if renews else self.ledger.release)(lease))

    @precondition(lambda self: self.leases and self.known == set(NODES))
    @rule(
        data=st.data(),
        stream=st.sampled_from(STREAMS),
        late=st.integers(0, 1),
        rows=st.builds(
            Rows, opened=some_nodes, closed=some_nodes, taken=some_nodes,
            returned=some_nodes, kept=some_nodes,
        ),
    )  # fmt: skip
    def append(self, data, stream, late, rows):
        lease = data.draw(st.sampled_from(self.leases))
        length = self.lengths[stream]
        plan = plan_for(stream)
        self.ledger.keep_plan(plan)
        events = (
            [HoldTaken("n1", serving=True, canary=False), StageSeen("n2")]
            if length
            else [Started(plan_digest(plan), lease.fence)]
        )
        before = self.ledger.permits(stream)
        after = self.call(
            lambda: self.ledger.append(
                lease, stream, expected_seq=length + late, events=events, rows=rows
            )
        )
        if after is None:
            assert self.ledger.permits(stream) == before
            return
        assert (late, lease.fence) == (0, self.fences[lease.scope])
        assert after == length + len(events)
        self.lengths[stream] = after

    @precondition(lambda self: self.known)
    @rule(data=st.data(), places=st.booleans())
    def hold_or_let_go(self, data, places):
        node = data.draw(st.sampled_from(sorted(self.known)))
        (self.ledger.place_hold if places else self.ledger.remove_hold)(node, "alice")

    @rule()
    def rebuild_into_it(self):
        found = [NodeRebuilt("n1", "k", "g", 40, 1, "h", "host")]
        try:
            fence = rebuild(self.ledger, found, held=["n1"], scope="fleet", holder="rebuild")
        except Refused as refusal:
            if refusal.error_id != "ledger-not-empty":
                raise
            return
        assert fence == 41
        assert not self.known
        self.known = {"n1"}
        self.fences = {"fleet": fence, "other": 40}

    @rule()
    def restart(self):
        self.engine.dispose()
        self.open()

    @invariant()
    def no_identity_is_lost(self):
        assert set(self.ledger.node_names()) == self.known

    @invariant()
    def no_fence_falls(self):
        with begin(self.engine) as connection:
            found = dict(connection.execute(select(leases.c.scope, leases.c.fence)).all())
        assert all(found[scope] >= self.fences.get(scope, 0) for scope in found)

    @invariant()
    def every_chain_holds_and_has_all_that_was_acknowledged(self):
        audit_ledger(self.engine)
        for stream, length in self.lengths.items():
            assert len(self.ledger.read(stream)) == length

    @invariant()
    def no_node_has_two_permits(self):
        one, two = (self.ledger.permits(stream) for stream in STREAMS)
        assert not one & two


AnySequence.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnySequence = AnySequence.TestCase
