"""What a guarded step sees of the file system: a plan of mounts, made from what the host has.

Sockets that act on one's behalf lie in folders that are empty inside, or are covered one by one. A
file that somebody outside would act on later, such as a cron table, can't be written.

Source: mount(2), mount_setattr(2), file-hierarchy(7); `docs/explanation/guard.md`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = [
    "DEVICES",
    "READ_ONLY",
    "RESOLVER",
    "Mount",
    "Verb",
    "is_hidden",
    "make_mounts",
    "read_only_places",
]

DEVICES: Final = ("full", "null", "random", "urandom", "zero")
RESOLVER: Final = "/run/capsule-guard/resolv.conf"
"""Where the name server inside is written down; glibc reads it through /etc/resolv.conf."""

_EMPTY: Final = {"/run": "0755", "/tmp": "1777", "/var/tmp": "1777"}  # noqa: S108
_GONE: Final = ("/var/spool",)
READ_ONLY: Final = (
    "/bin",
    "/boot",
    "/efi",
    "/etc",
    "/home",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix",
    "/opt/capsule",
    "/root",
    "/sbin",
    "/snap",
    "/sys",
    "/usr",
    "/usr/local",
    "/var/lib/capsule",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/dbus",
    "/var/lib/docker",
    "/var/lib/dpkg",
    "/var/lib/machines",
    "/var/lib/snapd",
    "/var/lib/systemd",
    "/var/mail",
)
"""What somebody outside runs, reads or keeps, by the names that all know it by."""

# Settings of the whole kernel, one of which names a program that runs outside.
_PROC_READ_ONLY: Final = (
    "/proc/acpi",
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
)


class Verb(StrEnum):
    """What one step of the plan does."""

    TMPFS = "tmpfs"
    BIND = "bind"
    MOVE = "move"
    PROC = "proc"
    READ_ONLY = "read-only"
    FOLDER = "folder"
    FILE = "file"
    LINK = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One step: `source` is a path, a link's target, or a file's text, as the verb needs."""

    verb: Verb
    path: str
    source: str = ""
    options: str = ""


def read_only_places(names: Iterable[str], real: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return where names really lie, each place once and none below another.

    `real` follows links; it returns None for what is not there. A link is no way around: /home is
    one on some systems, and /opt/capsule where somebody keeps it on a disk of its own.

    Raises:
        OSError: a name is the root itself, which steps must write below.
    """
    found = {place for name in names if (place := real(name)) is not None and not is_hidden(place)}
    if "/" in found:
        raise OSError("a folder that must not be written is a link to /")
    return tuple(
        place
        for place in sorted(found)
        if not any(place.startswith(f"{other}/") for other in found)
    )


def make_mounts(
    has: Callable[[str], bool],
    *,
    read_only: Sequence[str],
    resolver: str | None,
    sockets: Sequence[str],
) -> tuple[Mount, ...]:
    """Return the plan. `has` says whether a path is there and no link.

    `read_only` are real paths of which none lies below another; `resolver` is where
    /etc/resolv.conf really lies, None when there is none; `sockets` are paths of sockets that
    somebody outside listens on.
    """
    plan = []
    for path in read_only:
        plan += [
            Mount(verb=Verb.BIND, path=path, source=path),
            Mount(verb=Verb.READ_ONLY, path=path),
        ]
    for path in (path for path in _GONE if has(path)):
        plan += [Mount(verb=Verb.TMPFS, path=path), Mount(verb=Verb.READ_ONLY, path=path)]
    plan += [
        Mount(verb=Verb.TMPFS, path=path, options=f"mode={mode}")
        for path, mode in _EMPTY.items()
        if has(path)
    ]
    # Programs that ask whether systemd runs then go on and are met at its socket, by name.
    plan.append(Mount(verb=Verb.FOLDER, path="/run/systemd/system"))
    plan += _resolver(resolver)
    plan += _devices()
    plan += [
        Mount(verb=Verb.BIND, path=path, source="/dev/null")
        for path in sorted(set(sockets))
        if not is_hidden(path)
    ]
    plan.append(Mount(verb=Verb.PROC, path="/proc"))
    for path in (path for path in _PROC_READ_ONLY if has(path)):
        plan += [
            Mount(verb=Verb.BIND, path=path, source=path),
            Mount(verb=Verb.READ_ONLY, path=path),
        ]
    return tuple(plan)


def is_hidden(path: str) -> bool:
    """Say whether a real path lies in a folder that is another one inside."""
    folders = (*_EMPTY, *_GONE, "/dev", "/proc")
    return path.startswith(tuple(f"{folder}/" for folder in folders))


def _resolver(real: str | None) -> list[Mount]:
    text = "nameserver 127.0.0.1\noptions attempts:1 timeout:1\n"
    plan = [Mount(verb=Verb.FILE, path=RESOLVER, source=text)]
    if real is None:
        return plan
    if real.startswith("/run/"):
        return [*plan, Mount(verb=Verb.FILE, path=real, source=text)]
    return [*plan, Mount(verb=Verb.BIND, path=real, source=RESOLVER)]


def _devices() -> list[Mount]:
    """Build a folder of harmless devices beside, then move it over /dev: no disk is in it."""
    made = "/run/capsule-guard/dev"
    plan = [
        Mount(verb=Verb.FOLDER, path=made),
        Mount(verb=Verb.TMPFS, path=made, options="mode=0755"),
    ]
    for name in DEVICES:
        plan += [
            Mount(verb=Verb.FILE, path=f"{made}/{name}"),
            Mount(verb=Verb.BIND, path=f"{made}/{name}", source=f"/dev/{name}"),
        ]
    plan += [
        Mount(verb=Verb.FOLDER, path=f"{made}/shm"),
        Mount(verb=Verb.TMPFS, path=f"{made}/shm", options="mode=1777"),
    ]
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    plan += [
        Mount(verb=Verb.LINK, path=f"{made}/{name}", source=target)
        for name, target in links.items()
    ]
    return [*plan, Mount(verb=Verb.MOVE, path="/dev", source=made)]
