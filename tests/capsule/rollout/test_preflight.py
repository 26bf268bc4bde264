"""What preflight says of each node: one question a host, an answer for every kind of silence."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from capsule.rollout.coherence import Coherence
from capsule.rollout.preflight import Surveyor
from capsule.transport.local import LocalTransport
from capsule_manifest.errors import ExitCode
from capsule_manifest.keys import public_key
from capsule_manifest.route import Endpoint, RouteNode
from capsule_manifest.survey import (
    ChangedFile,
    Obstacle,
    Setting,
    Survey,
    Unreadable,
    survey_value,
)
from capsule_manifest.wire import encode_wire_record
from support import documents

NODE = "n1"
GENERATION = "7-01234567"
NOW_MS = documents.make_survey().wall_ms


@dataclass(frozen=True)
class Home:
    """The pins of a controller that met every node."""

    def node_key(self, node):
        return public_key(documents.NODE_KEY.public.spki, node)


@dataclass(frozen=True)
class Route:
    route: object
    digest: str


@dataclass(frozen=True)
class Payload:
    release: object
    capsule: str = documents.CAPSULE
    generation: str = GENERATION


class Desk:
    """One node below a folder whose program is a shell script, and what was started there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "host"
        self.program = self.root / "opt/capsule/bin/capsule"
        self.program.parent.mkdir(parents=True)
        self.calls = folder / "calls"
        self.opened = 0

    def says(self, script: str) -> None:
        self.program.write_text(f'#!/bin/sh\necho "$*" >> {self.calls}\n{script}\n')
        self.program.chmod(0o755)

    def answers(self, survey: Survey, **fields: object) -> None:
        value = dict(survey_value(survey)) | fields
        (self.root / "answer").write_bytes(
            encode_wire_record({"record": "survey", "survey": value})
        )
        self.says(f"cat {shlex.quote(str(self.root / 'answer'))}")

    def _connect(self, endpoint, node):
        self.opened += 1
        return LocalTransport(Path(endpoint.root))

    def look(self, **changes):
        entry = RouteNode(
            role="web", platform="bookworm", domain="d", lane="a",
            endpoint=Endpoint(kind="local", root=str(self.root)), node_key=None, vars={},
        )  # fmt: skip
        route = replace(documents.make_route(), nodes={NODE: entry}, guard_min="L0", **changes)
        found = Surveyor(
            home=Home(),
            route=Route(route, documents.make_survey().route),
            payload=Payload(documents.make_release()),
            connect=self._connect,
            now_ms=lambda: NOW_MS,
        ).run()
        return found, found.nodes[NODE]


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_a_host_is_asked_one_question_in_one_start(desk):
    desk.answers(documents.make_survey())
    found, finding = desk.look()
    assert finding.coherence is Coherence.COHERENT, finding
    assert (finding.problems, finding.notes) == ((), ())
    assert found.exit_code is ExitCode.DONE
    assert desk.calls.read_text() == "survey\n"
    assert desk.opened == 1


WITHOUT_ANSWER = {
    "no program": (None, "it has no program yet: run `capsule stage`"),
    "an older program": (
        "echo \"Error: No such command 'survey'.\" >&2; exit 2", "older than this controller",
    ),
    "a crash": ("exit 1", "host-program-failed"),
    "silence": ("exit 0", "wire-malformed"),
    "noise": ("echo welcome", "wire-malformed"),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_ANSWER)
def test_a_host_without_an_answer_is_named_with_what_to_do(desk, name):
    script, words = WITHOUT_ANSWER[name]
    if script is not None:
        desk.says(script)
    found, finding = desk.look()
    assert finding.coherence is Coherence.UNREACHABLE
    assert words in finding.problems[0]
    assert found.exit_code is ExitCode.PREFLIGHT_REFUSED


def test_a_newer_document_and_an_unknown_field_are_refused_and_never_half_read(desk):
    desk.answers(documents.make_survey(), schema="capsule-survey/2")
    assert "newer than this controller" in desk.look()[1].problems[0]
    desk.answers(documents.make_survey(), surprise=1)
    assert "document-invalid" in desk.look()[1].problems[0]


PROBLEMS = {
    "staged under another route": {"route": documents.CAPSULE},
    "never staged": {"route": None},
    "is not staged": {"staged": (), "current": "6-89abcdef"},
    "an op is open": {"open_op": documents.OP_ID},
    "the machine is aarch64": {"machine": "aarch64"},
    "bytes free": {"free_bytes": 1000},
    "inodes free": {"free_inodes": 7},
    "contradictory": {"unreadable": (Unreadable(surface="fence", why="state-malformed"),)},
    "foreign": {"node": "n2"},
}


@pytest.mark.parametrize("words", PROBLEMS)
def test_what_keeps_a_node_out_is_named_with_its_remedy(desk, words):
    desk.answers(replace(documents.make_survey(), **PROBLEMS[words]))
    _, finding = desk.look()
    wanted = "staged under another route" if words == "never staged" else words
    assert any(wanted in problem for problem in finding.problems), finding.problems
    assert all(": " in problem for problem in finding.problems)


def test_a_file_system_without_a_count_of_inodes_is_no_problem(desk):
    desk.answers(replace(documents.make_survey(), free_inodes=0))
    assert desk.look()[1].problems == ()


def test_a_clock_that_is_off_and_what_is_retired_are_notes_and_change_no_digest(desk):
    desk.answers(documents.make_survey())
    plain, _ = desk.look()
    desk.answers(
        replace(
            documents.make_survey(),
            free_bytes=2**34,
            boot_ms=5,
            pythons={},
        )
    )
    assert desk.look()[0].digest == plain.digest
    desk.answers(
        replace(
            documents.make_survey(),
            wall_ms=NOW_MS + 3_600_000,
            ballast=False,
            ignored=(Setting(unit="web.service", setting="OLD"),),
        )
    )
    noted, finding = desk.look()
    assert noted.digest == plain.digest
    assert finding.problems == ()
    assert [note.partition(" ")[0] for note in finding.notes] == ["its", "no", "web.service"]


def test_an_edited_managed_file_is_a_problem_with_its_way_on(desk):
    edited = ChangedFile(target="/etc/web.conf", expected="blake3:00", got="mode 0o666")
    desk.answers(replace(documents.make_survey(), files=(edited,)))
    preflight, finding = desk.look()
    assert preflight.exit_code == 3
    assert finding.coherence is Coherence.CONTRADICTORY
    assert "the managed file /etc/web.conf says mode 0o666" in finding.disagreements[0]
    assert any("capsule node files n1 --set-aside" in problem for problem in finding.problems)


def test_what_stands_in_the_way_is_a_problem_for_the_release_that_is_meant_alone(desk):
    plain = documents.make_survey()
    here = Obstacle(generation=GENERATION, target="/etc/new.conf")
    desk.answers(replace(plain, obstacles=(replace(here, generation="99-00000000"),)))
    assert desk.look()[1].problems == ()
    desk.answers(replace(plain, obstacles=(here,)))
    (problem,) = desk.look()[1].problems
    assert "/etc/new.conf" in problem
    assert f"--generation {GENERATION}" in problem
