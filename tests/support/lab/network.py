"""The network of a run: one bridge, and one namespace and cable a host.

Addresses are from 198.18.0.0/15, which is set aside for benches (RFC 2544). Hosts have no default
route and the bridge forwards nothing: what a host sends reaches this machine and its own run only.
"""

from pathlib import Path

from support.lab.commands import LabError, command

__all__ = ["HOSTS_MAX", "Cable", "Network", "addresses"]

HOSTS_MAX = 200
_FIRST = 10


def addresses(run: int, number: int) -> tuple[str, str]:
    """Return the address and the hardware address of host `number` (1-200) of a run (1-250)."""
    if not (1 <= run <= 250 and 1 <= number <= HOSTS_MAX):
        message = f"no such host: {number} of run {run}"
        raise LabError(message)
    return f"198.18.{run}.{_FIRST + number}", f"02:c6:12:00:{run:02x}:{_FIRST + number:02x}"


class Network:
    """The bridge of one run; this machine is 198.18.RUN.1 on it."""

    def __init__(self, run: int) -> None:
        self.bridge = f"cl{run}"
        self.here = f"198.18.{run}.1"

    def up(self) -> None:
        """Make the bridge; one that is there already is kept."""
        if self.exists():
            return
        command("ip", "link", "add", self.bridge, "type", "bridge")
        command("ip", "address", "add", f"{self.here}/24", "dev", self.bridge)
        command("ip", "link", "set", self.bridge, "up")

    def exists(self) -> bool:
        """Say whether the bridge is there."""
        return Path("/sys/class/net", self.bridge).exists()

    def down(self) -> None:
        """Remove the bridge and whatever a crashed run left behind on it."""
        for namespace in Path("/run/netns").glob(f"{self.bridge}-*"):
            command("ip", "netns", "delete", namespace.name)
        if self.exists():
            command("ip", "link", "delete", self.bridge)


class Cable:
    """The link between a host's namespace and the bridge of its run."""

    def __init__(self, run: int, number: int) -> None:
        self.address, self._hardware = addresses(run, number)
        self.namespace = f"cl{run}-{number}"
        self._bridge = f"cl{run}"
        self._outer = self.namespace

    @property
    def namespace_path(self) -> Path:
        """Where the namespace can be opened."""
        return Path("/run/netns", self.namespace)

    def up(self) -> None:
        """Make the namespace with `host0` in it and plug it in; one that is there is kept."""
        if self.namespace_path.exists():
            return
        command("ip", "netns", "add", self.namespace)
        inner = ("peer", "name", "host0", "address", self._hardware, "netns", self.namespace)
        command("ip", "link", "add", self._outer, "type", "veth", *inner)
        command("ip", "link", "set", self._outer, "master", self._bridge, "up")
        inside = ("ip", "-n", self.namespace)
        command(*inside, "address", "add", f"{self.address}/24", "dev", "host0")
        command(*inside, "link", "set", "host0", "up")
        command(*inside, "link", "set", "lo", "up")
        # Known for good: a host behind a cut cable is silent, as behind a switch, not unreachable.
        neighbour = ("lladdr", self._hardware, "nud", "permanent", "dev", self._bridge)
        command("ip", "neighbour", "replace", self.address, *neighbour)

    def cut(self) -> None:
        """Lose every packet from and to the host from now on."""
        command("ip", "link", "set", self._outer, "down")

    def mend(self) -> None:
        """Plug the host in again, and let it answer."""
        command("ip", "link", "set", self._outer, "up")
        command("ip", "route", "delete", "unreachable", self.address, check=False)

    def reject(self) -> None:
        """Let every new packet to the host fail at once: no route to host."""
        command("ip", "route", "replace", "unreachable", self.address)

    def down(self) -> None:
        """Remove namespace and link."""
        command("ip", "route", "delete", "unreachable", self.address, check=False)
        # The link first: with its namespace it would go too, but at some later moment.
        if Path("/sys/class/net", self._outer).exists():
            command("ip", "link", "delete", self._outer)
        if self.namespace_path.exists():
            command("ip", "netns", "delete", self.namespace)
