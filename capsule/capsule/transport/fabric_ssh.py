"""SSH by Fabric: one connection to a host that is kept open, for verbs that answer at once.

The only module that knows Fabric, Paramiko or Invoke, and it imports them when the first connection
is made. Nothing of a person's configuration takes part; keys of hosts are the route's pins and
nothing else. Paramiko has waits without an end, so a watchdog closes the socket under each of them.

It can check no host certificates and no agent but the ambient one; such ways use OpenSSH alone.
"""

import base64
import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from capsule.transport.base import Limits
from capsule.transport.fabric_channel import FabricChannel
from capsule.transport.handshakes import Handshakes, with_retries
from capsule.transport.ssh_entry import (
    CIPHERS,
    Access,
    Timing,
    check_hops,
    fabric_reaches,
    remote_command,
)
from capsule.transport.ssh_failures import RETRYABLE, start_failure
from capsule_manifest.errors import CapsuleError, Failed, Refused
from capsule_manifest.route import Endpoint, Hop

__all__ = ["FabricTransport"]

_MARK_BYTES: Final = 16
_ALIVE_S: Final = 5
_SSH_PORT: Final = 22
_WINDOW_BYTES: Final = 2 * 1024 * 1024

Result = TypeVar("Result")


class FabricTransport:
    """Run host programs over one kept SSH connection; implements `Transport`."""

    root = ""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        access: Access,
        handshakes: Handshakes,
        timing: Timing = Timing(),  # noqa: B008 - frozen
    ) -> None:
        """Take the way from `endpoint`; nothing is connected yet.

        Raises:
            Refused: `endpoint-invalid`, also for what `fabric_reaches` denies.
        """
        self.place = f"{endpoint.user or 'root'}@{endpoint.address}:{endpoint.port}"
        self._hops = check_hops(endpoint, self.place)
        if not fabric_reaches(endpoint, access):
            raise Refused(
                "endpoint-invalid",
                "a kept connection can't be made this way",
                expected="pinned host keys and a private key file",
                where=self.place,
            )
        self._access = access
        self._handshakes = handshakes
        self._timing = timing
        self._lock = threading.Lock()
        # Fabric's connections, the first hop first. Its threads keep them alive, so they are
        # closed when this object goes.
        self._chain: list[Any] = []
        self._finalizer = weakref.finalize(self, _close, self._chain)

    def open(self, argv: Sequence[str], *, limits: Limits) -> FabricChannel:
        """Start `argv` on the host without a shell between, connecting first if need be.

        Raises:
            Failed: as `OpensshTransport.open`, and `ssh-sessions-exhausted` after three attempts.
            Refused: as `OpensshTransport.open`.
        """
        with self._lock:
            if not (self._chain and self._chain[-1].is_connected):
                with_retries(self._connect, retryable=RETRYABLE)
        mark = secrets.token_hex(_MARK_BYTES)
        command = remote_command(argv, user=self._hops[-1].user, limits=limits, mark=mark)
        exhausted = frozenset({"ssh-sessions-exhausted"})
        with self._watched(self._timing.start_s):
            session = with_retries(self._open_session, retryable=exhausted)
            self._translated(lambda: session.exec_command(command))
        channel = FabricChannel(
            session,
            place=self.place,
            limits=Limits(total_s=self._timing.start_s, idle_s=self._timing.start_s),
            give_up=self.close,
        )
        try:
            self._await_mark(channel, f"{mark}\n".encode(), limits)
        except BaseException:
            channel.__exit__(None, None, None)
            raise
        return channel

    def close(self) -> None:
        """Close the connection with everything on it; the next `open` makes a new one."""
        _close(self._chain)

    def _connect(self) -> None:
        _close(self._chain)
        with (
            self._handshakes.slot(self._hops),
            self._watched(self._timing.total_s(len(self._hops))),
        ):
            for hop in self._hops:
                connection = _connection(hop, self._chain, self._access, self._timing)
                self._chain.append(connection)
                self._translated(connection.open)
                connection.transport.set_keepalive(_ALIVE_S)

    def _open_session(self) -> Any:
        from paramiko import ChannelException  # type: ignore[import-untyped]

        chain = tuple(self._chain)
        if not chain:
            raise Failed(
                "ssh-throttled",
                "the connection was closed before the program was started",
                where=self.place,
                retryable=True,
            )
        try:
            return self._translated(
                lambda: chain[-1].transport.open_session(
                    window_size=_WINDOW_BYTES, timeout=self._timing.start_s
                )
            )
        except Failed as error:
            if isinstance(error.__cause__, ChannelException):
                raise Failed(
                    "ssh-sessions-exhausted",
                    "a host opens no further session on this connection",
                    got=error.__cause__.text,
                    where=self.place,
                    retryable=True,
                ) from error
            raise

    def _await_mark(self, channel: FabricChannel, mark: bytes, limits: Limits) -> None:
        try:
            if channel.skip_past(mark, limits=limits) is not None:
                return
            ended = channel.wait()
        except Failed as error:
            if error.error_id != "transport-deadline":
                raise
            raise self._late("start the program", error) from error
        raise start_failure(
            ended.stderr_tail,
            noise=channel.noise(),
            exit_code=ended.exit_code,
            place=self.place,
        )

    @contextmanager
    def _watched(self, seconds: float) -> Iterator[None]:
        """Close the connection when the block takes longer; its waits then end with an error."""
        timer = threading.Timer(seconds, _close, (self._chain,))
        timer.daemon = True
        started = time.monotonic()
        timer.start()
        try:
            yield
        except CapsuleError as error:
            if time.monotonic() - started < seconds or error.error_id == "ssh-connect-deadline":
                raise
            raise self._late("answer", error) from error
        finally:
            timer.cancel()

    def _translated(self, call: Callable[[], Result]) -> Result:
        """Return what `call` returns; its libraries' errors become ours."""
        started = time.monotonic()
        try:
            return call()
        except (OSError, EOFError, _ssh_exception()) as error:
            late = time.monotonic() - started >= self._timing.connect_s
            raise _failure(error, late=late, place=self.place) from error

    def _late(self, what: str, error: CapsuleError) -> Failed:
        return Failed(
            "ssh-start-deadline",
            f"a host was connected to, but did not {what} in time",
            expected=f"within {self._timing.start_s:g} s",
            got=error.got,
            where=self.place,
            retryable=True,
        )


def _connection(hop: Hop, before: Sequence[Any], access: Access, timing: Timing) -> Any:
    """Return an unopened Fabric connection to `hop` that knows its pin and no other key."""
    from fabric import Config, Connection  # type: ignore[import-untyped]
    from paramiko import PKey, RejectPolicy

    # It logs what it raises, with tracebacks; whoever called decides what people see.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    connection = Connection(
        hop.address,
        user=hop.user,
        port=hop.port,
        # Lazy: no file of a person or machine is read.
        config=Config(lazy=True, overrides={"load_ssh_configs": False}),
        gateway=before[-1] if before else None,
        connect_timeout=timing.connect_s,
        connect_kwargs={
            "key_filename": access.identity,
            "allow_agent": False,
            "look_for_keys": False,
            "banner_timeout": timing.connect_s,
            "auth_timeout": timing.start_s,
            "channel_timeout": timing.start_s,
            "transport_factory": _transport,
        },
    )
    kind, text = hop.host_key.split(" ")[:2]
    key = PKey.from_type_string(kind, base64.b64decode(text))
    name = hop.address if hop.port == _SSH_PORT else f"[{hop.address}]:{hop.port}"
    connection.client.get_host_keys().add(name, kind, key)
    connection.client.set_missing_host_key_policy(RejectPolicy())
    return connection


def _transport(sock: Any, **options: Any) -> Any:
    """Return Paramiko's transport with our order of ciphers and a window for long ways."""
    from paramiko import Transport

    transport = Transport(sock, default_window_size=_WINDOW_BYTES, **options)
    security = transport.get_security_options()
    known = [cipher for cipher in CIPHERS if cipher in security.ciphers]
    security.ciphers = known or security.ciphers
    return transport


def _close(chain: list[Any]) -> None:
    """Close connections, the target first, without ever waiting for a peer."""
    for connection in reversed(chain):
        transport = connection.client.get_transport()
        if transport is not None:
            # Not the client: that forgets its transport while another thread may be in it.
            with suppress(OSError, EOFError):
                transport.sock.close()
            with suppress(OSError, EOFError):
                transport.close()
    chain.clear()


def _ssh_exception() -> type[Exception]:
    from paramiko import SSHException

    exception: type[Exception] = SSHException
    return exception


def _failure(error: Exception, *, late: bool, place: str) -> CapsuleError:
    """Return our error for one of Paramiko's; `late` says that it came at a deadline."""
    from paramiko import (
        AuthenticationException,
        BadHostKeyException,
        ChannelException,
    )

    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, BadHostKeyException):
        return Refused(
            "host-key-changed",
            "a host showed another SSH key than the pinned one",
            got=error.key.fingerprint,
            where=place,
        )
    # Paramiko says the same of a host that refused and of one that was not heard of any more.
    gone = "transport shut down" in text
    silent = "timeout" in text.lower()
    if isinstance(error, AuthenticationException) and not (gone or silent):
        return Refused(
            "ssh-auth-refused",
            "a host does not take this controller's SSH key",
            got=text,
            where=place,
        )
    if late or silent or isinstance(error, TimeoutError):
        error_id, what = "ssh-connect-deadline", "a host did not complete the connection in time"
    elif isinstance(error, ChannelException):
        error_id, what = "ssh-jump-refused", "a jump host does not forward the connection"
    elif isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError)):
        error_id, what = "ssh-throttled", "a host closed the connection before it let us in"
    elif isinstance(error, OSError):
        error_id, what = "host-unreachable", "no connection to the host"
    elif any(word in text for word in ("Indecipherable", "Incompatible", "Invalid packet")):
        error_id, what = "ssh-banner-invalid", "something else than a usable SSH server answers"
    else:
        error_id, what = "ssh-throttled", "a host closed the connection before it let us in"
    return Failed(error_id, what, got=text, where=place, retryable=error_id in RETRYABLE)
