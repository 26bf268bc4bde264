"""Rollouts over folder hosts with the real host program: what an operator types and sees."""

import pytest

from support.rollout_desk import BROKEN, RolloutDesk

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = RolloutDesk(tmp_path, capsys, {"a": ["n1", "n2"], "b": ["n3", "n4"]})
    yield made
    made.stop()


def rolled_out(desk, counter=1):
    mini = desk.capsule(counter)
    desk.stage(counter)
    code, _ = desk.preflight(counter)
    assert code == 0
    code, _, err = desk.rollout("start", counter)
    assert code == 0, err
    return mini


def test_two_lanes_commit_by_themselves(desk):
    mini = rolled_out(desk)
    assert desk.states() == dict.fromkeys(("n1", "n3", "n2", "n4"), "committed")
    assert {desk.current(node) for node in desk.nodes} == {mini.generation}
