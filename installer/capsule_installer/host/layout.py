"""Where everything lies on a host, below its root.

One value, made from `--root`; no other module joins these names. A root of "" is the real host.
Paths are absolute strings without a trailing slash.

Source: design, section 9; `docs/reference/host-layout.md`.
"""

import re
from dataclasses import dataclass
from typing import Final

from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import Refused

__all__ = ["BOOT_UNIT", "Layout", "make_layout"]

BOOT_UNIT: Final = "capsule-boot.service"
"""The unit that runs rescue at boot, before every managed unit."""

# Unit files and shell programs hold the root: what would need quoting in one of them is refused.
_ROOT: Final = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._+@:,=~-]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Paths of one host. `root` is "" for the real host, else an absolute path."""

    root: str

    def inside(self, path: str) -> str:
        """Return an absolute path of the host, such as a managed file's target, below the root."""
        assert path.startswith("/")
        return self.root + path

    @property
    def opt(self) -> str:
        """Content: store, generations, runtimes. May be a file system of its own."""
        return self.root + "/opt/capsule"

    @property
    def store(self) -> str:
        """Objects by digest. Only the owner may look in; generations hold links into it."""
        return self.opt + "/store"

    @property
    def incoming(self) -> str:
        """Objects that have not come whole yet; same file system as the store."""
        return self.opt + "/incoming"

    @property
    def generations(self) -> str:
        """One folder a realised release."""
        return self.opt + "/generations"

    @property
    def runtimes(self) -> str:
        """One folder a version of this program."""
        return self.opt + "/runtime"

    @property
    def current(self) -> str:
        """The link to the installed generation; a relative link, absent before the first."""
        return self.opt + "/current"

    @property
    def previous(self) -> str:
        """The link to the generation that a rollback returns to."""
        return self.opt + "/previous"

    @property
    def installed_marker(self) -> str:
        """The host's signed word of what is current; absent before the first install."""
        return self.state + "/installed.json"

    @property
    def launcher(self) -> str:
        """The shell program that starts a runtime."""
        return self.opt + "/bin/capsule"

    @property
    def var(self) -> str:
        """What must survive power loss but is no content."""
        return self.root + "/var/lib/capsule"

    @property
    def state(self) -> str:
        """Key, fence, floor, route, markers, listings and ops."""
        return self.var + "/state"

    @property
    def staged(self) -> str:
        """One signed marker a staged generation."""
        return self.state + "/staged"

    @property
    def trees(self) -> str:
        """Listings of staged components, by tree root."""
        return self.state + "/trees"

    @property
    def ops(self) -> str:
        """One folder an op."""
        return self.state + "/ops"

    @property
    def ballast(self) -> str:
        """Space that rescue frees first."""
        return self.state + "/ballast"

    @property
    def receipts(self) -> str:
        """The chain of signed receipts."""
        return self.var + "/receipts"

    @property
    def recovery(self) -> str:
        """Rescue and what it needs, outside every generation."""
        return self.var + "/recovery"

    @property
    def quarantine(self) -> str:
        """What was found damaged, kept for people."""
        return self.var + "/quarantine"

    @property
    def hold(self) -> str:
        """The file whose presence keeps every managed unit from starting."""
        return self.var + "/hold"

    @property
    def trust(self) -> str:
        """The trust policy's folder."""
        return self.root + "/etc/capsule/trust"

    @property
    def policy(self) -> str:
        """The trust policy."""
        return self.trust + "/policy.json"

    @property
    def run(self) -> str:
        """What need not survive a reboot."""
        return self.root + "/run/capsule"

    @property
    def lock(self) -> str:
        """Held by whoever changes this host."""
        return self.run + "/lock"

    @property
    def kept(self) -> str:
        """The boot in which all folders were found, or made, and made durable."""
        return self.run + "/folders"

    @property
    def nonces(self) -> str:
        """Nonces that hellos gave out."""
        return self.run + "/nonces"

    @property
    def units(self) -> str:
        """Unit files of the installed generation; an administrator's /etc still wins."""
        return self.root + "/usr/local/lib/systemd/system"

    def generation(self, name: str) -> str:
        """Return the final path of a generation."""
        return f"{self.generations}/{name}"

    def marker(self, generation: str) -> str:
        """Return where the staged marker of a generation lies."""
        return f"{self.staged}/{generation}.json"

    def listing(self, root: ObjectId) -> str:
        """Return where the listing of a tree lies."""
        return f"{self.trees}/{root.hex()}"

    def op(self, op_id: str) -> str:
        """Return the folder of an op."""
        return f"{self.ops}/{op_id}"

    def object(self, digest: ObjectId, *, executable: bool) -> str:
        """Return where an object lies; modes belong to inodes, so executables have their own."""
        name = digest.hex()
        return f"{self.store}/{name[:2]}/{name}{'.x' if executable else ''}"

    def folders(self) -> tuple[tuple[str, int], ...]:
        """Return every folder that must exist with its mode, parents first."""
        return (
            (self.opt, 0o755),
            # Private modes of a tree are kept by its generation; the store must not undo them.
            (self.store, 0o700),
            (self.incoming, 0o700),
            (self.generations, 0o755),
            (self.runtimes, 0o755),
            (self.opt + "/bin", 0o755),
            (self.var, 0o755),
            (self.state, 0o700),
            (self.staged, 0o700),
            (self.trees, 0o700),
            (self.ops, 0o700),
            (self.receipts, 0o700),
            (self.recovery, 0o700),
            (self.quarantine, 0o700),
            (self.root + "/etc/capsule", 0o755),
            (self.trust, 0o755),
            (self.run, 0o755),
            (self.nonces, 0o700),
            (self.units, 0o755),
        )


def make_layout(root: str) -> Layout:
    """Return the layout below `root`, which is "/" for the real host.

    Raises:
        Refused: `root-invalid` for a root that is not absolute or names itself in a second way.
    """
    if root == "/":
        return Layout(root="")
    if not _ROOT.fullmatch(root):
        raise Refused(
            "root-invalid",
            "the root folder is not named by one plain absolute path",
            expected="/… without '.', '..', '//', a slash at the end, spaces or quotes",
            got=root,
        )
    return Layout(root=root)
