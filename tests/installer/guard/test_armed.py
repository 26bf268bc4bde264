"""The worker under a guard, against a guard's program that says what it is told to say."""

import json

import pytest

from capsule_installer.guard.armed import GuardedWorker
from capsule_installer.guard.counters import Traffic
from capsule_installer.guard.finding import Finding, encode_finding
from capsule_installer.guard.record import guard_statement, read_violations
from capsule_installer.op.op_folder import OpFile
from capsule_installer.system.processes import ProcessFacts
from capsule_manifest.errors import ExitCode, Failed
from support.install_world import World

TRIED = Finding(call="connect", target="192.0.2.1:80", pid=9, executable="/bin/x", command=("x",))
ARMED = {"armed": "L3"}
STEP = [["/bin/migrate", "now"]]


class FakeGuard:
    """Says its lines one by one, then ends; None stands for silence."""

    pid = 77
    is_stuck = False

    def __init__(self, *lines):
        self.lines = list(lines)
        self.heard = []
        self.events = []

    def say(self, line):
        self.heard.append(json.loads(line))

    def hear(self, timeout_ms):
        assert timeout_ms > 0
        if not self.lines:
            return b""
        line = self.lines.pop(0)
        return line if line is None or isinstance(line, bytes) else json.dumps(line).encode()

    def close(self):
        self.events.append("closed")

    def kill(self):
        self.events.append("killed")

    def await_gone(self, timeout_ms):
        assert self.events[-1] == "killed"
        if self.is_stuck:
            return False
        self.events.append("gone")
        return True


class FakeConversations:
    def __init__(self, guard):
        self.guard = guard

    def start(self, argv):
        assert argv == ["guard"]
        if self.guard is None:
            raise Failed("process-not-started", "a program could not be started", got="no")
        return self.guard


class FakeProcesses:
    def facts(self, pid):
        return ProcessFacts(
            pid=pid, started_ticks=5, cwd="/", arguments=(), environment={}, files=frozenset()
        )


class PlainWorker:
    def __init__(self):
        self.ran = []

    def run(self, op, steps, **_):
        self.ran += steps


@pytest.fixture
def op():
    world = World.fresh()
    folder = world.host.op("0" * 32)
    world.host.disk.mkdir(folder.path, 0o700)
    return folder


@pytest.fixture
def refused():
    return []


@pytest.fixture
def make(refused):
    def worker(guard, plain=None):
        clock = World.fresh().effects().clock
        return GuardedWorker(
            plain=plain or PlainWorker(),
            conversations=FakeConversations(guard),
            processes=FakeProcesses(),
            clock=clock,
            program=["guard"],
            levels=("L0", "L2", "L3"),
            on_refusal=refused.append,
            traffic=iter([Traffic(), Traffic(tcp_opens=2, datagrams=1)]).__next__,
        ), clock.boot_ms() + 5_000

    return worker


def armed(make, op, *lines, policy="fail"):
    guard = FakeGuard(ARMED, *lines)
    worker, until_ms = make(guard)
    worker.begin(op, level="L3")
    worker.arm(op, level="L3", policy=policy, until_ms=until_ms)
    return worker, guard, until_ms


def run(worker, op, until_ms, steps=None):
    worker.run(
        op, STEP if steps is None else steps, folder="/g", environment={"A": "b"},
        until_ms=until_ms,
    )  # fmt: skip


def ended(code=0, output=""):
    return {"exit": code, "output": output}


def finding(of=TRIED):
    return {"finding": encode_finding(of)}


def test_level_0_starts_nothing_and_runs_steps_plainly(make, op):
    plain = PlainWorker()
    worker, until_ms = make(None, plain)
    worker.begin(op, level="L0")
    worker.arm(op, level="L0", policy="fail", until_ms=until_ms)
    run(worker, op, until_ms)
    worker.release(op)
    assert plain.ran == STEP
    assert guard_statement(op, "L0") == "L0: not monitored"


def test_level_1_tells_what_the_host_sent_and_fails_nothing(make, op):
    plain = PlainWorker()
    worker, until_ms = make(None, plain)
    worker.begin(op, level="L1")
    worker.arm(op, level="L1", policy="fail", until_ms=until_ms)
    run(worker, op, until_ms)
    worker.release(op)
    assert plain.ran == STEP
    assert guard_statement(op, "L1") == "L1"
    assert read_violations(op) == ("counted on the whole host: 2 TCP connects, 1 UDP datagrams",)


def test_rescue_can_end_the_guard_before_it_does_anything(make, op):
    class Watching(FakeGuard):
        def say(self, line):
            if not self.heard:
                assert op.read(OpFile.WORKER) == b"77 5\n"
            super().say(line)

    guard = Watching(ARMED)
    worker, until_ms = make(guard)
    worker.begin(op, level="L3")
    worker.arm(op, level="L3", policy="fail", until_ms=until_ms)
    assert guard.heard == [{"level": "L3"}]
    assert guard_statement(op, "L3") == "L3"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([{"failed": "the canary was not stopped: tcp: reached"}], "tcp: reached"),
        ([], "it ended"),
        ([None], "no answer in time"),
        ([finding()], "it ended"),
    ],
)
def test_a_guard_that_does_not_stand_is_no_guard(make, op, refused, lines, why):
    guard = FakeGuard(*lines)
    worker, until_ms = make(guard)
    worker.begin(op, level="L3")
    with pytest.raises(Failed, match=why) as caught:
        worker.arm(op, level="L3", policy="fail", until_ms=until_ms)
    assert caught.value.error_id == "guard-not-armed"
    assert caught.value.exit_code is ExitCode.GUARD_NOT_ARMED
    assert guard.events == ["killed"]
    assert guard_statement(op, "L3") == "L3: not armed"
    assert refused == ["L3"]


def test_a_guard_that_can_not_be_started_is_none(make, op, refused):
    worker, until_ms = make(None)
    worker.begin(op, level="L2")
    with pytest.raises(Failed, match="guard-not-armed"):
        worker.arm(op, level="L2", policy="fail", until_ms=until_ms)
    assert refused == ["L2"]


def test_steps_run_one_by_one_with_what_they_need(make, op):
    worker, guard, until_ms = armed(make, op, ended(), ended())
    run(worker, op, until_ms, [["/bin/a"], ["/bin/b", "c"]])
    told = [line["run"] for line in guard.heard[1:]]
    assert [step["argv"] for step in told] == [["/bin/a"], ["/bin/b", "c"]]
    assert {step["folder"] for step in told} == {"/g"}
    assert told[0]["environment"]["A"] == "b"
    assert "PATH" in told[0]["environment"]


def test_a_try_fails_the_op_at_once_and_is_kept(make, op):
    worker, guard, until_ms = armed(make, op, finding(), ended())
    with pytest.raises(Failed, match=r"192\.0\.2\.1:80") as caught:
        run(worker, op, until_ms)
    assert caught.value.error_id == "network-violation"
    assert caught.value.exit_code is ExitCode.NETWORK_VIOLATION
    assert guard.events == ["killed"]
    assert read_violations(op) == (TRIED.text(),)


def test_at_report_the_op_goes_on_and_the_tries_are_kept(make, op):
    worker, guard, until_ms = armed(make, op, finding(), finding(), ended(), policy="report")
    run(worker, op, until_ms)
    worker.release(op)
    assert read_violations(op) == (TRIED.text(), TRIED.text())
    assert guard.events == ["closed", "killed", "gone"]


def test_a_program_that_tries_for_ever_fills_no_receipt(make, op):
    tries = [finding()] * 100
    worker, _, until_ms = armed(make, op, *tries, ended(), policy="report")
    run(worker, op, until_ms)
    kept = read_violations(op)
    assert len(kept) == 65
    assert kept[-1] == "and 36 more"


def test_a_step_that_fails_says_its_last_words(make, op):
    worker, _, until_ms = armed(make, op, ended(3, "no such table\n"))
    with pytest.raises(Failed, match="exit 3: no such table") as caught:
        run(worker, op, until_ms)
    assert caught.value.error_id == "guarded-step-failed"


def test_a_step_without_an_end_is_killed_with_the_guard(make, op):
    worker, guard, until_ms = armed(make, op, None)
    with pytest.raises(Failed, match="process-timeout"):
        run(worker, op, until_ms)
    assert guard.events == ["killed"]


def test_a_guard_that_ends_by_itself_fails_the_step(make, op):
    worker, guard, until_ms = armed(make, op)
    with pytest.raises(Failed, match="guarded-step-failed"):
        run(worker, op, until_ms)
    assert guard.events == ["killed"]


def test_what_a_step_left_behind_may_still_be_found_out_at_the_end(make, op):
    worker, guard, until_ms = armed(make, op, ended(), finding())
    run(worker, op, until_ms)
    with pytest.raises(Failed, match="network-violation"):
        worker.release(op)
    assert guard.events == ["closed", "killed"]


def test_a_guard_in_which_nothing_ran_ends_without_waiting(make, op):
    worker, guard, _ = armed(make, op, None)
    worker.release(op)
    assert guard.events == ["killed"]


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish",
        b"[]",
        b"7",
        b"\xff",
        b"[" * 100_000,
        {"exit": 0},
        {"exit": "0", "output": ""},
        {"finding": {"call": 1}},
        {"canary": {}},
    ],
)
def test_what_no_guard_says_ends_it_and_fails_the_step(make, op, line):
    worker, guard, until_ms = armed(make, op, line, ended())
    with pytest.raises(Failed, match="can't be understood") as caught:
        run(worker, op, until_ms)
    assert caught.value.error_id == "guarded-step-failed"
    assert guard.events == ["killed"]
    assert worker.abandon()


def test_rubbish_instead_of_a_canary_is_no_guard(make, op, refused):
    worker, until_ms = make(FakeGuard(b"rubbish"))
    worker.begin(op, level="L3")
    with pytest.raises(Failed, match="rubbish") as caught:
        worker.arm(op, level="L3", policy="fail", until_ms=until_ms)
    assert caught.value.error_id == "guard-not-armed"
    assert refused == ["L3"]


@pytest.mark.parametrize("last", [[None], []])
def test_services_start_only_when_nothing_of_a_step_is_alive(make, op, last):
    for is_stuck in (False, True):
        worker, guard, until_ms = armed(make, op, ended(), *last)
        guard.is_stuck = is_stuck
        run(worker, op, until_ms)
        if not is_stuck:
            worker.release(op)
            assert guard.events == ["closed", "killed", "gone"]
            continue
        with pytest.raises(Failed, match="does not end") as caught:
            worker.release(op)
        assert caught.value.error_id == "guarded-step-failed"
        assert not worker.abandon()


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_without_its_guard_no_step_runs(make, op, level):
    plain = PlainWorker()
    worker, until_ms = make(None, plain)
    worker.begin(op, level=level)
    with pytest.raises(Failed, match="no guard"):
        run(worker, op, until_ms)
    worker, _, until_ms = armed(make, op)
    worker.release(op)
    with pytest.raises(Failed, match="no guard"):
        run(worker, op, until_ms)
    assert plain.ran == []


def test_names_move_only_when_nothing_of_a_step_is_alive(make, op):
    worker, guard, until_ms = armed(make, op, finding())
    with pytest.raises(Failed, match="network-violation"):
        run(worker, op, until_ms)
    worker.abandon()
    worker.abandon()
    assert guard.events == ["killed", "gone"]
