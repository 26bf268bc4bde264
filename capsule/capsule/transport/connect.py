"""From a frozen endpoint to the transport that reaches it."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from capsule.transport.base import QUICK, Channel, Limits, Transport
from capsule.transport.handshakes import Handshakes
from capsule.transport.local import LocalTransport
from capsule.transport.openssh import OpensshTransport
from capsule.transport.ssh_entry import Access, fabric_reaches
from capsule_manifest.errors import Refused
from capsule_manifest.route import Endpoint

__all__ = [
    "AGENT_VARIABLE",
    "IDENTITY_VARIABLE",
    "Connector",
    "SshTransport",
    "access_from",
    "connect",
]

IDENTITY_VARIABLE: Final = "CAPSULE_SSH_IDENTITY"
AGENT_VARIABLE: Final = "CAPSULE_SSH_AGENT"


def connect(endpoint: Endpoint, node: str) -> Transport:
    """Return the transport to a frozen endpoint. All of a process share one limit of handshakes.

    Raises:
        Refused: `endpoint-invalid`; the node is in the message.
    """
    return _connector()(endpoint, node)


@cache
def _connector() -> "Connector":
    return Connector(access_from(os.environ))


class Connector:
    """Make transports that share one limit of handshakes an endpoint."""

    def __init__(self, access: Access, handshakes: Handshakes | None = None) -> None:
        self._access = access
        self._handshakes = handshakes or Handshakes()

    def __call__(self, endpoint: Endpoint, node: str) -> Transport:
        """Return the transport to the endpoint of `node`; nothing is connected yet.

        Raises:
            Refused: `endpoint-invalid`.
        """
        if endpoint.kind == "ssh":
            return self._ssh(endpoint)
        if endpoint.root is None:
            raise Refused(
                "endpoint-invalid",
                "a node on this machine has no folder",
                expected='local = "…"',
                where=node,
            )
        return LocalTransport(Path(endpoint.root))

    def _ssh(self, endpoint: Endpoint) -> Transport:
        access, handshakes = self._access, self._handshakes
        streams = OpensshTransport(endpoint, access=access, handshakes=handshakes)
        if not fabric_reaches(endpoint, access):
            return streams

        def verbs() -> Transport:
            # A staging of hosts that are ready needs none, and importing it takes a while.
            from capsule.transport.fabric_ssh import FabricTransport

            return FabricTransport(endpoint, access=access, handshakes=handshakes)

        return SshTransport(verbs=verbs, streams=streams)


class SshTransport:
    """Both ways over SSH to one host, from one entry of the route; implements `Transport`.

    A verb that answers at once shares one kept connection and costs one round trip; all else gets
    a process of its own, which moves bytes at a third of the processor's time. `verbs` is called
    when it is needed first.
    """

    def __init__(self, *, verbs: Callable[[], Transport], streams: Transport) -> None:
        self._make_verbs = verbs
        self._streams = streams
        self._lock = Lock()
        self._verbs: Transport | None = None

    @property
    def root(self) -> str:
        """Return nothing: the host is a machine of its own."""
        return self._streams.root

    @property
    def place(self) -> str:
        """Return user, address and port."""
        return self._streams.place

    def open(self, argv: Sequence[str], *, limits: Limits) -> Channel:
        """Start `argv`; what may take longer than `QUICK` goes through OpenSSH.

        Raises:
            CapsuleError: as `OpensshTransport.open` and `FabricTransport.open`.
        """
        if limits.total_s > QUICK.total_s:
            return self._streams.open(argv, limits=limits)
        with self._lock:
            verbs = self._verbs = self._verbs or self._make_verbs()
        return verbs.open(argv, limits=limits)


def access_from(environment: Mapping[str, str]) -> Access:
    """Return how this controller proves who it is, from the variables that say so.

    `CAPSULE_SSH_IDENTITY` names a private key file; without it OpenSSH's default files are tried.
    The agent is used only when `CAPSULE_SSH_AGENT` names its socket: one that merely happens to
    run must not decide who reaches a fleet.
    """
    identity = environment.get(IDENTITY_VARIABLE)
    return Access(
        identity=str(Path(identity).absolute()) if identity else None,
        agent=environment.get(AGENT_VARIABLE) or None,
    )
