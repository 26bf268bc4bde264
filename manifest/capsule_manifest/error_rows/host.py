"""Errors of the host: staging and installing."""

from typing import Final

from capsule_manifest.exit_codes import ExitCode

__all__ = ["ROWS"]

ROWS: Final[dict[str, tuple[ExitCode, str]]] = {
    # --- staging ---
    "disk-denied": (
        ExitCode.INCOMPATIBLE,
        "run as the user that owns the host's folders, and look at the named path",
    ),
    "disk-failed": (
        ExitCode.SPACE,
        "look at the named path and at the kernel's log; the disk may be failing",
    ),
    "disk-file-too-large": (ExitCode.INTEGRITY, "look at the named file: capsule did not write it"),
    "disk-read-only": (
        ExitCode.SPACE,
        "mount the file system writable, and look at the kernel's log for why it is not",
    ),
    "generation-in-use": (
        ExitCode.ROUTE_MISMATCH,
        "the values of this node changed: build a release with a higher counter and stage that",
    ),
    "host-busy": (ExitCode.BUSY, "wait for the other capsule program, then run this one again"),
    "host-folder-unsafe": (
        ExitCode.INTEGRITY,
        "give the folder to the user that runs capsule, with mode 0755 or less, and not as a link",
    ),
    "host-not-enrolled": (
        ExitCode.INCOMPATIBLE,
        "enrol the host first: `capsule stage` on the controller does it at first contact",
    ),
    "installer-too-old": (
        ExitCode.INCOMPATIBLE,
        "stage again from the controller, which brings the capsule's own host program",
    ),
    "node-key-exposed": (
        ExitCode.INTEGRITY,
        "find out who could read the key; `chmod 600` it, or remove the host's state and enrol",
    ),
    "object-malformed": (
        ExitCode.INTEGRITY,
        "get the capsule again: its frames don't hold the objects that its listings name",
    ),
    "partial-damaged": (
        ExitCode.TRANSFER_INCOMPLETE,
        "run the same command again: the damaged part was removed and will be sent whole",
    ),
    "platform-mismatch": (
        ExitCode.INCOMPATIBLE,
        "correct the node's platform in fleet.toml, or add this platform to release.toml",
    ),
    "rehearsal-failed": (
        ExitCode.INCOMPATIBLE,
        "read what failed; correct the release, build it again with a higher counter and stage it",
    ),
    "root-invalid": (ExitCode.USAGE, "give --root as an absolute path"),
    "space-short": (
        ExitCode.SPACE,
        "free what is named, for example with `capsule gc`, then stage again",
    ),
    "state-malformed": (
        ExitCode.INTEGRITY,
        "look at the named file: the disk is damaged, or somebody changed it",
    ),
    "verify-failed": (
        ExitCode.INTEGRITY,
        "stage the capsule again to repair it; if it repeats, check the disk",
    ),
    # --- installing ---
    "account-unknown": (
        ExitCode.PREFLIGHT_REFUSED,
        "make the account on the host, or correct the managed file's owner in release.toml",
    ),
    "confirm-timeout": (
        ExitCode.RESTORED,
        "find out why the controller did not confirm, then order again with a new op id",
    ),
    "deadline-too-short": (
        ExitCode.BUDGET_REFUSED,
        "shorten the units' time-outs or raise d1 in release.toml, then build again",
    ),
    "generation-damaged": (
        ExitCode.INTEGRITY,
        "stage the capsule again; if it repeats, check the disk: `capsule verify`",
    ),
    "guard-not-armed": (
        ExitCode.GUARD_NOT_ARMED,
        "nothing was stopped; read why: docs/how-to/guard.md says what a host needs for each level",
    ),
    "guarded-step-failed": (
        ExitCode.RESTORED,
        "read the step's output, correct the release and build it with a higher counter",
    ),
    "installed-contradictory": (
        ExitCode.PREFLIGHT_REFUSED,
        "look at both with `capsule status`; repair the node from its signed receipts",
    ),
    "managed-file-changing": (
        ExitCode.RESTORED,
        "find out who changes the file; `capsule node files --set-aside` keeps what he wrote",
    ),
    "managed-file-edited": (
        ExitCode.PREFLIGHT_REFUSED,
        "move the edit into the release, or keep it aside: `capsule node files --set-aside`",
    ),
    "network-violation": (
        ExitCode.NETWORK_VIOLATION,
        "ship what the step fetches in the capsule; docs/how-to/guard.md says how to find it",
    ),
    "nothing-to-roll-back": (
        ExitCode.PREFLIGHT_REFUSED,
        "install a release instead: this host has no previous one",
    ),
    "op-id-reused": (ExitCode.ROUTE_MISMATCH, "send the order with a fresh random op id"),
    "op-not-finished": (
        ExitCode.TRANSFER_INCOMPLETE,
        "run `capsule follow` again; the host ends the op by itself in any case",
    ),
    "op-open": (
        ExitCode.BUSY,
        "wait for its end with `capsule follow`; if its restore failed, run `capsule boot`",
    ),
    "op-restored": (
        ExitCode.RESTORED,
        "read why in the op's receipt, then order again with a new op id",
    ),
    "op-unknown": (ExitCode.ROUTE_MISMATCH, "list the host's ops with `capsule status`"),
    "process-not-started": (
        ExitCode.RESTORED,
        "look at the named program: it must exist and be executable on this host",
    ),
    "process-timeout": (
        ExitCode.RESTORED,
        "make the named program faster, or give it more time in release.toml",
    ),
    "proof-failed": (
        ExitCode.RESTORED,
        "read the service's log; correct the release and build it with a higher counter",
    ),
    "service-failed": (
        ExitCode.RESTORED,
        "read the service's log: `journalctl -u UNIT`; on a folder host below run/capsule/services",
    ),
    "step-timeout": (
        ExitCode.RESTORED,
        "find out what slows this host down, then order again with a new op id",
    ),
    "switch-path-invalid": (ExitCode.PREFLIGHT_REFUSED, "rename the managed file in release.toml"),
    "switch-plan-malformed": (
        ExitCode.RESTORE_FAILED,
        "look at the named plan: the disk is damaged, or somebody changed it",
    ),
    "switch-target-blocked": (
        ExitCode.RESTORED,
        "remove the folder that stands where the managed file shall be",
    ),
    "unit-unsupported": (
        ExitCode.PREFLIGHT_REFUSED,
        "use a host with systemd for this release, or change the named line of the unit",
    ),
    # --- images in a host's engine ---
    "engine-failed": (
        ExitCode.INCOMPATIBLE,
        "run the named podman command by hand as root, and mend what it says; then repeat",
    ),
    "engine-missing": (
        ExitCode.INCOMPATIBLE,
        "install podman on this host, or leave units that run images out of its role",
    ),
    "image-digest-wrong": (
        ExitCode.INTEGRITY,
        "build the image component again from its source, with a higher counter, and stage that",
    ),
    "image-gone": (
        ExitCode.RESTORED,
        "find out what removes images on this host, such as a timer that prunes; then stage again",
    ),
    "image-load-failed": (
        ExitCode.INCOMPATIBLE,
        "read what podman says: its store needs space, policy.json must allow oci:; stage again",
    ),
}
