"""One host as the rollout speaks to it: what is sent again, and what a refusal means."""

from queue import SimpleQueue

import pytest

from capsule.lane.ports import HostStep, Unreachable
from capsule.rollout.evidence import Ordered
from capsule.rollout.link import NodeJob, NodeLink
from capsule.rollout.links import Links
from capsule.transport import ssh_failures
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.keys import b64encode
from capsule_manifest.orders import decode_order
from capsule_manifest.questions import decode_question
from capsule_manifest.records import PROOF_TYPE, Proof, UnitProof, encode_proof
from support.failures import fails_with
from support.signing import FixedSigner

NODE_KEY, CONTROLLER = FixedSigner("node"), FixedSigner("controller")
OP = "5" * 32
CAPSULE, ROUTE, COMMIT = "sha256:" + "1" * 64, "sha256:" + "2" * 64, "c" * 40


class Hello:
    node, node_key, route = "n1", NODE_KEY.public, ROUTE
    current, nonce, boot_id, guard_levels = "1-aaaaaaaa", "nonce", "boot", ("L0",)


def hello_record():
    return {
        "record": "hello", "wire": 1, "installer": "0.1.0", "runtime": None, "node": Hello.node,
        "node_key": b64encode(Hello.node_key.spki), "machine": "x86_64", "glibc": "2.36",
        "pythons": {}, "free_bytes": 1, "free_inodes": 1, "boot_id": Hello.boot_id,
        "nonce": Hello.nonce, "fence": 0, "counter_floor": 0, "policy": None,
        "route": Hello.route, "staged": [], "trees": [], "current": Hello.current,
        "previous": "absent", "open_op": None, "hold": False,
        "guard_levels": list(Hello.guard_levels), "service_manager": "systemd",
    }  # fmt: skip


class Dialogue:
    """Answers what the session was told to; the channel only takes what is sent."""

    def __init__(self, session, answers):
        self.channel, self._session, self._answers = self, session, list(answers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._session.closed += 1

    def write(self, data):
        self._session.sent.append(data)

    def end_input(self): ...

    def limit(self, limits): ...

    def expect(self, name):
        return self.next()

    def next(self):
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Session:
    node = "n1"

    def __init__(self):
        self.sent, self.answers, self.asked, self.hellos = [], {}, [], 0
        self.begun, self.knows_hello, self.closed = [], True, 0

    def hello(self):
        self.hellos += 1
        return Hello()

    def dialogue(self, verb, *arguments, limits=None):
        self.begun.append((verb, *arguments))
        greeting = []
        if "--hello" in arguments:
            if not self.knows_hello:
                return Dialogue(self, [Failed("host-verb-unknown", "")])
            self.hellos += 1
            greeting = [hello_record()]
        answers = self.answers.get(verb, [])
        return Dialogue(self, greeting + (answers.pop(0) if answers else []))

    def ask(self, verb, *arguments, answer, stdin=b"", limits=None):
        self.asked.append((verb, stdin))
        result = self.answers[verb]
        if isinstance(result, Exception):
            raise result
        return result


class Silence:
    def step(self, node, *, name, state, took_ms): ...

    def receipt(self, node, receipt): ...

    def trouble(self, node, error): ...


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def link(session):
    def ordered(op_id):
        return Ordered(
            node="n1", op_id=op_id, key=NODE_KEY.public, capsule=CAPSULE, generation="2-bbbbbbbb",
            route=ROUTE, commit=COMMIT, units=frozenset({"web.service"}),
        )  # fmt: skip

    job = NodeJob(
        ordered=ordered,
        release_counter=2,
        epoch="e",
        guard_floor="L0",
        guard_policy="fail",
        d1_ms=100,
        d2_ms=100,
    )
    return NodeLink(session, job, controller=CONTROLLER, home=None, watch=Silence())


def orders(session):
    return [decode_order(decode_record(raw, where="").payload) for raw in session.sent]


def test_an_order_names_what_the_host_said_of_itself_and_the_epochs_fence(session, link):
    session.answers["install"] = [[{"record": "accepted"}]]
    assert link.order(OP, fence=7).step is HostStep.ACCEPTED
    (order,) = orders(session)
    assert (order.op_id, order.fence, order.prior, order.nonce) == (OP, 7, "1-aaaaaaaa", "nonce")


def test_an_order_that_is_sent_again_is_the_very_same_and_asks_for_no_new_nonce(session, link):
    session.answers["install"] = [[Failed("host-unreachable", "", retryable=True)]]
    with fails_with("host-unreachable"):
        link.order(OP, fence=7)
    session.answers["install"] = [[{"record": "accepted"}]]
    link.order(OP, fence=7)
    first, second = orders(session)
    assert first == second
    assert session.hellos == 1


def test_an_op_is_followed_on_the_stream_that_its_order_began(session, link):
    heard = []
    step = {"record": "step", "name": "stop", "state": "done", "took_ms": 3}
    told = [step, Failed("op-not-finished", "", retryable=True)]
    session.answers["install"] = [[{"record": "accepted"}, *told]]
    session.answers["follow"] = [[proof(), Refused("op-unknown", "")]]
    link.order(OP, fence=7)
    with fails_with("op-unknown"):
        link.follow(OP, heard.append)
    assert [report.step for report in heard] == [
        HostStep.STOPPED, HostStep.ACCEPTED, HostStep.PROVED,
    ]  # fmt: skip
    assert session.begun == [
        ("install", "--hello", "--follow", "14"), ("follow", OP, "--timeout", "14"),
    ]  # fmt: skip


def test_a_stream_that_nobody_follows_is_closed_once(session, link):
    session.answers["install"] = [[{"record": "accepted"}], [{"record": "accepted"}]]
    link.order(OP, fence=7)
    link.order("6" * 32, fence=7)
    link.close()
    assert session.closed == 2
    link.close()
    assert session.closed == 2


def test_a_stream_that_was_closed_before_it_was_followed_is_asked_for_anew(session, link):
    session.answers["install"] = [[{"record": "accepted"}]]
    session.answers["follow"] = [[Refused("op-unknown", "")]]
    link.order(OP, fence=7)
    link.close()
    with fails_with("op-unknown"):
        link.follow(OP, lambda _: None)
    assert [verb for verb, *_ in session.begun] == ["install", "follow"]


def test_links_that_end_close_what_their_hosts_still_tell(session, link):
    heard = SimpleQueue()
    link.follow = lambda op_id, hear: hear(op_id)
    links = Links(lambda _: link, hear=heard.put)
    session.answers["install"] = [[{"record": "accepted"}]]
    links.order("n1", OP, fence=7)
    assert heard.get(timeout=5).step is HostStep.ACCEPTED
    assert heard.get(timeout=5) == OP
    links.end()
    assert session.closed == 1


def test_a_repeated_order_that_has_ended_is_followed_on_a_stream_of_its_own(session, link):
    session.answers["install"] = [[{"record": "result"}]]
    session.answers["follow"] = [[Refused("op-unknown", "")]]
    assert link.order(OP, fence=7).step is HostStep.ACCEPTED
    with fails_with("op-unknown"):
        link.follow(OP, lambda _: None)
    assert [verb for verb, *_ in session.begun] == ["install", "follow"]


def test_an_older_host_program_is_asked_step_by_step(session, link):
    session.knows_hello = False
    session.answers["install"] = [[{"record": "accepted"}]]
    assert link.order(OP, fence=7).step is HostStep.ACCEPTED
    (order,) = orders(session)
    assert (order.nonce, session.hellos) == ("nonce", 1)
    assert session.begun[-1] == ("install",)


def test_an_order_that_came_too_late_was_never_accepted(session, link):
    session.answers["install"] = [[Refused("order-expired", "")]]
    report = link.order(OP, fence=7)
    assert (report.step, report.closed) == (HostStep.NO_RECORD, True)


@pytest.mark.parametrize("error_id", ["order-fenced", "host-busy", "op-open"])
def test_what_says_that_somebody_else_is_at_work_is_no_refusal_of_the_op(session, link, error_id):
    session.answers["install"] = [[Refused(error_id, "")]]
    with fails_with(error_id):
        link.order(OP, fence=7)


WAY_IDS = sorted({error_id for _, error_id, _ in ssh_failures._TABLE} | {
    "connection-lost", "ssh-sessions-exhausted", "ssh-start-deadline", "ssh-start-failed",
    "transport-deadline",
})  # fmt: skip
DOOR_IDS = ["host-key-changed", "host-program-missing", "ssh-auth-refused", "sudo-refused"]


@pytest.mark.parametrize("error_id", [name for name in WAY_IDS if name not in DOOR_IDS])
def test_a_connection_that_is_not_made_in_time_is_no_refusal_by_the_host(session, link, error_id):
    session.answers["install"] = [[Failed(error_id, "")]]
    with fails_with(error_id):
        link.order(OP, fence=7)
    session.answers["install"] = [[{"record": "accepted"}]]
    assert link.order(OP, fence=7).step is HostStep.ACCEPTED
    first, second = orders(session)
    assert first == second


@pytest.mark.parametrize("error_id", DOOR_IDS)
def test_a_host_that_lets_nobody_in_any_more_may_be_at_work_on_the_order(
    session, link, error_id, monkeypatch
):
    monkeypatch.setattr(Session, "dialogue", lambda *_, **__: refuse(error_id))
    assert link.order("6" * 32, fence=7).step is HostStep.REFUSED
    monkeypatch.undo()
    session.answers["install"] = [[Failed("connection-lost", "", retryable=True)]]
    with fails_with("connection-lost"):
        link.order(OP, fence=7)
    monkeypatch.setattr(Session, "dialogue", lambda *_, **__: refuse(error_id))
    with fails_with(error_id):
        link.order(OP, fence=7)


def refuse(error_id):
    raise Refused(error_id, "")


def test_any_other_refusal_is_reported_with_its_reason(session, link):
    session.answers["install"] = [[Refused("order-prior-mismatch", "another generation")]]
    report = link.order(OP, fence=7)
    assert report.step is HostStep.REFUSED
    assert "another generation" in report.reason


def test_a_host_under_another_route_or_key_is_refused_before_an_order_is_sent(
    session, link, monkeypatch
):
    monkeypatch.setattr(Hello, "route", "sha256:" + "9" * 64)
    assert link.order(OP, fence=7).step is HostStep.REFUSED
    monkeypatch.undo()
    monkeypatch.setattr(Hello, "node_key", CONTROLLER.public)
    assert link.order("6" * 32, fence=7).step is HostStep.REFUSED
    assert session.sent == []


def test_a_question_names_the_order_that_was_sent_and_nothing_for_an_adopter(session, link):
    session.answers["query"] = {"record": "op", "known": False, "closed": True}
    report = link.query(OP, fence=8)
    assert (report.step, report.closed) == (HostStep.NO_RECORD, True)
    session.answers["install"] = [[{"record": "accepted"}]]
    link.order(OP, fence=8)
    link.query(OP, fence=8)
    first, second = [
        decode_question(decode_record(raw, where="").payload) for _, raw in session.asked
    ]
    assert (first.nonce, first.fence) == ("", 8)
    assert (second.nonce, second.boot_id) == ("nonce", "boot")


def test_a_known_op_is_to_be_followed(session, link):
    session.answers["query"] = {"record": "op", "known": True, "closed": True}
    assert link.query(OP, fence=8) is None


def test_a_confirm_that_came_too_late_is_for_the_receipt_to_explain(session, link):
    session.answers["confirm"] = Refused("confirm-refused", "")
    link.confirm(OP, proof="sha256:" + "3" * 64, fence=8)
    session.answers["confirm"] = Failed("host-unreachable", "", retryable=True)
    with fails_with("host-unreachable"):
        link.confirm(OP, proof="sha256:" + "3" * 64, fence=8)


def proof(signer=NODE_KEY, **changes):
    unit = UnitProof(
        unit="web.service", pid=1, started_ticks=1, invocation_id="i", restarts=0, commit=COMMIT,
        evidence=("x",),
    )  # fmt: skip
    values = {
        "op_id": OP, "node": "n1", "capsule": CAPSULE, "generation": "2-bbbbbbbb",
        "boot_id": "boot", "units": (unit,),
    }  # fmt: skip
    payload = encode_proof(Proof(**(values | changes)))
    record = encode_record(sign(payload, payload_type=PROOF_TYPE, signer=signer))
    return {"record": "proof", "proof": b64encode(record)}


def test_steps_and_a_proof_are_reported_as_they_come(session, link):
    heard = []
    step = {"record": "step", "name": "stop", "state": "done", "took_ms": 3}
    session.answers["follow"] = [[step, proof(), Refused("op-unknown", "")]]
    with fails_with("op-unknown"):
        link.follow(OP, heard.append)
    assert [report.step for report in heard] == [HostStep.STOPPED, HostStep.PROVED]
    assert heard[1].proof.startswith("sha256:")


@pytest.mark.parametrize(
    "changes",
    [{"op_id": "6" * 32}, {"node": "n2"}, {"capsule": ROUTE}, {"generation": "1-aaaaaaaa"},
     {"units": ()}],
)  # fmt: skip
def test_a_proof_of_something_else_is_refused_and_never_reported(session, link, changes):
    heard = []
    session.answers["follow"] = [[proof(**changes)]]
    with fails_with("proof-refused"):
        link.follow(OP, heard.append)
    assert heard == []


def test_a_proof_that_another_key_signed_is_refused(session, link):
    session.answers["follow"] = [[proof(signer=CONTROLLER)]]
    with fails_with("key-unknown"):
        link.follow(OP, lambda _: None)


def test_a_host_that_is_still_busy_counts_as_heard_and_a_silent_one_does_not(session, link):
    heard = []
    session.answers["follow"] = [
        [Failed("op-not-finished", "", retryable=True)],
        [Failed("host-unreachable", "", retryable=True)],
        [Refused("op-unknown", "")],
    ]
    with fails_with("op-unknown"):
        link.follow(OP, heard.append)
    assert heard[0].step is HostStep.ACCEPTED
    assert isinstance(heard[1], Unreachable)
