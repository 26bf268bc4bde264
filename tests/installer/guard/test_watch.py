"""The guard's own program on this machine's kernel, where that lets it: root, real namespaces."""

import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from capsule_installer.guard.facts import host_levels
from capsule_installer.host.layout import make_layout
from capsule_installer.system.clock import BootClock

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        "L3" not in host_levels(make_layout("/"), BootClock()), reason="no guard on this kernel"
    ),
]

START = "import sys; from capsule_installer.guard import watch; sys.exit(watch.main())"
PROGRAM = [sys.executable, "-c", START]
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
# The system's own: a step has a temporary folder to itself, and this checkout may lie in ours.
PYTHON = shutil.which("python3", path=ENVIRONMENT["PATH"]) or sys.executable
WAIT_S = 30


class Guard:
    """One guard, spoken with as the supervisor does."""

    def __init__(self, level="L3", **options):
        self.process = subprocess.Popen(
            PROGRAM,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            **options,
        )
        self.say({"level": level})
        self.armed = self.hear()

    def say(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline() or "{}")

    def run(self, *argv):
        """Run a step; return its exit code, its output, and what was found."""
        self.say({"run": {"argv": list(argv), "folder": "/", "environment": ENVIRONMENT}})
        found = []
        while "exit" not in (said := self.hear()):
            found.append(said["finding"])
        return said["exit"], said["output"], found

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(WAIT_S)
        self.process.stdout.close()
        return code


@pytest.fixture
def make():
    begun = []

    def one(*arguments, **options):
        begun.append(Guard(*arguments, **options))
        return begun[-1]

    yield one
    for guard in begun:
        if guard.process.poll() is None:
            guard.end()


@pytest.fixture
def guard(make):
    return make()


def python(text):
    return [PYTHON, "-I", "-S", "-c", text]


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_a_guard_is_armed_once_its_canary_was_stopped(make, level):
    guard = make(level)
    assert guard.armed == {"armed": level}
    assert guard.run("/bin/true") == (0, "", [])
    assert guard.end() == 0


def test_a_step_sees_itself_and_the_first_process_only(guard):
    code, output, found = guard.run("/bin/sh", "-c", "cd /proc; echo [0-9]*; ls /run /dev")
    assert (code, found) == (0, [])
    numbers, *names = output.split("\n")
    assert len(numbers.split()) == 2
    assert {"null", "shm"} <= set(names)
    assert "sda" not in names


def test_a_step_has_three_descriptors_whatever_its_starters_had(make):
    with socket.socket() as link:
        guard = make(pass_fds=[link.fileno()])
        code, output, _ = guard.run("/bin/ls", "/proc/self/fd")
    # The fourth is the folder that is read.
    assert (code, output.split()) == (0, ["0", "1", "2", "3"])


def test_the_first_process_has_nothing_that_leads_out(guard):
    [first] = _children(guard.process.pid)
    links = {link.name: str(link.readlink()) for link in Path(f"/proc/{first}/fd").iterdir()}
    assert links["0"] == "/dev/null"
    assert links["1"] == links["2"]
    assert links["1"].startswith("pipe:")
    others = [link for link in links.values() if link not in {"/dev/null", links["1"]}]
    # Its own end of a pair that only the guard's program has the other end of.
    assert [link.partition(":")[0] for link in others] == ["socket"]


def test_a_step_can_neither_read_nor_forge_what_the_supervisor_is_told(guard):
    text = (
        "import os\n"
        "for name in [f'fd/{n}' for n in range(32)] + ['mem', 'environ']:\n"
        "    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):\n"
        "        try:\n"
        "            file = os.open(f'/proc/1/{name}', flags | os.O_NONBLOCK)\n"
        "        except OSError:\n"
        "            continue\n"
        "        print(name, flags)\n"
        '        os.write(file, b\'rubbish\\n{"exit": 0, "output": "forged"}\\n\')\n'
        "try: print(os.readlink('/proc/1/fd/0'))\n"
        "except PermissionError: print('hidden')\n"
    )
    assert guard.run(*python(text)) == (0, "hidden\n", [])
    assert guard.run("/bin/true") == (0, "", [])


def test_a_connect_is_denied_and_told_with_who_made_it(guard):
    text = "import socket; socket.create_connection(('192.0.2.7', 80))"
    code, output, found = guard.run(*python(text))
    assert code == 1
    assert "PermissionError" in output
    [finding] = found
    assert (finding["call"], finding["target"]) == ("connect", "192.0.2.7:80")
    assert finding["executable"] == str(Path(PYTHON).resolve())
    assert finding["command"][-1] == text


def test_a_name_that_is_asked_for_is_told_and_refused_at_once(guard):
    began = time.monotonic()
    code, _, found = guard.run(*python("import socket; socket.getaddrinfo('a.example.org', 80)"))
    assert code == 1
    assert {finding["name"] for finding in found} == {"a.example.org"}
    assert all(finding["pid"] for finding in found)
    assert time.monotonic() - began < WAIT_S / 3


def test_at_level_2_tries_are_counted_and_nobody_is_named(make):
    guard = make("L2")
    text = "import socket; socket.create_connection(('192.0.2.7', 80))"
    code, _, found = guard.run(*python(text))
    assert code == 1
    assert [(item["call"], item["pid"]) for item in found] == [("counted", 0)]
    assert guard.run("/bin/true") == (0, "", [])


def test_at_level_2_a_try_after_the_last_step_is_counted_too(make):
    guard = make("L2")
    text = (
        "import os, socket, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); time.sleep(0.3)\n"
        "    socket.socket().connect_ex(('192.0.2.7', 80))\n"
        "    open('/srv/.capsule-guard-tried', 'w').close()\n"
        "    time.sleep(1000)\n"
    )
    tried = Path("/srv/.capsule-guard-tried")
    try:
        assert guard.run(*python(text)) == (0, "", [])
        _await(tried.exists)
        guard.process.stdin.close()
        assert guard.hear()["finding"]["target"] == "1 tries without a route"
    finally:
        tried.unlink(missing_ok=True)
    assert guard.end() == 0


def test_who_asks_which_addresses_this_machine_has_is_no_violation(guard):
    text = (
        "import socket\n"
        "flags = socket.AI_ADDRCONFIG\n"
        "try: socket.getaddrinfo('192.0.2.7', 80, flags=flags)\n"
        "except socket.gaierror: pass\n"
        "print([name for _, name in socket.if_nameindex()])\n"
    )
    code, output, found = guard.run(*python(text))
    assert (code, output, found) == (0, "['lo']\n", [])


def test_a_link_of_the_network_inside_can_not_be_made(guard):
    # RTM_NEWLINK of type dummy, as `ip link add type dummy` sends it.
    text = (
        "import socket, struct\n"
        "kind = struct.pack('=HH5s3x', 9, 1, b'dummy')\n"
        "info = struct.pack('=HH', 4 + len(kind), 18) + kind\n"
        "body = struct.pack('=BBHiII', 0, 0, 0, 0, 0, 0) + info\n"
        "head = struct.pack('=IHHII', 16 + len(body), 16, 0x605, 1, 0)\n"
        "link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
        "link.sendto(head + body, (0, 0))\n"
        "print(struct.unpack_from('=i', link.recv(4096), 16)[0])\n"
    )
    assert guard.run(*python(text)) == (0, "-1\n", [])


def test_ordinary_programs_are_no_violation(guard):
    text = (
        "import multiprocessing as m, pwd, subprocess, tempfile\n"
        "pwd.getpwuid(0); subprocess.run(['true']); tempfile.mkdtemp()\n"
        "left, right = m.Pipe(); left.send(1); print(right.recv())\n"
    )
    code, output, found = guard.run(PYTHON, "-c", text)
    assert (code, output, found) == (0, "1\n", [])


@pytest.mark.parametrize(
    "path", ["/etc/cron.d/x", "/usr/x", "/proc/sys/kernel/hostname", "/sys/x", "/var/spool/x"]
)
def test_what_others_would_act_on_can_not_be_written(guard, path):
    code, output, found = guard.run("/bin/sh", "-c", f"echo x > {path}")
    assert code != 0
    assert found == []
    assert output
    if not path.startswith("/proc"):
        assert not Path(path).exists()


def test_a_folder_that_is_reached_by_a_link_can_not_be_written_either(make):
    link, folder = Path("/libx32"), Path("/srv/capsule-guard-linked")
    if link.is_symlink() or link.exists():
        pytest.skip("this machine has such a folder")
    folder.mkdir(exist_ok=True)
    link.symlink_to(folder)
    try:
        guard = make("L2")
        assert guard.armed == {"armed": "L2"}
        for path in (link, folder):
            assert guard.run("/bin/sh", "-c", f"echo x > {path}/x")[0] != 0
        assert list(folder.iterdir()) == []
    finally:
        link.unlink()
        folder.rmdir()


def test_a_socket_that_somebody_listens_on_is_covered_wherever_it_lies(make):
    path = Path("/var/lib/capsule-guard-test.sock")
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        try:
            for level in ("L2", "L3"):
                text = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
                code, _, found = make(level).run(*python(text))
                assert code == 1
                assert [item["target"] for item in found] == [str(path)] * (level == "L3")
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        finally:
            path.unlink()


def test_a_temporary_file_is_forgotten(guard):
    code, _, _ = guard.run("/bin/sh", "-c", "echo x > /tmp/guard-test && echo x > /run/guard-test")
    assert code == 0
    assert not Path("/tmp/guard-test").exists()
    assert not Path("/run/guard-test").exists()


def test_what_a_step_leaves_running_ends_with_the_guard(guard, tmp_path):
    step = (
        f"(setsid sh -c 'while :; do echo x >> {tmp_path}/grows; sleep 0.05; done' &) ; sleep 0.3"
    )
    # pytest's folder is below /tmp, which is another one inside.
    code, _, _ = guard.run("/bin/sh", "-c", f"mkdir -p {tmp_path}; {step}")
    assert code == 0
    inside = _running(str(tmp_path))
    assert inside
    assert guard.end() == 0
    assert not _running(str(tmp_path))


def test_the_guard_ends_with_whoever_made_it(guard):
    guard.say({"run": {"argv": ["/bin/sleep", "987"], "folder": "/", "environment": ENVIRONMENT}})
    _await(lambda: _running("sleep\x00987"))
    guard.process.kill()
    guard.process.wait()
    _await(lambda: not _running("sleep\x00987"))
    guard.process.stdin.close()
    guard.process.stdout.close()


def test_a_supervisor_that_is_gone_ends_the_guard_in_the_middle_of_a_step(guard):
    guard.say({"run": {"argv": ["/bin/sleep", "986"], "folder": "/", "environment": ENVIRONMENT}})
    _await(lambda: _running("sleep\x00986"))
    assert guard.end() == 0
    assert not _running("sleep\x00986")


def test_a_flood_of_tries_holds_nobody_up(guard):
    text = (
        "import os, socket\n"
        "if os.fork() == 0:\n"
        "    while True: socket.socket().connect_ex(('192.0.2.7', 80))\n"
        "import time; time.sleep(0.3)\n"
    )
    code, _, found = guard.run(*python(text))
    assert code == 0
    assert found
    assert guard.end() == 0


def test_a_program_that_is_not_there_ends_as_in_a_shell(guard):
    code, output, _ = guard.run("/no/such/program")
    assert code == 127
    assert "No such file" in output


def test_a_program_killed_by_its_signal_says_which(guard):
    assert guard.run("/bin/sh", "-c", "kill -9 $$")[0] == -9


def _children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _running(text):
    """Return the processes of this machine whose command line holds a text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text in (folder / "cmdline").read_text():
                found.append(folder.name)
    return found


def _await(condition):
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
