"""The lab itself: a fault that does not bite proves nothing about what withstands it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.lab.base import base_tree
from support.lab.commands import LabError, command, wait_until
from support.lab.delay import DelayProxy
from support.lab.fleet import Lab
from support.lab.network import Network

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network]

MIB = 1024**2


def over_ssh(host, *arguments, timeout_s=10):
    return subprocess.run(
        host.ssh(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def write_inside(host, path, *, fsync):
    program = (
        "import os,sys;f=os.open(sys.argv[1],os.O_CREAT|os.O_WRONLY);os.write(f,b'x'*4096)"
        + (";os.fsync(f);os.fsync(os.open('/root',os.O_RDONLY))" if fsync else "")
    )
    host.run("python3", "-c", program, path)


def test_a_host_has_systemd_sshd_and_an_identity_of_its_own(host, lab):
    other = lab.new_host()
    try:
        assert host.run("cat", "/proc/1/comm").stdout.strip() == "systemd"
        assert over_ssh(host, "hostname").stdout.strip() == host.name
        assert host.host_key != other.host_key
        assert host.path("/etc/machine-id").read_text() != other.path("/etc/machine-id").read_text()
    finally:
        other.remove()


def test_hosts_of_a_run_reach_each_other_and_nothing_else(host, lab):
    other = lab.new_host()
    try:
        knock = "import socket,sys; socket.create_connection((sys.argv[1], 22), timeout=3)"
        host.run("python3", "-c", knock, other.address)
        outside = host.run("ip", "route", "get", "192.0.2.1", check=False)
        assert outside.returncode != 0
    finally:
        other.remove()


def test_a_killed_host_boots_again_on_the_same_disk(host):
    before = host.run("cat", "/proc/sys/kernel/random/boot_id").stdout
    write_inside(host, "/root/kept", fsync=False)
    host.reboot()
    assert host.path("/root/kept").exists()
    assert host.run("cat", "/proc/sys/kernel/random/boot_id").stdout != before


def test_a_power_cut_loses_what_was_not_fsynced_and_only_that(host):
    write_inside(host, "/root/durable", fsync=True)
    write_inside(host, "/root/lost", fsync=False)
    host.cut_power()
    host.boot()
    assert host.path("/root/durable").stat().st_size == 4096
    lost = host.path("/root/lost")
    assert not lost.exists() or lost.stat().st_size == 0


def test_a_disk_is_free_after_a_power_cut_though_another_host_was_booted_later(host, lab):
    other = lab.new_host()
    try:
        write_inside(host, "/root/durable", fsync=True)
        host.cut_power()
        assert str(host.volume.root.parent) not in command("losetup", "--list").stdout
        host.boot()
        write_inside(host, "/root/again", fsync=True)
    finally:
        other.remove()


def test_a_frozen_host_takes_connections_and_stays_silent(host):
    host.freeze()
    assert host.state() == "frozen"
    with socket.create_connection((host.address, 22), timeout=2) as link:
        link.settimeout(0.5)
        with pytest.raises(TimeoutError):
            link.recv(4)
    host.thaw()
    wait_until(host.answers, timeout_s=10, what="a thawed host answers")


def test_a_cut_cable_is_silence_and_a_rejected_one_an_error(host):
    host.cable.cut()
    with pytest.raises(TimeoutError):
        socket.create_connection((host.address, 22), timeout=0.5)
    assert host.run("cat", "/proc/1/comm").stdout.strip() == "systemd"
    host.cable.reject()
    with pytest.raises(OSError, match=r"No route to host|unreachable"):
        socket.create_connection((host.address, 22), timeout=0.5)
    host.cable.mend()
    wait_until(host.answers, timeout_s=10, what="a mended host answers")


def test_a_changed_host_key_is_noticed_by_ssh(host):
    pinned = host.ssh("true")
    host.change_host_key()
    # `ssh` pins the key that the disk has when it is asked: the pin of before is used here.
    known = Path(next(w for w in pinned if w.startswith("UserKnownHostsFile=")).partition("=")[2])
    assert over_ssh(host, "true").returncode == 0
    old = known.read_text().replace(host.host_key.split()[1], "A" * 68)
    known.write_text(old)
    done = subprocess.run(pinned, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 255


def test_a_full_disk_takes_no_byte_until_it_is_emptied(lab):
    host = lab.new_host(disk_bytes=96 * MIB, disk_inodes=4096)
    try:
        host.volume.fill(leave_bytes=0)
        full = host.run("dd", "if=/dev/zero", "of=/root/more", "bs=1M", "count=1", check=False)
        assert "No space left" in full.stderr
        host.volume.empty()
        host.run("dd", "if=/dev/zero", "of=/root/more", "bs=1M", "count=1")
        host.volume.fill_inodes()
        assert "No space left" in host.run("mkdir", "/root/one", check=False).stderr
        host.volume.empty()
        host.run("mkdir", "/root/one")
    finally:
        host.remove()


def test_a_failed_disk_is_read_only_until_the_host_boots_again(host):
    host.volume.fail()
    assert host.run("touch", "/root/one", check=False).returncode != 0
    host.kill()
    host.volume.unmount()
    host.boot()
    host.run("touch", "/root/one")


def test_a_read_only_folder_refuses_writes_and_the_rest_takes_them(host):
    host.make_read_only("/opt")
    assert "Read-only" in host.run("touch", "/opt/one", check=False).stderr
    host.run("touch", "/root/one")
    host.make_writable("/opt")
    host.run("touch", "/opt/one")


def test_a_stopped_sshd_leaves_the_rest_of_the_host_running(host):
    host.signal_unit("ssh.service", signal.SIGSTOP)
    assert not host.answers()
    assert host.state() == "booting"
    assert host.run("systemctl", "is-active", "dbus.service").stdout.strip() == "active"
    host.signal_unit("ssh.service", signal.SIGCONT)
    wait_until(host.answers, timeout_s=10, what="sshd goes on")


def test_a_delaying_proxy_delays_each_way_and_can_hang(host):
    with DelayProxy((host.address, 22), delay_s=0.1) as proxy:
        started = time.monotonic()
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as link:
            assert link.recv(4) == b"SSH-"
            assert time.monotonic() - started >= 0.1
        proxy.hang()
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as link:
            link.settimeout(0.5)
            with pytest.raises(TimeoutError):
                link.recv(4)
            proxy.recover()
            link.settimeout(5)
            assert link.recv(4) == b"SSH-"


def test_a_command_that_fails_inside_says_what_it_printed(host):
    with pytest.raises(LabError, match="no-such-file"):
        host.run("cat", "/no-such-file")


def test_what_a_crashed_run_left_behind_is_taken_down_by_the_next(lab):
    begin = (
        "import os; from support.lab.fleet import Lab; lab = Lab.open(); lab.new_host();"
        "print(lab.run, flush=True); os._exit(1)"
    )
    crashed = subprocess.run(
        [sys.executable, "-c", begin],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert crashed.returncode == 1, crashed.stderr
    left = Lab(int(crashed.stdout))
    [host] = left.hosts()
    assert host.state() == "up"
    with Lab.open():
        assert not left.folder.exists() or left.hosts() == []
        assert host.pid is None
        assert not host.cable.namespace_path.exists()
    assert left.run != lab.run
    assert lab.network.exists()


def test_down_takes_what_a_killed_process_left_and_leaves_no_mount(tmp_path):
    base = base_tree()
    home = tmp_path / "home"
    home.mkdir()
    (home / base.name).symlink_to(base)
    environment = {
        **os.environ,
        "CAPSULE_LAB_CACHE": str(home),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }

    def lab_says(*words):
        program = [sys.executable, "-m", "lab.run", *words]
        return subprocess.run(
            program, capture_output=True, text=True, timeout=60, check=True, env=environment
        ).stdout

    begin = (
        "import time; from support.lab.fleet import Lab; lab = Lab.open(); lab.new_host();"
        "print(lab.run, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", begin], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        run = int(owner.stdout.readline())
        assert json.loads(lab_says("status", "--json")) == []
        assert lab_says("down") == "nothing was up\n"
        owner.kill()
    [row] = json.loads(lab_says("status", "--json"))
    assert (row["run"], row["left_behind"], row["state"]) == (run, True, "up")
    assert "left by a killed process" in lab_says("status")
    assert lab_says("down") == "down\n"
    assert json.loads(lab_says("status", "--json")) == []
    assert not Network(run).exists()
    assert str(home) not in Path("/proc/self/mountinfo").read_text()
    shutil.rmtree(home)


def test_a_run_that_is_down_leaves_no_mount_process_link_or_group():
    lab = Lab.open()
    host = lab.new_host()
    pid = host.pid
    lab.down()
    lab.down()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=5, what="no init is left")
    assert f"{lab.folder}/" not in Path("/proc/self/mountinfo").read_text()
    assert not Network(lab.run).exists()
    assert str(lab.folder) not in command("losetup", "--list").stdout
    assert not list(Path("/sys/fs/cgroup").glob(f"*/capsule-lab-{lab.run}"))
