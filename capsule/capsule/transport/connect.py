"""From a frozen endpoint to the transport that reaches it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from capsule.transport.base import Transport
from capsule.transport.handshakes import Handshakes
from capsule.transport.local import LocalTransport
from capsule.transport.openssh import OpensshTransport
from capsule.transport.ssh_entry import Access
from capsule_manifest.errors import Refused
from capsule_manifest.route import Endpoint

__all__ = ["AGENT_VARIABLE", "IDENTITY_VARIABLE", "Connector", "access_from"]

IDENTITY_VARIABLE: Final = "CAPSULE_SSH_IDENTITY"
AGENT_VARIABLE: Final = "CAPSULE_SSH_AGENT"


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
            return OpensshTransport(endpoint, access=self._access, handshakes=self._handshakes)
        if endpoint.root is None:
            raise Refused(
                "endpoint-invalid",
                "a node on this machine has no folder",
                expected='local = "…"',
                where=node,
            )
        return LocalTransport(Path(endpoint.root))


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
