"""What still runs of another generation is found: in forks, re-executions, and files kept open.

Every process here is a real one. Each says when it is as it shall be looked at.
"""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule_installer.op.loaded import check_fragment, check_processes
from capsule_installer.services.base import UnitState
from capsule_installer.system.processes import RealProcesses, control_group
from support.failures import fails_with
from support.staged_host import Build, StagedHost, await_true, free_port

OLD, NEW = "1-00000000", "2-11111111"
UNIT = "a.service"
WAIT = "import sys, time; print('ready', flush=True); time.sleep(60)\n"


class Place:
    """Two generations with a program each, and the processes that a test started."""

    def __init__(self, root: Path) -> None:
        self.generations = root / "opt/capsule/generations"
        for name in (OLD, NEW):
            folder = self.generations / name
            folder.mkdir(parents=True)
            (folder / "wait.py").write_text(WAIT)
            (folder / "data").write_bytes(bytes(mmap.PAGESIZE))
        self.started: list[subprocess.Popen[str]] = []

    def old(self, inside: str = "wait.py") -> str:
        return str(self.generations / OLD / inside)

    def new(self, inside: str = "wait.py") -> str:
        return str(self.generations / NEW / inside)

    def run(self, code: str, **how: object) -> int:
        """Run Python code as the main process; return its pid once something said `ready`."""
        # From a file: on the command line the code itself would show what it does.
        main = Path(self.new(f"main{len(self.started)}.py"))
        main.write_text(code)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", main],
            stdout=subprocess.PIPE, text=True, start_new_session=True, cwd="/",
            **how,  # type: ignore[call-overload]
        )  # fmt: skip
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    def check(self, pid: int, groups: Callable[[int], str] = control_group) -> int:
        return check_processes(
            RealProcesses(), groups, unit=UNIT, pid=pid, folder=str(self.generations / NEW)
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for process in made.started:
        os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def child(path: str, *, environment: str = "None") -> str:
    """Return code that starts a program as a child and stays."""
    return (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-I', '-S', {path!r}], env={environment})\n"
        "time.sleep(60)\n"
    )


def refused(place: Place, pid: int, got: str) -> None:
    with fails_with("proof-failed") as failure:
        place.check(pid)
    assert got in failure.value.got


def test_a_program_and_its_forks_of_the_same_generation_are_counted(place):
    pid = place.run(child(place.new()))
    assert place.check(pid) == 1


def test_a_worker_that_runs_the_old_program_is_found(place):
    refused(place, place.run(child(place.old())), f"argument {place.old()}")


def test_a_worker_of_a_worker_is_found(place):
    code = f"import os\nif os.fork(): os.wait()\nelse:\n exec({child(place.old())!r})\n"
    refused(place, place.run(code), place.old())


def test_a_worker_that_inherited_the_old_environment_is_found(place):
    environment = f"{{'CAPSULE_GENERATION': {OLD!r}}}"
    refused(place, place.run(child(place.new(), environment=environment)), OLD)


def test_a_worker_that_finds_its_modules_in_the_old_generation_is_found(place):
    environment = f"{{'PYTHONPATH': '/x:' + {place.old('lib')!r}}}"
    refused(place, place.run(child(place.new(), environment=environment)), "PYTHONPATH")


def test_a_program_that_executes_itself_anew_from_the_old_generation_is_found(place):
    code = (
        f"import os, sys\nos.execv(sys.executable, [sys.executable, '-I', '-S', {place.old()!r}])\n"
    )
    refused(place, place.run(code), f"argument {place.old()}")


def test_a_program_that_executes_itself_anew_from_its_own_generation_is_no_stranger(place):
    code = (
        f"import os, sys\nos.execv(sys.executable, [sys.executable, '-I', '-S', {place.new()!r}])\n"
    )
    assert place.check(place.run(code)) == 0


def test_an_old_file_that_is_kept_open_is_found_until_it_is_closed(place):
    with Path(place.old("data")).open("rb") as handed_over:
        pid = place.run(WAIT, pass_fds=(handed_over.fileno(),))
    refused(place, pid, f"open {place.old('data')}")
    assert place.check(place.run(WAIT)) == 0


def test_an_old_file_that_is_kept_open_is_found_after_it_was_removed(place):
    with Path(place.old("data")).open("rb") as handed_over:
        pid = place.run(WAIT, pass_fds=(handed_over.fileno(),))
    Path(place.old("data")).unlink()
    refused(place, pid, f"{place.old('data')} (deleted)")


def test_an_old_file_that_is_mapped_and_closed_is_found(place):
    code = (
        "import mmap, os\n"
        f"handle = os.open({place.old('data')!r}, os.O_RDONLY)\n"
        "kept = mmap.mmap(handle, 0, prot=mmap.PROT_READ)\n"
        "os.close(handle)\n"
    )
    refused(place, place.run(code + WAIT), f"{place.old('data')}")


def test_an_executable_of_the_old_generation_is_found(place):
    program = place.old("program")
    Path(program).write_bytes(Path("/bin/sleep").read_bytes())
    Path(program).chmod(0o755)
    code = (
        "import os\n"
        f"if os.fork() == 0: os.execv({program!r}, ['sleep', '60'])\n"
        "import time; time.sleep(0.3)\n"
    )
    refused(place, place.run(code + WAIT), f"mapped {program}")


def test_a_process_that_stands_in_the_old_generation_is_found(place):
    refused(place, place.run(f"import os; os.chdir({place.old('')!r})\n" + WAIT), "its folder")


def test_a_daemon_that_left_its_parent_is_found_by_its_control_group(place):
    pid, other = place.run(WAIT), place.run(f"old = open({place.old()!r})\n" + WAIT)
    assert place.check(pid) == 0
    group = f"/system.slice/{UNIT}"
    groups = {pid: group, other: f"{group}/workers"}
    with fails_with("proof-failed") as failure:
        place.check(pid, lambda number: groups.get(number, "/"))
    assert str(other) in str(failure.value)


def test_a_name_that_only_begins_alike_is_another_matter(place):
    beside = place.generations / (OLD + "-notes")
    beside.mkdir()
    assert place.check(place.run(f"import os; os.chdir({str(beside)!r})\n" + WAIT)) == 0


def test_a_unit_whose_files_changed_since_they_were_read_is_not_proved():
    state = UnitState(
        active=True, pid=1, invocation_id="i", restarts=0, result="", fragment=f"/u/{UNIT}",
        is_stale=True,
    )  # fmt: skip
    with fails_with("proof-failed"):
        check_fragment(UNIT, state, "/u")


def test_another_unit_file_is_not_proved_and_the_own_one_is_evidence():
    state = UnitState(
        active=True, pid=1, invocation_id="i", restarts=0, result="", fragment=f"/u/{UNIT}"
    )
    assert check_fragment(UNIT, state, "/u") == (f"fragment /u/{UNIT}",)
    with fails_with("proof-failed"):
        check_fragment(UNIT, state, "/etc/systemd/system")


# --- a whole install ------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StagedHost]:
    made = StagedHost(str(tmp_path), port=free_port())
    yield made
    made.stop_services()


SERVE = f"{sys.executable} -I -S {{folder}}/app/serve.py {{port}} {{counter}}"


@pytest.mark.network
@pytest.mark.parametrize(
    "keeps",
    ["exec 9<{old}/app/serve.py", "tail -f {old}/app/serve.py >/dev/null &", "cd {old}/app &&"],
    ids=["an open file", "a worker", "a folder"],
)
def test_a_release_that_keeps_something_of_the_old_one_is_restored(host, keeps):
    first = host.stage(Build(counter=1))
    assert host.install(first, op_id="1" * 32)[0] == 0
    script = keeps.format(old=host.layout.generation(first.generation))
    end = "" if script.endswith(("&", "&&")) else ";"
    second = host.stage(Build(counter=2, argv=f"/bin/sh -c '{script}{end} exec {SERVE}'"))
    assert host.install(second, op_id="2" * 32)[0] == 60
    assert "still uses another generation" in host.op("2" * 32).reason()
    await_true(lambda: host.get() == "1")
