"""The first process inside of the guard: makes it, then starts what it is told to, one by one.

It is as confined as what it starts. Nothing that it says is believed about the network: who watches
is outside, and holds the listener and the resolver sink, which are handed out before they work.
"""

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from capsule_installer.guard.bpf import make_program
from capsule_installer.guard.canary import try_everything
from capsule_installer.guard.kernel import Kernel
from capsule_installer.guard.mounts import Mount, Verb
from capsule_installer.guard.syscalls import ARCHES
from capsule_installer.guard.trapped import SINK_PORT

__all__ = ["MESSAGE_BYTES_MAX", "Inside", "lay_mounts"]

MESSAGE_BYTES_MAX: Final = 128 * 1024
_NOT_STARTED: Final = 127


def lay_mounts(kernel: Kernel, plan: tuple[Mount, ...]) -> None:
    """Carry out a plan of mounts.

    Raises:
        OSError: a step failed; its text names it.
    """
    for mount in plan:
        match mount.verb:
            case Verb.TMPFS:
                kernel.mount_tmpfs(mount.path, mount.options)
            case Verb.BIND:
                kernel.bind(mount.source, mount.path)
            case Verb.MOVE:
                kernel.move(mount.source, mount.path)
            case Verb.PROC:
                kernel.mount_proc(mount.path)
            case Verb.READ_ONLY:
                kernel.make_read_only(mount.path)
            case Verb.FOLDER:
                os.makedirs(mount.path, exist_ok=True)
            case Verb.FILE:
                os.makedirs(os.path.dirname(mount.path), exist_ok=True)
                with open(mount.path, "w", encoding="ascii") as file:
                    file.write(mount.source)
            case Verb.LINK:
                os.symlink(mount.source, mount.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The process that a guard begins with. `control` is a seqpacket socket to whoever watches;
    `output` is the descriptor that steps write to.
    """

    kernel: Kernel
    control: socket.socket
    output: int
    plan: tuple[Mount, ...]
    attributed: bool

    def live(self) -> NoReturn:
        """Make the guard, say how that went, serve until the control socket closes, and end."""
        try:
            # Steps have the same user and may read /proc/1: nothing there must lead out.
            self.kernel.hide()
            self._let_go()
            self._confine()
        except OSError as error:
            self._say({"failed": str(error)})
            os._exit(1)
        while request := os.read(self.control.fileno(), MESSAGE_BYTES_MAX):
            self._serve(json.loads(request))
        os._exit(0)

    def _let_go(self) -> None:
        """Close whatever the guard's program had open: its orders, its answers and its log."""
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(self.output, 1)
        os.dup2(self.output, 2)
        low = 3
        for kept in (*sorted({self.output, self.control.fileno()}), os.sysconf("SC_OPEN_MAX")):
            os.closerange(low, kept)
            low = kept + 1

    def _confine(self) -> None:
        kernel = self.kernel
        kernel.die_with_parent()
        kernel.leave_the_rest()
        kernel.set_loopback_up()
        sinks = list(_sinks())
        lay_mounts(kernel, self.plan)
        program = make_program(ARCHES[os.uname().machine], attributed=self.attributed)
        kernel.drop_capabilities()
        # The filter is this thread's alone. The call that hands its listener out would wait for
        # the listener; so another thread, which the filter does not see, makes it.
        handed: list[int] = [sink.fileno() for sink in sinks]
        ready = threading.Event()

        def hand_out() -> None:
            ready.wait()
            socket.send_fds(self.control, [b'{"made":true}'], handed)

        helper = threading.Thread(target=hand_out)
        helper.start()
        listener = kernel.install_filter(program, attributed=self.attributed)
        if listener >= 0:
            handed.append(listener)
        ready.set()
        helper.join()
        for descriptor in handed:
            os.close(descriptor)
        for sink in sinks:
            sink.detach()

    def _serve(self, request: dict[str, Any]) -> None:
        if "canary" in request:
            self._say({"canary": self._canary(request["canary"])})
            return
        step = request["run"]
        child = os.fork()
        if child == 0:
            self._become(step)
        self._say({"exit": _await(child)})

    def _become(self, step: dict[str, Any]) -> NoReturn:
        try:
            self._take_output()
            os.chdir(step["folder"])
            os.execvpe(step["argv"][0], step["argv"], step["environment"])  # noqa: S606
        except OSError as error:
            os.write(2, f"{step['argv'][0]}: {error.strerror}\n".encode())
            os._exit(_NOT_STARTED)

    def _take_output(self) -> None:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(self.output, 1)
        os.dup2(self.output, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        # Python ignores it; a pipe of shell commands relies on it.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def _canary(self, told: dict[str, Any]) -> dict[str, str]:
        ear, mouth = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(mouth, 3)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            found = try_everything(told["port"], told["path"], told["folders"])
            os.write(3, json.dumps(found).encode())
            os._exit(0)
        os.close(mouth)
        with os.fdopen(ear, "rb") as results:
            raw = results.read(MESSAGE_BYTES_MAX)
        _await(child)
        outcomes: dict[str, str] = json.loads(raw) if raw else {}
        return outcomes

    def _say(self, message: dict[str, object]) -> None:
        with suppress(OSError):
            os.write(self.control.fileno(), json.dumps(message).encode())


def _sinks() -> list[socket.socket]:
    """Return sockets on which resolvers ask, of the network inside."""
    sinks = []
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError):
            sink = socket.socket(family, socket.SOCK_DGRAM)
            sink.bind((host, SINK_PORT))
            sinks.append(sink)
    return sinks


def _await(child: int) -> int:
    """Reap whatever ends until it is `child`; return its exit code, or minus its signal."""
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)
