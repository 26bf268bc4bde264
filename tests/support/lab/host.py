"""One lab host: systemd as pid 1, sshd, journal, disk and network of its own.

A host is found again by its run and number alone, so that a second process can look at it, break
it, or take it down.
"""

import shutil
import signal
import socket
import subprocess
import uuid
from pathlib import Path

from support.lab.cgroups import ControlGroup
from support.lab.commands import LabError, command, wait_until
from support.lab.network import Cable
from support.lab.volume import Volume

__all__ = ["BOOT_S", "LabHost"]

BOOT_S = 60
DISK_BYTES = 4 * 1024**3
DISK_INODES = 400_000
_BANNER_S = 2
# Joins the group of the host in every hierarchy before anything of it runs, then starts nspawn and
# leaves it to pid 1: it outlives the process that asked for it.
_LAUNCH = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit; shift; done; shift; "$@" &'
_INSIDE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LabHost:
    """Host `number` of a run, below `folder`. Nothing happens until it is asked for."""

    def __init__(
        self, *, run: int, number: int, folder: Path, base: Path, client_key: Path
    ) -> None:
        self.number = number
        self.name = f"h{number:02}"
        self.port = 22
        self.user = "root"
        self.client_key = client_key
        self.volume = Volume(folder, base)
        self.cable = Cable(run, number)
        self.console = folder / "console.log"
        self._folder = folder
        self._group = ControlGroup(f"capsule-lab-{run}/{self.name}")

    # --- life -----------------------------------------------------------------------------------
    def make(self, *, disk_bytes: int = DISK_BYTES, disk_inodes: int = DISK_INODES) -> None:
        """Make disk, identity and network. The host is off."""
        self._folder.mkdir(parents=True)
        self.volume.make(disk_bytes, disk_inodes)
        self.volume.mount()
        root = self.volume.root
        (root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
        (root / "etc/hostname").write_text(f"{self.name}\n")
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        _new_host_key(root)
        public = self.client_key.with_suffix(".pub").read_bytes()
        for home, user in (("root", "root"), ("home/deploy", "deploy")):
            folder = root / home / ".ssh"
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / "authorized_keys").write_bytes(public)
            command("chroot", root, "chown", "-R", f"{user}:", f"/{home}/.ssh")
        command("sync", "--file-system", root)
        self.cable.up()

    def start(self) -> None:
        """Switch the host on; `wait_booted` says when it answers."""
        if self.pid is not None:
            return
        # A host that went down by itself leaves an nspawn that still holds the tree for a moment.
        self._group.end()
        self.volume.mount()
        self.cable.up()
        joins = [str(path) for path in self._group.make()]
        nspawn = [
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.volume.root}",
            "--boot",
            f"--network-namespace-path={self.cable.namespace_path}",
            f"--machine={self.cable.namespace}",
            f"--hostname={self.name}",
            "--register=no",
            "--keep-unit",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            # Without it `lo` stays down under PrivateNetwork= and no guard can be tested.
            "--capability=CAP_NET_ADMIN",
        ]
        with self.console.open("ab") as console:
            subprocess.run(
                ["/bin/sh", "-c", _LAUNCH, "launch", *joins, "--", *nspawn],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                env={"PATH": _INSIDE_PATH},
                check=True,
            )

    def wait_booted(self) -> None:
        """Wait until sshd greets.

        Raises:
            LabError: it did not in 60 s; the end of the console is in the message.
        """
        try:
            wait_until(self.answers, timeout_s=BOOT_S, what=f"{self.name} booted")
        except LabError as error:
            text = self.console.read_text(errors="backslashreplace")[-2000:]
            message = f"{error}; its console ends:\n{text}"
            raise LabError(message) from None

    def boot(self) -> None:
        """Switch the host on and wait until sshd greets."""
        self.start()
        self.wait_booted()

    def favour(self) -> None:
        """Let all hosts of its run have the processors before the rest of this machine."""
        self._group.favour()

    def kill(self) -> None:
        """End every process of the host at once. The page cache survives: see `cut_power`."""
        self._group.end()

    def cut_power(self) -> None:
        """Lose everything that was not fsynced, then every process."""
        self.volume.lose_power()
        self._group.end()
        self.volume.unmount()

    def reboot(self) -> None:
        """Kill the host and boot it again on the same disk."""
        self.kill()
        self.boot()

    def remove(self) -> None:
        """Take the host down with all that belongs to it; a half-made one too."""
        self._group.end()
        self._group.remove()
        self.volume.unmount()
        self.cable.down()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- looking --------------------------------------------------------------------------------
    @property
    def address(self) -> str:
        """Its address on the network of the run."""
        return self.cable.address

    @property
    def host_key(self) -> str:
        """Its public SSH host key as `TYPE BASE64`, read from its disk."""
        line = (self.volume.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        return " ".join(line.split()[:2])

    @property
    def pid(self) -> int | None:
        """The pid of the host's own init, as this machine numbers it; None when it is off."""
        for pid in self._group.members():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            inner = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if len(inner.split()) > 2 and inner.split()[-1] == "1":
                return pid
        return None

    def pids_of(self, unit: str) -> list[int]:
        """Return the processes of one of its units, as this machine numbers them."""
        return self._group.members_of(unit)

    def state(self) -> str:
        """Say what the host is: off, frozen, booting or up."""
        if self.pid is None:
            return "off"
        if self._group.frozen:
            return "frozen"
        return "up" if self.answers() else "booting"

    def answers(self) -> bool:
        """Say whether sshd greets within 2 s: a frozen host accepts a connection, and is silent."""
        try:
            with socket.create_connection((self.address, self.port), timeout=_BANNER_S) as link:
                link.settimeout(_BANNER_S)
                return link.recv(4) == b"SSH-"
        except OSError:
            return False

    # --- commands inside ------------------------------------------------------------------------
    def run(
        self, *arguments: str, timeout_s: float = 30, check: bool = True, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside as root, past the network: it works on a host that is cut off."""
        return command(*self.inside(*arguments), timeout_s=timeout_s, check=check, stdin=stdin)

    def inside(self, *arguments: str) -> list[str]:
        """Return the command that runs `arguments` inside as root.

        Raises:
            LabError: the host is off.
        """
        pid = self.pid
        if pid is None:
            message = f"{self.name} is off"
            raise LabError(message)
        enter = ("nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid")
        into = (*enter, "--cgroup", "--root", "--wd=/")
        clean = ("env", "-i", f"PATH={_INSIDE_PATH}", "HOME=/root", "LC_ALL=C.UTF-8")
        return [*into, *clean, *arguments]

    def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        """Put a file inside, with its folders."""
        target = self.volume.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)
        target.chmod(mode)

    def path(self, path: str) -> Path:
        """Return where this machine sees a file of the host."""
        return self.volume.root / path.lstrip("/")

    def ssh(self, *arguments: str) -> list[str]:
        """Return the command that runs `arguments` over SSH, with the host key pinned."""
        known = self._folder / "known_hosts"
        known.write_text(f"{self.address} {self.host_key}\n")
        options = ("BatchMode=yes", "IdentitiesOnly=yes", f"UserKnownHostsFile={known}")
        flags = [word for option in options for word in ("-o", option)]
        key = ["-i", str(self.client_key), "-p", str(self.port)]
        return ["ssh", "-F", "none", *flags, *key, f"{self.user}@{self.address}", *arguments]

    # --- faults ---------------------------------------------------------------------------------
    def freeze(self) -> None:
        """Stop every process where it stands: TCP connects, nothing answers."""
        self._group.freeze()

    def thaw(self) -> None:
        """Let a frozen host go on."""
        self._group.thaw()

    def signal_unit(self, unit: str, number: signal.Signals) -> None:
        """Send a signal to every process of a unit, past its service manager's own rules."""
        self.run("systemctl", "kill", "--kill-whom=all", f"--signal={number.name}", unit)

    def change_host_key(self) -> None:
        """Give the host another SSH key, as a reinstalled or an impersonated one has."""
        _new_host_key(self.volume.root)
        if self.pid is not None:
            self.run("systemctl", "restart", "ssh.service")
            wait_until(self.answers, timeout_s=BOOT_S, what=f"sshd of {self.name} with a new key")

    def make_read_only(self, path: str) -> None:
        """Let a folder of the running host refuse every write."""
        self.run("mount", "--bind", path, path)
        self.run("mount", "-o", "remount,bind,ro", path)

    def make_writable(self, path: str) -> None:
        """Undo `make_read_only`."""
        self.run("umount", path)


def _new_host_key(root: Path) -> None:
    key = root / "etc/ssh/ssh_host_ed25519_key"
    for old in key.parent.glob("ssh_host_*"):
        old.unlink()
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", key)
