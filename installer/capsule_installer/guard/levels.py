"""Which network guards this host can arm: facts in, levels out.

L0 none · L1 counts what the whole host sends, denies nothing · L2 denial by namespace · L3 denial
with attribution by seccomp user notification. What is offered here of L2 and L3 is still proved by
the canary of every op: a setting may be silently unenforced.

Source: design, section 9 ("Network guard"); namespaces(7), seccomp(2), `docs/explanation/guard.md`.
"""

from dataclasses import dataclass
from typing import Final

__all__ = [
    "KERNEL_MIN",
    "NAMESPACES",
    "REFUSED_MS",
    "GuardFacts",
    "missing_for",
    "offered_levels",
    "parse_refusal",
]

KERNEL_MIN: Final = (5, 12)
"""The first kernel with mount_setattr(2): a whole tree of mounts is made read-only at once."""

REFUSED_MS: Final = 600_000
"""How long a level that could not be armed is not offered: it may have been the load."""

NAMESPACES: Final = frozenset({"cgroup", "ipc", "mnt", "net", "pid", "uts"})

_MACHINES: Final = frozenset({"aarch64", "x86_64"})
# Source: capability.h. Without them no namespace is made, no mount changed, no link set up.
_NEEDED: Final = {
    "CAP_SETPCAP": 8,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardFacts:
    """What this host's kernel lets the host program do.

    `capabilities` is the effective set as bits; `seccomp_actions` are the kernel's own names.
    """

    is_folder: bool
    has_counters: bool
    user: int
    capabilities: int
    namespaces: frozenset[str]
    kernel: tuple[int, int]
    machine: str
    seccomp_actions: frozenset[str]


def offered_levels(facts: GuardFacts, *, refused: str | None = None) -> tuple[str, ...]:
    """Return the levels that can be armed, lowest first, without `refused` and what is above it."""
    able = (level for level in ("L1", "L2", "L3") if not missing_for(level, facts))
    return ("L0", *(level for level in able if refused is None or level < refused))


def parse_refusal(raw: bytes, now_ms: int) -> str | None:
    """Return the level that could not be armed lately; None when it is long ago or unreadable."""
    match raw.decode("ascii", "replace").split():
        case [("L2" | "L3") as level, at_ms] if at_ms.isascii() and at_ms.isdigit():
            return level if 0 <= now_ms - int(at_ms) < REFUSED_MS else None
    return None


def missing_for(level: str, facts: GuardFacts) -> tuple[str, ...]:
    """Return what a level lacks on this host, for people; nothing when it can be armed."""
    assert level in {"L1", "L2", "L3"}, level
    missing = []
    if facts.is_folder:
        missing.append("a host that is not a folder")
    if not facts.has_counters:
        missing.append("counters in /proc/net")
    if level == "L1":
        return tuple(missing)
    if facts.user != 0:
        missing.append("root")
    missing += [
        name for name, bit in _NEEDED.items() if not facts.capabilities >> bit & 1
    ]  # fmt: skip
    missing += [f"the {name} namespace" for name in sorted(NAMESPACES - facts.namespaces)]
    if facts.kernel < KERNEL_MIN:
        missing.append(f"Linux {KERNEL_MIN[0]}.{KERNEL_MIN[1]}")
    if facts.machine not in _MACHINES:
        missing.append("an x86-64 or aarch64 processor")
    # The filter of both levels answers calls with an error; only L3 asks somebody first.
    needed = {"errno", "kill_process"} | ({"user_notif"} if level == "L3" else set())
    missing += [f"seccomp's {name}" for name in sorted(needed - facts.seccomp_actions)]
    return tuple(missing)
