"""The process outside of the guard: makes it, proves it, and tells who tried what.

The supervisor speaks to it in lines of JSON: first `{"level"}`, then `{"run"}` for each step, then
the end of its input. It answers `{"armed"}` or `{"failed"}`, `{"finding"}` as each comes, and
`{"exit", "output"}` after each step. It holds no key, and it is the only program that reads what a
step made it read: addresses, names, command lines.

Source: `docs/explanation/guard.md`.
"""

import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from capsule_installer.guard.canary import CANARY_NAME, problems
from capsule_installer.guard.counters import Counters, HeldCounters
from capsule_installer.guard.finding import Finding, encode_finding
from capsule_installer.guard.inside import MESSAGE_BYTES_MAX, Inside
from capsule_installer.guard.kernel import RealKernel
from capsule_installer.guard.mounts import READ_ONLY, is_hidden, make_mounts, read_only_places
from capsule_installer.guard.notify import Listener
from capsule_installer.guard.questions import asked_name, refusal
from capsule_installer.guard.syscalls import ARCHES
from capsule_installer.host.layout import make_layout

__all__ = ["main"]

_OUTPUT_BYTES_MAX: Final = 64 * 1024
_DATAGRAM_BYTES_MAX: Final = 4096
_SOCKETS_MAX: Final = 1000
_CANARY_MS: Final = 4_000
_TURNS_MAX: Final = 1_000


def main() -> int:
    """Serve the supervisor on standard input and output until it has said its last."""
    # Whatever else was inherited is nobody's here: it must not come to those inside.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    told = json.loads(sys.stdin.buffer.readline())
    watch = _Watch(attributed=told["level"] == "L3")
    try:
        watch.arm()
    except OSError as error:
        _tell({"failed": str(error)})
        return 1
    _tell({"armed": told["level"]})
    try:
        watch.serve()
    finally:
        watch.end()
    return 0


class _Watch:
    def __init__(self, *, attributed: bool) -> None:
        self._attributed = attributed
        self._selector = selectors.DefaultSelector()
        self._replies: list[dict[str, Any]] = []
        self._output = b""
        self._asker = Finding(call="resolve")
        self._names: list[str] = []
        self._seen: list[str] = []
        self._armed = False
        self._orders = b""
        self._is_alone = False
        self._child = 0
        self._base = Counters()
        self._counters: HeldCounters | None = None

    def arm(self) -> None:
        """Make the guard and let the canary try it.

        Raises:
            OSError: it can't be made, or is none.
        """
        kernel = RealKernel()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ear, mouth = os.pipe()
        kernel.leave_processes()
        self._child = os.fork()
        if self._child == 0:
            control.close()
            os.close(ear)
            Inside(
                kernel=kernel,
                control=theirs,
                output=mouth,
                plan=_plan(),
                attributed=self._attributed,
            ).live()
        theirs.close()
        os.close(mouth)
        self._control = control
        self._take_descriptors()
        os.set_blocking(ear, False)
        self._watch(ear, lambda: self._hear_output(ear))
        self._watch(control.fileno(), self._hear_reply)
        self._prove()

    def serve(self) -> None:
        """Carry out what the supervisor says, one after the other."""
        # Bytes and not lines: a buffered line would hide from the selector.
        os.set_blocking(0, False)
        self._watch(0, self._hear_supervisor)
        while not self._is_alone:
            self._turn()
            while b"\n" in self._orders and not self._is_alone:
                line, _, self._orders = self._orders.partition(b"\n")
                self._run(line)

    def end(self) -> None:
        """Kill the first process inside; the kernel then kills everything in its namespace."""
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        if self._counters is None:
            return
        if not self._attributed:
            # What a step left behind may have tried since; nobody is there to hear it sometimes.
            with suppress(BrokenPipeError):
                self._count(self._counters)
        self._counters.close()

    def _run(self, line: bytes) -> None:
        self._output = b""
        self._control.send(line)
        reply = self._await("exit")
        if reply is None:
            return
        if not self._attributed:
            assert self._counters is not None, "steps run in a guard that was proved"
            self._count(self._counters)
        text = self._output.decode("utf-8", "replace")
        _tell({"exit": reply["exit"], "output": text[-_OUTPUT_BYTES_MAX:]})

    def _count(self, counters: HeldCounters) -> None:
        """Report what nobody can be named for: tries that the namespace itself counted."""
        now = counters.read()
        for what in now.since(self._base):
            self._found(Finding(call="counted", target=what))
        self._base = now

    def _take_descriptors(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 8)
        reply = json.loads(message) if message else {"failed": "the guard's process ended at once"}
        if "failed" in reply:
            raise OSError(reply["failed"])
        if self._attributed:
            listener = Listener(descriptors.pop(), arch=ARCHES[os.uname().machine])
            self._watch(listener.fileno(), lambda: self._hear_call(listener))
        for descriptor in descriptors:
            sink = socket.socket(fileno=descriptor)
            sink.setblocking(False)
            self._watch(sink.fileno(), partial(self._hear_question, sink))

    def _prove(self) -> None:
        path = f"/run/capsule-guard-{os.getpid()}.sock"
        with socket.create_server(("127.0.0.1", 0)) as tcp, _unix_server(path) as unix:
            # What nobody could reach anyway would prove nothing.
            for server in (tcp, unix):
                _reach(server)
            port = tcp.getsockname()[1]
            told = {"port": port, "path": path, "folders": _protected()}
            self._control.send(json.dumps({"canary": told}).encode())
            reply = self._await("canary", timeout_ms=_CANARY_MS)
            found = {} if reply is None else reply["canary"]
            is_reached = any(_has_visitor(server) for server in (tcp, unix))
        wrong = problems(
            found,
            names=self._names,
            seen=self._seen,
            attributed=self._attributed,
            is_reached=is_reached,
        )
        if wrong:
            raise OSError(f"the canary was not stopped: {'; '.join(wrong)}")
        self._counters = HeldCounters(self._child)
        self._base = self._counters.read()
        self._armed = True

    def _await(self, name: str, timeout_ms: int | None = None) -> dict[str, Any] | None:
        """Return the answer from inside; None when nobody wants it any more."""
        while not self._replies:
            if self._is_alone:
                return None
            if not self._turn(timeout_ms):
                raise OSError("the guard does not answer")
        # Whoever asked and ended has left the question in the sink's queue. Bounded: others of the
        # step may go on asking for ever.
        for _ in range(_TURNS_MAX):
            if not self._turn(0):
                break
        reply = self._replies.pop(0)
        if name not in reply:
            raise OSError(f"the guard answered {reply}")
        return reply

    def _turn(self, timeout_ms: int | None = None) -> bool:
        ready = self._selector.select(None if timeout_ms is None else timeout_ms / 1000)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def _watch(self, descriptor: int, hear: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, hear)

    def _hear_supervisor(self) -> None:
        data = os.read(0, MESSAGE_BYTES_MAX)
        self._orders += data
        if not data:
            self._is_alone = True
            self._selector.unregister(0)

    def _hear_reply(self) -> None:
        message = self._control.recv(MESSAGE_BYTES_MAX)
        if not message:
            raise OSError("the guard's process ended")
        self._replies.append(json.loads(message))

    def _hear_output(self, ear: int) -> None:
        data = os.read(ear, _OUTPUT_BYTES_MAX)
        if not data:
            self._selector.unregister(ear)
        self._output = (self._output + data)[-_OUTPUT_BYTES_MAX:]

    def _hear_call(self, listener: Listener) -> None:
        answered = listener.answer()
        if answered is None:
            return
        call, notice, caller, verdict = answered
        if not self._armed and verdict.finding is not None:
            self._seen.append(call)
        if verdict.asks:
            self._asker = Finding(
                call="resolve",
                pid=notice.pid,
                executable=caller.executable,
                command=caller.command,
            )
        if verdict.finding is not None:
            self._found(verdict.finding)

    def _hear_question(self, sink: socket.socket) -> None:
        message, asker = sink.recvfrom(_DATAGRAM_BYTES_MAX)
        answer = refusal(message)
        if answer is not None:
            sink.sendto(answer, asker)
        name = asked_name(message)
        if name == CANARY_NAME and not self._armed:
            self._names.append(name)
            return
        who = self._asker
        self._found(
            Finding(
                call="resolve",
                name=name or "",
                target="" if name else "no question",
                pid=who.pid,
                executable=who.executable,
                command=who.command,
            )
        )

    def _found(self, finding: Finding) -> None:
        # What the canary tries is how the guard is proved, and no violation.
        if self._armed:
            _tell({"finding": encode_finding(finding)})


def _plan() -> tuple[Any, ...]:
    real = os.path.realpath("/etc/resolv.conf")
    is_there = real.startswith("/run/") or os.path.isfile(real)
    return make_mounts(
        lambda path: os.path.exists(path) and not os.path.islink(path),
        read_only=read_only_places(_protected(), os.path.realpath),
        resolver=real if is_there else None,
        sockets=_sockets(),
    )


def _protected() -> list[str]:
    """Return the names of this host's folders that nobody inside may write."""
    layout = make_layout("/")
    names = {*READ_ONLY, layout.opt, layout.var, layout.units}
    return sorted(name for name in names if os.path.isdir(name))


def _sockets() -> list[str]:
    """Return where somebody on this host listens or receives, as far as it would be seen inside."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()[1:]
    paths = {line.split(maxsplit=7)[7] for line in lines if " /" in line}
    seen = {real for real in map(os.path.realpath, paths) if not is_hidden(real)}
    there = [path for path in seen if os.path.exists(path) and not os.path.isdir(path)]
    if len(there) > _SOCKETS_MAX:
        raise OSError(f"{len(there)} sockets are more than {_SOCKETS_MAX}")
    return there


@contextmanager
def _unix_server(path: str) -> Iterator[socket.socket]:
    with suppress(FileNotFoundError):
        os.unlink(path)  # of a process that had this number before
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        try:
            yield server
        finally:
            os.unlink(path)


def _reach(server: socket.socket) -> None:
    with socket.socket(server.family, server.type) as link:
        link.connect(server.getsockname())
        server.accept()[0].close()


def _has_visitor(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _tell(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
