"""The product's own way to a lab host, with the lab's key."""

from capsule.transport.handshakes import Handshakes
from capsule.transport.openssh import OpensshTransport
from capsule.transport.ssh_entry import Access
from capsule_manifest.route import Endpoint
from support.lab.host import LabHost

__all__ = ["SshTransport"]


class SshTransport(OpensshTransport):
    """Run host programs over SSH as the lab's user; implements `Transport`."""

    def __init__(self, host: LabHost) -> None:
        endpoint = Endpoint(
            kind="ssh",
            address=host.address,
            port=host.port,
            user=host.user,
            host_key=host.host_key,
        )
        access = Access(identity=str(host.client_key))
        super().__init__(endpoint, access=access, handshakes=Handshakes())
