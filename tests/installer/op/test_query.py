"""Questions about an op: the fence is recorded, and `closed` means that no order can come."""

import pytest

from capsule_installer.op.query import answer_question
from capsule_manifest.envelope import sign
from capsule_manifest.questions import QUESTION_TYPE, Question, decode_question, encode_question
from support.failures import fails_with
from support.install_world import World
from support.signing import FixedSigner
from support.staged_host import NODE, Build

OP = "7" * 32


@pytest.fixture
def world():
    made = World.fresh()
    made.stage(Build(counter=1))
    return made


def question(world, *, signer=None, **changes):
    values = {
        "op_id": OP, "node": NODE, "route": world.host.route_digest, "fence": 5,
        "nonce": "", "boot_id": "", "valid_ms": 0,
    }  # fmt: skip
    payload = encode_question(Question(**(values | changes)))
    return sign(payload, payload_type=QUESTION_TYPE, signer=signer or world.host.controller)


def test_an_unknown_op_is_closed_once_the_fence_is_recorded(world):
    effects = world.effects()
    said = answer_question(effects, question(world))
    assert said == {"op_id": OP, "fence": 5, "known": False, "closed": True}
    assert effects.state.fence() == 5


def test_an_order_of_the_asker_itself_is_closed_when_its_validity_is_over_and_not_before(world):
    effects = world.effects()
    boot = effects.clock.boot_id()
    effects.state.remember_nonce("n" * 32, boot_id=boot, boot_ms=effects.clock.boot_ms())
    own = {"nonce": "n" * 32, "boot_id": boot, "valid_ms": 1_000}
    assert not answer_question(effects, question(world, **own))["closed"]
    effects.clock.sleep_ms(1_000)
    assert not answer_question(effects, question(world, **own))["closed"]
    effects.clock.sleep_ms(1)
    assert answer_question(effects, question(world, **own))["closed"]


def test_an_order_of_an_earlier_boot_is_closed(world):
    said = answer_question(
        world.effects(), question(world, nonce="n" * 32, boot_id="other", valid_ms=10**6)
    )
    assert said["closed"]


def test_a_lower_fence_than_the_host_has_seen_is_refused(world):
    effects = world.effects()
    answer_question(effects, question(world, fence=9))
    with fails_with("order-fenced"):
        answer_question(effects, question(world, fence=8))
    assert effects.state.fence() == 9


@pytest.mark.parametrize(
    ("changes", "error_id"),
    [
        ({"node": "other"}, "order-wrong-node"),
        ({"route": "sha256:" + "0" * 64}, "order-wrong-route"),
    ],
)
def test_a_question_for_another_host_or_route_records_nothing(world, changes, error_id):
    effects = world.effects()
    before = effects.state.fence()
    with fails_with(error_id):
        answer_question(effects, question(world, **changes))
    assert effects.state.fence() == before


def test_a_stranger_may_not_ask_because_asking_shuts_others_out(world):
    with fails_with("key-unknown"):
        answer_question(world.effects(), question(world, signer=FixedSigner("stranger")))


def test_while_something_else_runs_an_unknown_op_is_not_answered(world):
    effects = world.effects()
    lock = effects.disk.lock(effects.layout.lock)
    try:
        with fails_with("host-busy"):
            answer_question(effects, question(world))
    finally:
        lock.release()


def test_a_question_reads_back_as_it_was_written():
    made = Question(
        op_id=OP, node="n", route="sha256:" + "1" * 64, fence=3, nonce="a", boot_id="b", valid_ms=7
    )
    assert decode_question(encode_question(made)) == made
