"""Whole ops on a folder host, with real processes, the real supervisor and the real rescue."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from capsule_installer.host.receipts import verify_chain
from capsule_installer.op.op_folder import OpFile, Result
from capsule_manifest.envelope import decode_record, encode_record
from capsule_manifest.keys import b64decode
from capsule_manifest.records import decode_proof, decode_receipt
from support.staged_host import Build, StagedHost, await_true
from support.supervising import doom

pytestmark = pytest.mark.network

FIRST, SECOND, THIRD = "1" * 32, "2" * 32, "3" * 32
CONFIG = "/etc/hello/hello.toml"
BROKEN = Build(counter=3, argv="/bin/false", start_ms=700)
STEPS = [
    "prepare",
    "intend",
    "arm",
    "guard",
    "hold",
    "copy-units",
    "start-d1",
    "stop",
    "switch",
    "run-steps",
    "release-network",
    "unhold",
    "start",
    "prove",
    "commit",
]


def one_and_two(host):
    """Install a first generation and stage a second."""
    first = host.stage(Build(counter=1, files={CONFIG: b"one\n"}))
    second = host.stage(Build(counter=2, files={CONFIG: b"two\n"}))
    assert host.install(first, op_id=FIRST)[0] == 0
    assert host.get() == "1"
    return first, second


def is_whole(host, marker, counter):
    """Say whether one generation is all there is."""
    units = Path(host.layout.units) / "hello.service"
    return (
        host.current() == marker.generation
        and marker.generation in units.read_text()
        and Path(host.root + CONFIG).read_bytes() == {1: b"one\n", 2: b"two\n"}[counter]
        and not Path(host.layout.hold).exists()
        and leftovers(host) == []
    )


def leftovers(host):
    """Return what an op laid beside its targets and should have removed."""
    return [str(path) for path in Path(host.root).rglob(".*.capsule-*")]


def chain(host):
    """Return all receipts of a host after checking every link."""
    effects = host.effects()
    envelopes = [item.envelope for item in effects.chain.read_all()]
    return verify_chain(envelopes, effects.signer.public)


def test_an_install_is_proved_confirmed_and_leaves_one_whole_generation(host):
    first, second = one_and_two(host)
    code, records = host.install(second, op_id=SECOND)
    assert code == 0
    assert host.get() == "2"
    assert is_whole(host, second, 2)
    assert host.disk.read_link(host.layout.previous) == f"generations/{first.generation}"
    proof = decode_proof(host.op(SECOND).proof().payload)
    assert [unit.unit for unit in proof.units] == ["hello.service"]
    assert proof.units[0].evidence[0].endswith(f"{second.generation}/app")
    receipt = decode_receipt(decode_record(b64decode(records[-1]["receipt"], ""), where="").payload)
    assert (receipt.result, receipt.guard) == ("committed", "L0: not monitored")
    assert [step.name for step in receipt.steps][:3] == ["prepare", "intend", "arm"]
    assert [item.result for item in chain(host)] == ["committed", "committed"]


def test_a_release_that_crashes_is_restored_by_itself(host):
    one_and_two(host)
    broken = host.stage(replace(BROKEN, files={CONFIG: b"three\n"}))
    before = host.current()
    code, records = host.install(broken, op_id=THIRD)
    assert code == 60
    assert host.get() == "1"
    assert host.current() == before
    assert Path(host.root + CONFIG).read_bytes() == b"one\n"
    assert records[-2]["by"] == "supervisor"
    assert "proof-failed" in records[-2]["reason"]
    assert chain(host)[-1].result == "restored"
    assert leftovers(host) == []


def test_a_first_install_that_fails_leaves_an_absent_and_held_node(host):
    broken = host.stage(replace(BROKEN, files={CONFIG: b"three\n"}))
    assert host.install(broken, op_id=FIRST)[0] == 60
    assert host.current() == "absent"
    assert list(Path(host.layout.units).iterdir()) == []
    assert not Path(host.root + CONFIG).exists()
    assert Path(host.layout.hold).read_text() == f"op {FIRST}\n"
    assert chain(host)[-1].result == "restored-absent"
    # Fixed forward: the hold of a finished op is no obstacle.
    good = host.stage(Build(counter=4))
    assert host.install(good, op_id=SECOND)[0] == 0
    assert host.get() == "4"
    assert not Path(host.layout.hold).exists()


def test_repeating_an_order_returns_the_stored_receipt_and_does_nothing(host):
    first, _ = one_and_two(host)
    runner = (Path(host.layout.run) / "services/hello.service/main").read_text()
    envelope = host.order_now(first, op_id=FIRST, prior="absent")
    code, records = host.run("install", stdin=encode_record(envelope))
    assert code == 0
    assert records[0]["record"] == "result"
    assert records[0]["result"] == "committed"
    assert (Path(host.layout.run) / "services/hello.service/main").read_text() == runner


def test_a_rollback_brings_back_the_unit_set_and_the_files_of_before(host):
    first = host.stage(Build(counter=1, files={CONFIG: b"one\n"}))
    host.install(first, op_id=FIRST)
    run = f"{sys.executable} -I -S {{folder}}/app/serve.py 0 2"
    second = host.stage(
        Build(counter=3, units=("hello.service", "more.service"), probe=False, argv=run,
              files={"/etc/hello/more.toml": b"more\n"})
    )  # fmt: skip
    assert host.install(second, op_id=SECOND)[0] == 0
    assert not Path(host.root + CONFIG).exists()
    assert (Path(host.layout.units) / "more.service").exists()
    code, _ = host.run("rollback", "--json")
    assert code == 0
    assert host.get() == "1"
    assert sorted(path.name for path in Path(host.layout.units).iterdir()) == [
        "hello.service",
        "hello.service.run",
    ]
    assert Path(host.root + CONFIG).read_bytes() == b"one\n"
    assert not Path(host.root + "/etc/hello/more.toml").exists()
    assert [item.kind for item in chain(host)][-1] == "rollback"


@pytest.mark.parametrize(
    ("way", "step"),
    [*(("rescue", step) for step in STEPS), *(("boot", step) for step in STEPS[1::4])],
)
def test_a_supervisor_killed_at_any_step_leaves_the_old_release_serving(host, step, way):
    first, second = one_and_two(host)
    op = doom(host, second, step, op_id=SECOND)
    began = op.has(OpFile.INTENT)
    assert began == (step not in {"prepare", "intend"})
    if way == "rescue":
        assert host.rescue(SECOND, "now") == 0
    code, _ = host.run("boot")
    assert code == 0
    assert host.get() == "1"
    assert is_whole(host, first, 1)
    assert op.result() is (Result.RESTORED if began else Result.REFUSED)
    assert chain(host)[-1].result == ("restored" if began else "refused")


def test_the_first_deadline_restores_when_the_supervisor_dies_while_stopped(host):
    first, second = one_and_two(host)
    short = replace(Build(counter=5), soak_ms=50, start_ms=300, stop_ms=300)
    marker = host.stage(short)
    op = doom(host, marker, "switch", op_id=SECOND, d1_ms=1_500)
    assert host.get() == ""
    died = time.monotonic()
    await_true(lambda: op.result() is not None)
    assert time.monotonic() - died < 4
    assert host.get() == "1"
    assert host.current() == first.generation
    # Shell can't sign: the next program that looks has it in the chain.
    code, records = host.run("follow", SECOND, "--timeout", "5")
    assert code == 60
    assert (records[-2]["result"], records[-2]["by"]) == ("restoring", "rescue")
    assert chain(host)[-1].result == "restored"
    assert host.install(second, op_id=THIRD)[0] == 0


def test_the_second_deadline_restores_and_a_late_confirm_is_refused(host):
    one_and_two(host)
    second = host.stage(Build(counter=6))
    op = host.begin(second, op_id=SECOND, d2_ms=800)
    await_true(lambda: op.proof() is not None)
    assert host.get() == "6"
    await_true(lambda: op.result() is not None)
    late = host.confirm(SECOND, op.proof().digest)
    code, records = host.run("confirm", stdin=encode_record(late))
    assert (code, records[-1]["error"]) == (60, "confirm-refused")
    assert host.run("follow", SECOND)[0] == 60
    assert host.get() == "1"


def test_the_second_deadline_holds_when_the_supervisor_is_dead(host):
    one_and_two(host)
    second = host.stage(Build(counter=6))
    op = doom(host, second, "commit", op_id=SECOND, d2_ms=1_200)
    await_true(lambda: op.result() is Result.RESTORED)
    assert host.get() == "1"


def test_a_confirm_commits_even_when_the_supervisor_is_dead(host):
    _, second = one_and_two(host)
    op = doom(host, second, "commit", op_id=SECOND)
    code, _ = host.run("confirm", stdin=encode_record(host.confirm(SECOND, op.proof().digest)))
    assert code == 0
    assert host.run("follow", SECOND)[0] == 0
    assert is_whole(host, second, 2)
    assert host.rescue(SECOND, "now") == 0
    assert host.get() == "2"


def test_a_boot_restores_also_a_proved_op(host):
    first, second = one_and_two(host)
    op = doom(host, second, "commit", op_id=SECOND)
    assert op.proof() is not None
    assert host.rescue("boot") == 0
    assert host.get() == "1"
    code, records = host.run(
        "confirm", stdin=encode_record(host.confirm(SECOND, op.proof().digest))
    )
    assert (code, records[-1]["error"]) == (60, "confirm-refused")
    host.run("boot")
    assert is_whole(host, first, 1)


def test_an_edited_managed_file_refuses_the_op_before_anything_is_stopped(host):
    first, second = one_and_two(host)
    Path(host.root + CONFIG).write_bytes(b"by hand\n")
    pid = (Path(host.layout.run) / "services/hello.service/main").read_text()
    code, _ = host.install(second, op_id=SECOND)
    assert code == 3
    assert "managed-file-edited" in chain(host)[-1].reason
    assert (Path(host.layout.run) / "services/hello.service/main").read_text() == pid
    assert host.current() == first.generation
    assert Path(host.root + CONFIG).read_bytes() == b"by hand\n"
    assert leftovers(host) == []


def test_a_failed_guarded_step_restores_and_its_output_is_in_the_receipt(host):
    one_and_two(host)
    failing = host.stage(
        Build(counter=7, guarded_steps=(("/bin/sh", "-c", "echo no such table; exit 3"),))
    )
    assert host.install(failing, op_id=SECOND)[0] == 60
    assert "no such table" in chain(host)[-1].reason
    assert host.get() == "1"


def test_a_failed_restore_keeps_the_hold_and_is_made_good_later(host):
    first, second = one_and_two(host)
    op = doom(host, second, "start", op_id=SECOND)
    blocked = Path(host.layout.units) / "hello.service"
    blocked.rename(blocked.with_name("moved"))
    blocked.mkdir()
    assert host.rescue(SECOND, "now") == 61
    assert op.result() is Result.FAILED
    assert Path(host.layout.hold).exists()
    third = host.stage(Build(counter=8))
    code, records = host.run("install", stdin=encode_record(host.order_now(third, op_id=THIRD)))
    assert (code, records[-1]["error"]) == (8, "op-open")
    blocked.rmdir()
    blocked.with_name("moved").rename(blocked)
    assert host.run("boot")[0] == 0
    assert host.get() == "1"
    assert is_whole(host, first, 1)
    assert [item.result for item in chain(host)][-2:] == ["restore-failed", "restored"]


def test_a_service_started_under_the_hold_stays_down(host: StagedHost):
    one_and_two(host)
    services = host.effects().services
    services.stop("hello.service", 1_000)
    Path(host.layout.hold).write_text("by hand\n")
    services.start("hello.service", 1_000)
    state = services.state("hello.service")
    assert (state.active, state.result) == (False, "condition")
    Path(host.layout.hold).unlink()


def test_an_order_under_another_route_ends_with_40_and_begins_nothing(host: StagedHost):
    marker = host.stage(Build(counter=1))
    order = host.order_now(marker, op_id="4" * 32, route="sha256:" + "0" * 64)
    code, records = host.run("install", stdin=encode_record(order))
    assert (code, records[-1]["error"]) == (40, "order-wrong-route")
    assert host.current() == "absent"
    assert host.disk.list(host.layout.ops) == []
