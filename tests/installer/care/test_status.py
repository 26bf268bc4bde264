"""What `capsule status` says of a host, before, during and after an op."""

import pytest

from support.staged_host import Build
from support.supervising import doom

pytestmark = pytest.mark.network

FIRST, SECOND = "1" * 32, "2" * 32


def status(host):
    code, records = host.run("status", "--json")
    assert len(records) == 1
    return code, records[0]


def test_a_host_on_which_nothing_is_installed_does_not_serve(host):
    code, said = status(host)
    assert (code, said["current"], said["serving"]) == (6, "absent", False)


def test_an_installed_host_serves_and_shows_its_units_and_receipts(host):
    first = host.stage(Build(counter=1))
    host.install(first, op_id=FIRST)
    code, said = status(host)
    assert (code, said["serving"], said["hold"], said["ops"]) == (0, True, None, [])
    assert said["current"] == said["marker"] == first.generation
    assert said["units"]["hello.service"]["active"]
    assert [receipt["result"] for receipt in said["receipts"]] == ["committed"]


def test_an_open_op_is_shown_with_its_step_and_what_is_left_of_its_deadlines(host):
    host.install(host.stage(Build(counter=1)), op_id=FIRST)
    doom(host, host.stage(Build(counter=2)), "run-steps", op_id=SECOND)
    code, said = status(host)
    assert (code, said["serving"]) == (6, False)
    assert said["hold"] == f"op {SECOND}"
    (op,) = said["ops"]
    assert (op["op_id"], op["begun"], op["stopping"], op["proved"]) == (SECOND, True, True, False)
    assert op["step"] == "run-steps started"
    assert 0 < op["deadlines_ms"]["d1"] <= 20_000
    assert host.rescue(SECOND, "now") == 0
