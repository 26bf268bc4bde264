"""The tree that every lab host starts from: Debian 12, made once, kept in a cache folder.

The name of the tree is the digest of its recipe, so that a changed recipe makes a new tree and an
old test run keeps the one it uses.
"""

import fcntl
import hashlib
import os
import re
import shutil
from pathlib import Path

from support.lab.commands import LabError, command

__all__ = ["base_tree", "cache_folder", "mirror"]

_SUITE = "bookworm"
_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "python3",
    "iproute2",
    "nftables",
    "openssl",
    "zstd",
    "sudo",
)
# What a host on a bench has no use for; without these it boots in half the time.
_MASKED = (
    "console-getty.service",
    "systemd-logind.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
)
_FILES = {
    # A jump host and a lane's burst of connections must not meet sshd's random early drop.
    "etc/ssh/sshd_config.d/lab.conf": "MaxStartups 64\nPasswordAuthentication no\n",
    "etc/sudoers.d/deploy": "deploy ALL=(ALL) NOPASSWD: ALL\n",
    "etc/systemd/journald.conf.d/lab.conf": "[Journal]\nStorage=persistent\nSystemMaxUse=32M\n",
    "etc/resolv.conf": "",
}
_TIMEOUT_S = 600
_COPIES_KEPT = 2


def cache_folder() -> Path:
    """Return the folder that outlives a run: $CAPSULE_LAB_CACHE, else below the user's cache."""
    return Path(os.environ.get("CAPSULE_LAB_CACHE") or Path.home() / ".cache" / "capsule-lab")


def base_tree() -> Path:
    """Return the base tree, making it when this recipe has none yet (45 s, network).

    Raises:
        LabError: debootstrap failed.
    """
    recipe = repr((_SUITE, _PACKAGES, _MASKED, _FILES)).encode()
    tree = cache_folder() / f"base-{hashlib.sha256(recipe).hexdigest()[:12]}"
    tree.parent.mkdir(parents=True, exist_ok=True)
    with (tree.parent / "base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            making = tree.with_name(tree.name + ".making")
            shutil.rmtree(making, ignore_errors=True)
            _make(making)
            making.rename(tree)
            _forget_old(tree)
    return tree


def _make(tree: Path) -> None:
    debs = cache_folder() / "debs"
    debs.mkdir(exist_ok=True)
    command(
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(_PACKAGES)}",
        f"--cache-dir={debs}",
        _SUITE,
        tree,
        mirror(),
        timeout_s=_TIMEOUT_S,
    )
    for name, text in _FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
    (tree / "etc/sudoers.d/deploy").chmod(0o440)
    for unit in _MASKED:
        link = tree / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    command("chroot", tree, "useradd", "--create-home", "--shell", "/bin/bash", "deploy")
    for key in (tree / "etc/ssh").glob("ssh_host_*"):
        key.unlink()  # every host gets its own
    command("chroot", tree, "apt-get", "clean")


def mirror() -> str:
    """Return where this machine's own apt gets Debian from; none is named here."""
    told = os.environ.get("CAPSULE_LAB_MIRROR")
    if told:
        return told
    listing = command("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)").stdout
    for line in listing.splitlines():
        place, _, release = line.partition(" ")
        if re.fullmatch(r"[a-z]+", release):
            return place
    message = "apt has no Debian release configured; set CAPSULE_LAB_MIRROR"
    raise LabError(message)


def _forget_old(tree: Path) -> None:
    """Remove base trees of older recipes that no mount uses any more."""
    mounted = Path("/proc/self/mountinfo").read_text()
    others = [p for p in tree.parent.glob("base-*") if p != tree and str(p) not in mounted]
    others.sort(key=lambda path: path.stat().st_mtime)
    for old in others[:-_COPIES_KEPT]:
        shutil.rmtree(old)
