"""A survey says what every surface of a host is, also where they disagree, and changes nothing."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import capsule_installer
from capsule_installer import launch
from capsule_installer.care.survey import RETIRED_SETTINGS, Surveyor
from capsule_installer.op.installed import installed_marker_path
from capsule_installer.services.base import UnitState
from capsule_installer.system.accounts import FolderAccounts
from capsule_installer.system.clock import BootClock
from capsule_installer.system.facts import RealMachine
from capsule_installer.system.processes import RealProcesses
from capsule_manifest.canonical import encode
from capsule_manifest.survey import Survey, decode_survey
from capsule_manifest.wire import RecordReader
from support.staged_host import NODE, Build

pytestmark = pytest.mark.network

OP = "1" * 32
TARGET = "/etc/hello/hello.toml"


@pytest.fixture
def installed(host):
    """Return a host with one generation, and that generation's marker."""
    marker = host.stage(Build(counter=1, files={TARGET: b"one\n"}))
    assert host.install(marker, op_id=OP)[0] == 0
    return host, marker


@pytest.fixture
def staged(host):
    """Return a host with one generation that is current and was never started, and its marker."""
    marker = host.stage(Build(counter=1))
    host.disk.symlink(f"generations/{marker.generation}", host.layout.current)
    with host.disk.create(installed_marker_path(host.layout), 0o600) as writer:
        writer.write(b"{}")
    return host, marker


def look(host) -> Survey:
    code, records = host.run("survey")
    assert code == 0, records
    (record,) = records
    return decode_survey(encode(record["survey"]))


def shortly(root, *arguments):
    """Start the host program as its launcher does, where the short way is taken."""
    argv = [sys.executable, Path(launch.__file__), "--root", root, *arguments]
    site = Path(capsule_installer.__file__).parents[1]
    manifest = Path(sys.modules["capsule_manifest"].__file__).parents[1]
    return subprocess.run(
        argv,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": f"{site}:{manifest}"},
        timeout=60,
        check=False,
    )


def snapshot(host):
    """Return every name of the host with its mode, times and size."""
    found = {}
    for path in sorted(Path(host.root).rglob("*")):
        stat = path.lstat()
        found[str(path)] = (stat.st_mode, stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return found


def test_every_surface_of_a_whole_host_agrees_and_nothing_is_changed(installed):
    host, marker = installed
    before = snapshot(host)
    said = look(host)
    assert (said.node, said.current, said.previous) == (NODE, marker.generation, "absent")
    assert (said.marker.state, said.marker.generation) == ("signed", marker.generation)
    assert said.marker.capsule == said.generation.manifest == said.generation.staged
    assert (said.receipt.current, said.receipt.op_id) == (marker.generation, OP)
    unit = said.units["hello.service"]
    assert (unit.fragment, unit.active, unit.generation) == ("same", True, marker.generation)
    assert unit.commit == unit.expected_commit
    assert (said.files, said.ignored, said.unreadable) == ((), (), ())
    assert said.route == host.route_digest
    assert said.free_bytes > 0
    assert snapshot(host) == before


def test_the_short_way_says_the_same_as_the_command_line(installed):
    host, _ = installed
    done = shortly(host.root, "survey")
    assert done.returncode == 0, done.stderr
    (record,) = RecordReader().feed(done.stdout)
    short, long = dict(record["survey"]), dict(host.run("survey")[1][0]["survey"])
    for moving in ("boot_ms", "wall_ms", "free_bytes", "free_inodes"):
        assert short.pop(moving)
        assert long.pop(moving)
    assert short == long


def test_a_host_that_was_never_enrolled_answers_and_gets_no_folder(tmp_path):
    (tmp_path / "opt/capsule").mkdir(parents=True)
    done = shortly(str(tmp_path), "survey")
    assert done.returncode == 0, done.stderr
    (record,) = RecordReader().feed(done.stdout)
    said = decode_survey(encode(record["survey"]))
    assert (said.node, said.node_key, said.route, said.policy) == (None, None, None, None)
    assert (said.current, said.previous, said.marker.state) == ("absent", "absent", "absent")
    assert (said.staged, said.units, said.unreadable) == ((), {}, ())
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "opt", tmp_path / "opt/capsule"]


def test_a_folder_that_is_not_there_is_an_unreadable_surface_and_no_traceback(tmp_path):
    done = shortly(str(tmp_path), "survey")
    assert done.returncode == 0, done.stderr
    (record,) = RecordReader().feed(done.stdout)
    said = decode_survey(encode(record["survey"]))
    assert [item.surface for item in said.unreadable] == ["space", "mount flags"]
    assert (said.free_bytes, list(tmp_path.iterdir())) == (0, [])


def test_the_short_way_imports_no_command_line():
    code = (
        "import sys, capsule_installer.quick\n"
        "print(sorted({'click', 'http', 'tempfile', 'capsule_manifest.policy',"
        " 'capsule_manifest.release', 'capsule_manifest.tree'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_root_with_two_spellings_is_refused_with_words_on_the_short_way(tmp_path):
    done = shortly(f"{tmp_path}/../x", "survey")
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    (record,) = RecordReader().feed(done.stdout)
    assert record["error"] == "root-invalid"


def change(host, path, data):
    mode = host.disk.stat(path).mode & 0o7777
    host.disk.unlink(path)
    with host.disk.create(path, mode) as writer:
        writer.write(data)


def test_a_changed_unit_or_managed_file_is_compared_with_what_was_signed(installed):
    host, marker = installed
    change(host, f"{host.layout.units}/hello.service", b"[Unit]\n")
    change(host, host.layout.inside(TARGET), b"two\n")
    # Changing the generation's own copies as well hides nothing: the marker has their digests.
    folder = host.layout.generation(marker.generation)
    change(host, f"{folder}/units/hello.service", b"[Unit]\n")
    change(host, f"{folder}/files{TARGET}", b"two\n")
    said = look(host)
    assert said.units["hello.service"].fragment == "differs"
    assert [item.target for item in said.files] == [host.layout.inside(TARGET)]
    Path(host.layout.inside(TARGET)).unlink()
    assert look(host).files[0].got == "absent"


def test_a_generation_with_another_manifest_is_shown_and_its_units_are_not_believed(installed):
    host, marker = installed
    manifest = f"{host.layout.generation(marker.generation)}/capsule.json"
    change(host, manifest, host.disk.read(manifest, 2**24) + b" ")
    said = look(host)
    assert said.generation.manifest != said.generation.staged == marker.capsule
    assert said.units == {}


UNSAFE = {
    "link": lambda path: (path.rename(path.with_suffix(".kept")),
                          path.symlink_to(path.with_suffix(".kept"))),
    "writable": lambda path: path.chmod(0o666),
    "two names": lambda path: os.link(path, path.with_suffix(".other")),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_marker_is_reported_with_a_reason_and_not_read(staged, name):
    host, marker = staged
    UNSAFE[name](Path(installed_marker_path(host.layout)))
    said = look(host)
    assert said.marker.state == "unsafe"
    assert said.marker.why
    assert said.marker.generation is None
    # The signed stage marker still says what belongs to the link.
    assert (said.current, said.generation.staged) == (marker.generation, marker.capsule)
    assert said.units["hello.service"].fragment == "absent"


def test_a_marker_that_is_not_signed_is_invalid(staged):
    host, _ = staged
    said = look(host)
    assert (said.marker.state, said.marker.generation) == ("invalid", None)
    assert said.marker.why


BROKEN = {
    "current link": lambda root: (
        (root / "opt/capsule/current").unlink(),
        (root / "opt/capsule/current").symlink_to("/etc"),
    ),
    "previous link": lambda root: (root / "opt/capsule/previous").symlink_to("generations/"),
    "fence": lambda root: (root / "var/lib/capsule/state/fence").write_text("many\n"),
    "counter floor": lambda root: (root / "var/lib/capsule/state/counter-floor").write_text("-1"),
    "node key": lambda root: (root / "var/lib/capsule/state/node.key").chmod(0o644),
    "enrolment": lambda root: (root / "var/lib/capsule/state/node.json").write_text("{}"),
    "route": lambda root: (root / "var/lib/capsule/state/route.json").write_text("[]"),
}


@pytest.mark.parametrize("surface", BROKEN)
def test_a_surface_that_cannot_be_read_is_named_and_the_others_are_still_told(staged, surface):
    host, marker = staged
    BROKEN[surface](Path(host.root))
    said = look(host)
    assert [item.surface for item in said.unreadable] == [surface]
    assert said.unreadable[0].why
    assert said.staged == (marker.generation,)


@pytest.mark.parametrize("setting", RETIRED_SETTINGS)
def test_a_setting_of_a_retired_mechanism_is_reported_as_ignored(host, setting):
    argv = f"/usr/bin/env {setting}=7 {Build(counter=1).argv}"
    assert host.install(host.stage(Build(counter=1, argv=argv)), op_id=OP)[0] == 0
    (said,) = look(host).ignored
    assert (said.unit, said.setting) == ("hello.service", setting)


@dataclass(frozen=True)
class Manager:
    """A service manager that has read one file for every unit."""

    fragment: str
    is_stale: bool = False
    name: str = "systemd"

    def state(self, unit):
        del unit
        return UnitState(
            active=True, pid=0, invocation_id="i", restarts=0, result="", fragment=self.fragment,
            is_stale=self.is_stale,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("where", "is_stale", "told"),
    [("units", False, "same"), ("units", True, "differs"), ("etc", False, "differs")],
)
def test_a_unit_file_that_the_manager_has_not_read_as_it_is_differs(staged, where, is_stale, told):
    host, marker = staged
    source = f"{host.layout.generation(marker.generation)}/units/hello.service"
    path = f"{host.layout.units}/hello.service"
    with host.disk.create(path, 0o644) as writer:
        writer.write(host.disk.read(source, 2**20))
    read = path if where == "units" else "/etc/systemd/system/hello.service"
    survey = Surveyor(
        disk=host.disk,
        layout=host.layout,
        clock=BootClock(),
        machine=RealMachine(),
        services=Manager(fragment=read, is_stale=is_stale),
        processes=RealProcesses(),
        accounts=FolderAccounts(),
    ).look()
    assert survey.units["hello.service"].fragment == told
