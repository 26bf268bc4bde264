"""The product's own way to a lab host, with the lab's key."""

from collections.abc import Sequence

from capsule.transport.base import Channel, Limits
from capsule.transport.connect import Connector
from capsule.transport.ssh_entry import Access
from capsule_manifest.route import Endpoint
from support.lab.host import LabHost

__all__ = ["SshTransport", "lab_endpoint"]


def lab_endpoint(host: LabHost, *, user: str | None = None) -> Endpoint:
    """Return the entry of a route that leads to `host`."""
    return Endpoint(
        kind="ssh",
        address=host.address,
        port=host.port,
        user=user or host.user,
        host_key=host.host_key,
    )


class SshTransport:
    """Run host programs over SSH as the lab's user; implements `Transport`."""

    root = ""

    def __init__(self, host: LabHost, *, user: str | None = None) -> None:
        connector = Connector(Access(identity=str(host.client_key)))
        self._way = connector(lab_endpoint(host, user=user), host.name)
        self.place = self._way.place

    def open(self, argv: Sequence[str], *, limits: Limits) -> Channel:
        """Start `argv` on the host with a fixed environment."""
        return self._way.open(argv, limits=limits)
