"""Who controls a rollout, in processes of their own: interrupted, aborted, taken over.

Folder hosts with the real host program. A *silent* host is one whose program takes the question and
never answers, as behind a network that drops everything; it writes down that it was asked.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from capsule.builder.keyfile import generate_key
from capsule_manifest.envelope import decode_record
from capsule_manifest.records import decode_receipt
from support.postgres import running_cluster
from support.rollout_desk import RolloutDesk

pytestmark = pytest.mark.timeout(240)

LANES = {"a": ["n1", "n2"], "b": ["n3", "n4"]}
# What is under way must still be so when it is interrupted, and silence must be told from work.
SOAK_MS = 10_000
SILENT_S = 15.0
# Whatever is skipped in a fleet where nothing was installed serves nothing.
NEW_FLEET = 6


@pytest.fixture
def make_desk(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = []

    def make(lanes, *, controllers=(), **options):
        desk = RolloutDesk(tmp_path, capsys, lanes, **options)
        made.append(desk)
        for name in controllers:
            generate_key(tmp_path / f"{name}.key", owner=name)
        listed = json.dumps([f"{name}.key.pub" for name in controllers])
        fleet = tmp_path / "fleet.toml"
        first = f"[nodes.{desk.nodes[0]}]"
        fleet.write_text(fleet.read_text().replace(first, f"controllers = {listed}\n{first}"))
        mini = desk.capsule(1, soak_ms=SOAK_MS)
        desk.stage(1)
        assert desk.preflight(1)[0] == 0
        return desk, mini.generation

    yield make
    for desk in made:
        desk.stop()


class Controller:
    """A place to control from: a home folder and a key, and nothing of this process's settings."""

    def __init__(self, desk: RolloutDesk, home: Path | None, key: str) -> None:
        self._desk, self._key = desk, key
        self._environment = {"PATH": os.environ["PATH"]}
        if home is None:
            self._environment["XDG_STATE_HOME"] = os.environ["XDG_STATE_HOME"]
        else:
            home.mkdir()
            self._environment["HOME"] = str(home)

    def words(self, *verb: str) -> list[str]:
        """Return the command line of a verb that carries the key."""
        return [*verb, "--policy", "trust.json", "--controller-key", self._key]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "capsule", *words], cwd=self._desk.folder,
            env=self._environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    @contextmanager
    def start(self, *options: str) -> Iterator["Running"]:
        """Roll out in a process that is still there."""
        words = self.words("rollout", "start", "1.capsule", "--json", *options)
        with subprocess.Popen(
            [sys.executable, "-m", "capsule", *words], cwd=self._desk.folder,
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            try:
                yield Running(process)
            finally:
                process.kill()


class Running:
    """A rollout under way and what it has told."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.events: list[dict[str, object]] = []

    def until(self, name: str) -> dict[str, object]:
        """Read events up to one of that name."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == name:
                return self.events[-1]
        raise AssertionError(f"no {name} in {[event['event'] for event in self.events]}")

    def end(self) -> int:
        """Read to the end and return the exit code."""
        assert self.process.stdout is not None
        self.events += [json.loads(line) for line in self.process.stdout]
        return self.process.wait(60)


def silence(desk: RolloutDesk, nodes: Sequence[str]) -> Path:
    """Make hosts take questions and never answer; return the file in which they write them down."""
    asked = desk.folder / "asked"
    for node in nodes:
        program = desk.root(node) / "opt/capsule/bin/capsule"
        program.rename(program.with_name("capsule.kept"))
        program.write_text(f'#!/bin/sh\necho {node} "$@" >> {asked}\nexec sleep 1000\n')
        program.chmod(0o755)
    return asked


def answer_again(desk: RolloutDesk, nodes: Sequence[str]) -> None:
    """End the silence."""
    for node in nodes:
        program = desk.root(node) / "opt/capsule/bin/capsule"
        program.with_name("capsule.kept").rename(program)


def installs(desk: RolloutDesk, node: str) -> int:
    """Return how many installs a host has signed."""
    kinds = [
        decode_receipt(decode_record(raw, where=node).payload).kind
        for raw in desk.session(node).receipts()
    ]
    return kinds.count("install")


def test_an_abort_of_a_parked_epoch_ends_at_once_though_no_untouched_host_answers(make_desk):
    desk, generation = make_desk(LANES, max_unavailable=1)
    here = Controller(desk, None, "controller.key")
    with here.start() as rollout:
        touched = str(rollout.until("StopIntended")["node"])
        untouched = [node for node in desk.nodes if node != touched]
        asked = silence(desk, untouched)
        rollout.process.send_signal(signal.SIGINT)
        rollout.end()
    assert rollout.events[-1]["event"] == "Parked"
    began = time.monotonic()
    done = here.run(*here.words("rollout", "abort", "1.capsule", "--reason", "enough"))
    took_s = time.monotonic() - began
    assert done.returncode == NEW_FLEET, done.stderr
    assert took_s < SILENT_S, "somebody was waited for"
    assert desk.status()["state"] == "ended"
    assert desk.states() == {touched: "committed"} | dict.fromkeys(untouched, "skipped")
    assert not asked.exists(), asked.read_text()
    answer_again(desk, untouched)
    assert {desk.current(node) for node in untouched} == {"absent"}
    assert desk.current(touched) == generation


def test_an_abort_while_an_op_is_under_way_skips_silent_hosts_and_lets_the_op_end(make_desk):
    desk, generation = make_desk(LANES, max_unavailable=1)
    here = Controller(desk, None, "controller.key")
    with here.start() as rollout:
        touched = str(rollout.until("StopIntended")["node"])
        untouched = [node for node in desk.nodes if node != touched]
        asked = silence(desk, untouched)
        began = time.monotonic()
        done = here.run(*here.words("rollout", "abort", "1.capsule", "--reason", "enough"))
        took_s = time.monotonic() - began
        assert done.returncode == 0, done.stderr
        assert took_s < SILENT_S, "somebody was waited for"
        assert rollout.end() == NEW_FLEET
    names = [event["event"] for event in rollout.events]
    # The decision holds before the op has ended, and nothing is taken out of dispatch after it.
    assert "HoldTaken" not in names[names.index("AbortDecided") :]
    assert names.index("AbortDecided") < names.index("CommitSeen")
    assert desk.states() == {touched: "committed"} | dict.fromkeys(untouched, "skipped")
    assert not asked.exists(), asked.read_text()
    assert desk.current(touched) == generation


def test_a_second_interrupt_detaches_and_only_a_listed_key_elsewhere_adopts(make_desk):
    desk, generation = make_desk({"a": ["n1", "n2"]}, controllers=("second",), max_unavailable=1)
    generate_key(desk.folder / "stranger.key", owner="stranger")
    with running_cluster() as cluster:
        ledger = ("--ledger", cluster.new_database())
        here = Controller(desk, None, "controller.key")
        with here.start(*ledger) as rollout:
            touched = str(rollout.until("StopSeen")["node"])
            rollout.process.send_signal(signal.SIGINT)
            rollout.until("Paused")
            rollout.process.send_signal(signal.SIGINT)
            assert rollout.end() == 130
        # Nobody confirms any more; the host goes on by itself until its own deadline.
        assert "CommitSeen" not in [event["event"] for event in rollout.events]
        assert desk.session(touched).survey().open_op is not None
        assert here.run("route", "export", "route.json", "--policy", "trust.json").returncode == 0

        adopt = ("rollout", "adopt", "1.capsule", "--takeover", *ledger)
        stranger = Controller(desk, desk.folder / "stranger", "stranger.key")
        second = Controller(desk, desk.folder / "second", "second.key")
        for place in (stranger, second):
            done = place.run("route", "import", "route.json", "--policy", "trust.json")
            assert done.returncode == 0, done.stderr
        refused = stranger.run(*stranger.words(*adopt))
        assert (refused.returncode, "authority-denied" in refused.stderr) == (12, True)

        # What was under way is found and ends; the pause that came first still holds.
        adopted = second.run(*second.words(*adopt))
        assert adopted.returncode == NEW_FLEET, adopted.stderr
        resumed = second.run(*second.words("rollout", "resume", "1.capsule", *ledger))
        assert resumed.returncode == 0, resumed.stderr
        told = json.loads(
            second.run("rollout", "report", "--policy", "trust.json", "--json", *ledger).stdout
        )
    assert {node: row["state"] for node, row in told["nodes"].items()} == {
        "n1": "committed", "n2": "committed",
    }  # fmt: skip
    assert touched == "n1"
    for node in desk.nodes:
        assert (desk.current(node), installs(desk, node)) == (generation, 1)
