"""What `rescue.sh` waits for before it moves a name, and what it takes for an image."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from capsule_installer.op.op_folder import OpFile, Result
from support.staged_host import Build, script
from support.supervising import doom

pytestmark = pytest.mark.network

FIRST, SECOND = "1" * 32, "2" * 32


@pytest.fixture
def stopped(host):
    """A host whose supervisor died when the new release's names were in place."""
    first = host.stage(Build(counter=1))
    second = host.stage(Build(counter=2))
    assert host.install(first, op_id=FIRST)[0] == 0
    op = doom(host, second, "run-steps", op_id=SECOND)
    return host, first, op


def ticks(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def lead(script):
    """Start a shell that leads a group; return it with the line that names it in an op."""
    leader = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)
    return leader, f"{leader.pid} {ticks(leader.pid)}\n".encode()


def alive(group):
    """Return the states of what of a process group is more than a zombie."""
    states = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = entry.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                states.append(state)
    return states


def name_worker(op, line):
    path = Path(op.path) / OpFile.WORKER
    path.unlink(missing_ok=True)
    path.write_bytes(line)


def test_names_move_only_when_the_last_of_a_group_without_a_leader_is_gone(stopped, tmp_path):
    host, first, op = stopped
    written = tmp_path / "last-write"
    leader, line = lead(f"(sleep 1; : > {written}) & sleep 0.1")
    name_worker(op, line)
    leader.wait()
    assert host.rescue(SECOND, "now") == 0
    assert op.result() is Result.RESTORED
    moved_ns = Path(host.layout.current).lstat().st_ctime_ns
    assert written.stat().st_mtime_ns < moved_ns
    assert host.current() == first.generation


def test_a_group_that_does_not_end_delays_a_restore_by_a_bounded_time(stopped, tmp_path):
    host, first, op = stopped
    leader, line = lead(f"(sleep 30; : > {tmp_path}/late) & echo $! > {tmp_path}/left; sleep 0.1")
    name_worker(op, line)
    leader.wait()
    began = time.monotonic()
    assert host.rescue(SECOND, "now") == 0
    assert 2 <= time.monotonic() - began < 12
    assert host.current() == first.generation
    subprocess.run(["/bin/kill", "-KILL", "--", f"-{leader.pid}"], check=True)


def test_a_worker_is_killed_with_its_group_and_waited_for_although_nobody_reaps_it(stopped):
    host, first, op = stopped
    leader, line = lead("sleep 100 & wait")
    name_worker(op, line)
    assert host.rescue(SECOND, "now") == 0
    assert leader.wait(0.1) == -9
    assert alive(leader.pid) == []
    assert host.current() == first.generation


def test_a_number_that_somebody_else_has_now_is_neither_killed_nor_waited_for(stopped):
    host, first, op = stopped
    leader, _ = lead("sleep 100")
    name_worker(op, f"{leader.pid} 1\n".encode())
    assert host.rescue(SECOND, "now") == 0
    assert leader.poll() is None
    leader.kill()
    leader.wait()
    assert host.current() == first.generation


PODMAN = """#!/bin/sh
echo "$*" >> {calls}
case $1 in
    image) [ -e {held} ] ;;
    ps) cat {running} 2> /dev/null || : ;;
    rmi) rm {held} ;;
    pull) : > {held} ;;
esac
"""


def load_images(tmp_path, *, note, held, running=False):
    """Run this part of the program with a podman of the test; return what that is asked for."""
    text = Path(script("rescue.sh")).read_text()
    begin, end = text.index("podman_says() {"), text.index("start_units() {")
    tools = tmp_path / "bin"
    tools.mkdir()
    files = {
        "calls": tmp_path / "calls",
        "held": tmp_path / "held",
        "running": tmp_path / "running",
    }
    (tools / "podman").write_text(PODMAN.format(**files))
    (tools / "podman").chmod(0o755)
    engine = tmp_path / "state" / "engines" / "podman"
    engine.mkdir(parents=True)
    (tmp_path / "images.old").write_text("sha256:aa\t/g/web\n")
    for wanted, path in ((note, engine / "aa.loading"), (held, files["held"])):
        if wanted:
            path.touch()
    if running:
        files["running"].write_text("1234\n")
    program = f"""
        PATH={tools}:$PATH state={tmp_path} op={tmp_path} tab=$(printf '\\t')
        log() {{ echo "$*" >&2; }}
        {text[begin:end]}
        load_images"""
    subprocess.run(["sh", "-u", "-f", "-c", program], check=True)
    assert files["held"].exists()
    return [line.split()[0] for line in files["calls"].read_text().splitlines()]


def test_an_image_that_podman_holds_is_not_loaded_again(tmp_path):
    assert load_images(tmp_path, note=False, held=True) == ["image"]


def test_an_image_that_podman_lost_is_loaded(tmp_path):
    assert load_images(tmp_path, note=False, held=False) == ["image", "pull"]


@pytest.mark.parametrize("held", [False, True])
def test_an_image_whose_load_was_cut_short_is_dropped_before_it_is_believed(tmp_path, held):
    calls = load_images(tmp_path, note=True, held=held)
    dropped = ["image", "ps", "untag", "rmi"]
    assert calls == [*(dropped if held else ["image"]), "pull", *dropped, "pull"]


def test_an_image_that_a_container_runs_stays_whatever_a_note_says(tmp_path):
    assert load_images(tmp_path, note=True, held=True, running=True) == ["image", "ps"]
