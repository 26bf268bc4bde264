"""Every error id with its exit code and what the operator does next.

`docs/reference/errors.md` is generated from this table. A row is added with the check that raises
it; an id is never reused for another meaning.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from capsule_manifest.exit_codes import ExitCode

__all__ = ["ROWS"]

_CANONICAL = {
    "json-malformed": (
        ExitCode.INTEGRITY,
        "get the document again from where it was made",
    ),
    "json-not-canonical": (
        ExitCode.INTEGRITY,
        "get the document again; signed documents are never edited or re-formatted",
    ),
    "json-too-deep": (
        ExitCode.INTEGRITY,
        "discard the document: nothing valid nests so deep",
    ),
    "json-too-large": (
        ExitCode.INTEGRITY,
        "discard the document: nothing valid is so large",
    ),
    "json-unsupported-value": (
        ExitCode.INTEGRITY,
        "use only objects, arrays, strings, whole numbers up to 2^53-1, true, false and null",
    ),
    "digest-malformed": (
        ExitCode.INTEGRITY,
        "get the document that names this digest again",
    ),
    "document-invalid": (
        ExitCode.INTEGRITY,
        "get the document again; if it was made by a newer capsule, upgrade this one",
    ),
    "document-version": (
        ExitCode.INCOMPATIBLE,
        "use a capsule that knows this version of the format",
    ),
}

_ENVELOPE = {
    "signature-invalid": (
        ExitCode.INTEGRITY,
        "don't use the document; ask its signer for the genuine one",
    ),
    "signature-malformed": (ExitCode.INTEGRITY, "get the signature file again"),
    "signature-wrong-subject": (
        ExitCode.INTEGRITY,
        "this signature belongs to another document; get the one made for this document",
    ),
    "signature-missing": (
        ExitCode.INTEGRITY,
        "sign it: `capsule sign DIRECTORY --key KEY`",
    ),
    "key-malformed": (ExitCode.INTEGRITY, "give an ECDSA P-256 key in PEM form"),
    "key-unknown": (
        ExitCode.INTEGRITY,
        "sign with a key that the trust policy names, or have the key added to the policy",
    ),
}

_TRUST = {
    "policy-invalid": (
        ExitCode.INTEGRITY,
        "correct the named value in the trust policy, or name the file with --policy",
    ),
    "authority-denied": (
        ExitCode.DENIED,
        "use a key that holds this authority; one key never serves two authorities",
    ),
    "threshold-not-met": (
        ExitCode.INTEGRITY,
        "have more owners sign: `capsule sign DIRECTORY --key KEY` adds one signature",
    ),
    "product-mismatch": (ExitCode.DENIED, "use the trust policy of this product"),
    "release-counter-too-low": (
        ExitCode.DENIED,
        "build a newer release with a higher release_counter",
    ),
    "key-outside-window": (
        ExitCode.DENIED,
        "sign with a key whose counter window covers this release",
    ),
    "capsule-revoked": (ExitCode.DENIED, "install a release that is not revoked"),
    "key-revoked": (ExitCode.DENIED, "sign with a key that is not revoked"),
    "signers-disagree": (
        ExitCode.INTEGRITY,
        "remove the signature whose statement differs and sign again",
    ),
    "guard-level-denied": (
        ExitCode.GUARD_NOT_ARMED,
        "use a host that can deny the network, or have the route grant a waiver to this node",
    ),
}

_RECORDS = {
    "order-wrong-node": (
        ExitCode.ROUTE_MISMATCH,
        "send the order to the node that it names",
    ),
    "order-wrong-route": (
        ExitCode.ROUTE_MISMATCH,
        "stage this route on the node first: `capsule stage`",
    ),
    "order-expired": (
        ExitCode.TIME,
        "ask the host for a fresh hello and send a new order",
    ),
    "order-fenced": (
        ExitCode.FENCED,
        "a newer controller has taken over; look at `capsule status` before doing anything",
    ),
    "order-prior-mismatch": (
        ExitCode.ROUTE_MISMATCH,
        "look at what the host runs with `capsule status`, then order again from there",
    ),
    "confirm-refused": (
        ExitCode.RESTORED,
        "the host has already decided; read its outcome with `capsule status`",
    ),
    "record-chain-broken": (
        ExitCode.INTEGRITY,
        "compare the host's receipts with the controller's copy: `capsule receipts verify`",
    ),
    "wire-malformed": (
        ExitCode.TRANSFER_INCOMPLETE,
        "run the same command again; if it repeats, look at the host's shell start-up files",
    ),
}

# --- formats (paths, tree, pack, packing, container) -------------------------------------------
_FORMATS: dict[str, tuple[ExitCode, str]] = {
    "container-malformed": (
        ExitCode.INTEGRITY,
        "get the file again; a capsule is never repacked with tar, use `capsule build`",
    ),
    "container-member-refused": (
        ExitCode.INTEGRITY,
        "get the file again; a capsule holds only the members that the reference page lists",
    ),
    "container-truncated": (ExitCode.TRANSFER_INCOMPLETE, "transfer the file again, it is cut off"),
    "frame-digest-mismatch": (
        ExitCode.INTEGRITY,
        "transfer the pack again; if it repeats, check the disk that holds the capsule",
    ),
    "frame-malformed": (
        ExitCode.INTEGRITY,
        "discard the capsule: its bytes are as they were named, but no frame capsule would make",
    ),
    "link-escapes": (
        ExitCode.INTEGRITY,
        "make the link relative and keep its target inside the component",
    ),
    "pack-malformed": (ExitCode.INTEGRITY, "transfer the pack again"),
    "packing-inconsistent": (
        ExitCode.INTEGRITY,
        "get packing.json again; if it repeats, build the capsule again",
    ),
    "path-invalid": (ExitCode.INTEGRITY, "rename the file, then build again"),
    "tree-digest-mismatch": (ExitCode.INTEGRITY, "get the tree file again"),
    "tree-entry-invalid": (ExitCode.INTEGRITY, "correct the named entry, then build again"),
    "tree-malformed": (ExitCode.INTEGRITY, "get the tree file again"),
    "tree-too-large": (ExitCode.INTEGRITY, "split the component into several components"),
}

# --- builder inputs ----------------------------------------------------------------------------
_INPUTS: dict[str, tuple[ExitCode, str]] = {
    "archive-refused": (ExitCode.INTEGRITY, "don't use the archive; get another build of it"),
    "cache-failed": (ExitCode.SPACE, "make the cache folder writable, or set XDG_CACHE_HOME"),
    "lock-invalid": (ExitCode.USAGE, "write it again with `capsule lock --refresh`"),
    "lock-missing": (ExitCode.USAGE, "run `capsule lock` and commit release.lock"),
    "lock-stale": (ExitCode.USAGE, "run `capsule lock` and commit release.lock"),
    "marker-unknowable": (ExitCode.USAGE, "lock without that marker, or remove the requirement"),
    "release-invalid": (ExitCode.USAGE, "correct the named values in release.toml"),
    "release-missing": (ExitCode.USAGE, "write one with `capsule init`, or name it with --release"),
    "requirement-editable": (
        ExitCode.USAGE,
        "build a wheel of the folder, or make it a component of kind source",
    ),
    "requirement-not-pinned": (ExitCode.USAGE, "lock to exact versions, such as with uv or pip"),
    "requirement-without-hash": (ExitCode.USAGE, "lock with hashes (`--generate-hashes`)"),
    "requirements-invalid": (ExitCode.USAGE, "correct the named line and lock again"),
    "requirements-missing": (ExitCode.USAGE, "write the file, or correct its path in release.toml"),
    "runtime-source-missing": (ExitCode.INTERNAL, "install the three distributions together"),
    "source-dirty": (ExitCode.USAGE, "commit or remove the named changes, then build again"),
    "source-empty": (ExitCode.USAGE, "commit the named files, or correct `include`"),
    "source-entry-refused": (
        ExitCode.USAGE,
        "commit the content itself, or leave the entry out with `include`",
    ),
    "source-git-failed": (ExitCode.INTERNAL, "run `git fsck` in the named folder"),
    "source-not-git": (ExitCode.USAGE, "name a folder of a git work tree that has a commit"),
    "tool-member-missing": (ExitCode.USAGE, "correct `member` in release.toml"),
    "tool-path-missing": (ExitCode.USAGE, "correct `path` in release.toml"),
    "url-digest-mismatch": (
        ExitCode.INTEGRITY,
        "find out why the file changed before you write its new digest into release.toml",
    ),
    "url-fetch-failed": (ExitCode.TRANSFER_INCOMPLETE, "check the address and run it again"),
    "wheel-conflict": (ExitCode.USAGE, "remove one of the two wheels from the requirements"),
    "wheel-dependency-missing": (ExitCode.USAGE, "lock all dependencies, such as with uv or pip"),
    "wheel-digest-mismatch": (
        ExitCode.INTEGRITY,
        "remove the file from the cache; if it repeats, don't trust the index",
    ),
    "wheel-fetch-failed": (
        ExitCode.TRANSFER_INCOMPLETE,
        "check pip's own settings (`pip config list`) and run it again",
    ),
    "wheel-is-sdist": (
        ExitCode.USAGE,
        "build a wheel of it for the platform, put it where your index is, and lock its digest",
    ),
    "wheel-layout-invalid": (ExitCode.INTEGRITY, "use another build of the wheel"),
    "wheel-metadata-invalid": (ExitCode.INTEGRITY, "use another build of the wheel"),
    "wheel-name-invalid": (ExitCode.INTEGRITY, "lock again; the file is not what was asked for"),
    "wheel-not-found": (
        ExitCode.USAGE,
        "lock the digest of a wheel that exists, or configure the index that has it",
    ),
    "wheel-python-unfit": (ExitCode.USAGE, "lock a version that supports the platform's Python"),
    "wheel-record-mismatch": (ExitCode.INTEGRITY, "don't use the wheel: its content was changed"),
    "wheel-unfit": (
        ExitCode.INCOMPATIBLE,
        "lock a version with a wheel for this platform, or correct the platform in release.toml",
    ),
    "zip-refused": (ExitCode.INTEGRITY, "don't use the archive; get another build of it"),
}

# --- builder output ----------------------------------------------------------------------------
_BUILDER: dict[str, tuple[ExitCode, str]] = {
    "budget-exceeded": (
        ExitCode.BUDGET_REFUSED,
        "shorten the units' time-outs or soak, or raise budgets.d1_s in release.toml",
    ),
    "case-collision": (
        ExitCode.INTEGRITY,
        'rename one of the two, or set the role\'s case_collisions to "warn"',
    ),
    "counter-not-higher": (
        ExitCode.DENIED,
        "raise release_counter in release.toml, or build into another folder",
    ),
    "input-changed": (ExitCode.INTEGRITY, "let nothing write to the inputs, and build again"),
    "input-missing": (ExitCode.USAGE, "commit the file, or correct the path in release.toml"),
    "key-exists": (ExitCode.USAGE, "choose another file name; nothing was overwritten"),
    "key-exposed": (ExitCode.INTEGRITY, "replace the key; then `chmod 600` the new one"),
    "key-missing": (ExitCode.USAGE, "give the path of a key file that this user can read"),
    "managed-file-not-allowed": (ExitCode.USAGE, "choose another target in release.toml"),
    "not-reproducible": (
        ExitCode.INTEGRITY,
        "compare the two with `capsule diff` and remove what depends on time or place",
    ),
    "object-mismatch": (ExitCode.INTEGRITY, "get the capsule again"),
    "output-differs": (ExitCode.INTEGRITY, "move the named folder away, then build again"),
    "unit-invalid": (ExitCode.USAGE, "correct the named line of the unit file"),
    "unit-not-allowed": (
        ExitCode.PREFLIGHT_REFUSED,
        "ship what the unit needs in the capsule, or declare the step in guarded_steps",
    ),
    "disk-full": (
        ExitCode.SPACE,
        "free space or inodes, then run again: what has arrived is kept; `capsule gc` helps",
    ),
    "file-exists": (ExitCode.USAGE, "choose another folder, or move the named files away"),
    "file-failed": (ExitCode.USAGE, "correct the named path or its permissions, then run again"),
    "template-invalid": (
        ExitCode.USAGE,
        "correct the placeholder; docs/reference/template.md lists those that exist",
    ),
    "template-value-invalid": (
        ExitCode.ROUTE_MISMATCH,
        "correct the node's value in fleet.toml, then freeze again",
    ),
    "template-value-missing": (
        ExitCode.ROUTE_MISMATCH,
        "give the node this value in fleet.toml (vars), then freeze again",
    ),
    "secret-found": (
        ExitCode.DENIED,
        "remove it and make it void, or name it in secret-waivers.toml with a reason and a day",
    ),
    "waivers-invalid": (ExitCode.USAGE, "correct secret-waivers.toml as the message says"),
    "image-digest-mismatch": (
        ExitCode.INTEGRITY,
        "get the image again; if another one is meant, write its digest and lock again",
    ),
    "image-fetch-failed": (
        ExitCode.TRANSFER_INCOMPLETE,
        "see what skopeo says, log in with it if need be, and lock again",
    ),
    "image-malformed": (
        ExitCode.INTEGRITY,
        "make the image again with a tool that writes OCI layouts",
    ),
    "image-platform-missing": (
        ExitCode.USAGE,
        "name an image that is there for this platform, or limit the component's platforms",
    ),
}

# --- host: stage -------------------------------------------------------------------------------
_STAGE: dict[str, tuple[ExitCode, str]] = {
    "component-unsupported": (
        ExitCode.INCOMPATIBLE,
        "use a host program that knows this kind of component, or leave it out of the role",
    ),
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
}

# --- host: install -----------------------------------------------------------------------------
_INSTALL: dict[str, tuple[ExitCode, str]] = {
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
    "guarded-step-failed": (
        ExitCode.RESTORED,
        "read the step's output, correct the release and build it with a higher counter",
    ),
    "installed-contradictory": (
        ExitCode.PREFLIGHT_REFUSED,
        "look at both with `capsule status`; repair the node from its signed receipts",
    ),
    "managed-file-edited": (
        ExitCode.PREFLIGHT_REFUSED,
        "move the edit into the release or put the file back, then order again",
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
}

# --- controller --------------------------------------------------------------------------------
_CONTROLLER: dict[str, tuple[ExitCode, str]] = {
    "capsule-incomplete": (
        ExitCode.INTEGRITY,
        "get the capsule directory again, or build it again",
    ),
    "controller-busy": (ExitCode.BUSY, "wait for the other command, then run this one again"),
    "controller-disk": (
        ExitCode.SPACE,
        "look at the named file and the disk that it lies on, then run the command again",
    ),
    "controller-fenced": (
        ExitCode.FENCED,
        "another controller has taken over; if that is wrong, run again with --take-over",
    ),
    "demo-failed": (ExitCode.INTERNAL, "run `capsule demo --keep` and look at what it left"),
    "demo-unavailable": (ExitCode.USAGE, "run it from a checkout, with a folder that is not there"),
    "enrolment-differs": (
        ExitCode.INTEGRITY,
        "the host belongs to another node or policy; correct fleet.toml, or enrol a fresh host",
    ),
    "first-contact-failed": (ExitCode.SPACE, "look at the host's disk, then stage again"),
    "first-contact-refused": (
        ExitCode.INCOMPATIBLE,
        "correct what is named on the host, then stage again",
    ),
    "fleet-invalid": (
        ExitCode.USAGE,
        "correct the named value in fleet.toml, or name the inventory with --fleet",
    ),
    "generation-not-staged": (ExitCode.ROUTE_MISMATCH, "stage the capsule first: `capsule stage`"),
    "host-error-unknown": (
        ExitCode.INCOMPATIBLE,
        "use a controller at least as new as the host's program",
    ),
    "host-program-failed": (
        ExitCode.TRANSFER_INCOMPLETE,
        "run the same command again; if it repeats, run `capsule status` on the host",
    ),
    "host-program-missing": (
        ExitCode.TRANSFER_INCOMPLETE,
        "stage a capsule on the host: the first one brings the program",
    ),
    "host-unreachable": (
        ExitCode.TRANSFER_INCOMPLETE,
        "see that the host is up and its endpoint in fleet.toml is right, then run again",
    ),
    "install-not-begun": (
        ExitCode.PREFLIGHT_REFUSED,
        "look at the node that did not commit, then order the others again",
    ),
    "node-key-changed": (
        ExitCode.INTEGRITY,
        "find out why: the host was replaced, or somebody stands between; never just accept it",
    ),
    "node-unmet": (ExitCode.PREFLIGHT_REFUSED, "stage a capsule on the node first"),
    "node-unknown": (ExitCode.USAGE, "name a node or lane of fleet.toml"),
    "node-work-failed": (ExitCode.INTERNAL, "report this with the log that was printed"),
    "object-digest-mismatch": (
        ExitCode.INTEGRITY,
        "get the capsule again; if it repeats, check the disk that holds it",
    ),
    "op-unresolved": (
        ExitCode.NOT_SERVING,
        "run `capsule status`; the host ends what it began by itself",
    ),
    "proof-refused": (
        ExitCode.INTEGRITY,
        "don't trust the host; it restores what ran before, look at it with `capsule status`",
    ),
    "receipt-gap": (
        ExitCode.INTEGRITY,
        "find out why the host lacks receipts that it has numbered",
    ),
    "receipt-refused": (
        ExitCode.INTEGRITY,
        "don't trust the host; compare its receipts: `capsule receipts verify`",
    ),
    "route-not-frozen": (ExitCode.ROUTE_MISMATCH, "stage first: `capsule stage` freezes the route"),
    "route-not-staged": (
        ExitCode.ROUTE_MISMATCH,
        "stage again: only the new route is sent, not the content",
    ),
    "runtime-missing": (
        ExitCode.INCOMPATIBLE,
        "build the capsule again with this platform in release.toml",
    ),
    "transport-deadline": (
        ExitCode.TRANSFER_INCOMPLETE,
        "see that the host answers, then run the same command again",
    ),
}

# --- SSH ---------------------------------------------------------------------------------------
_SSH: dict[str, tuple[ExitCode, str]] = {
    "connection-lost": (
        ExitCode.TRANSFER_INCOMPLETE,
        "run the same command again: it continues, and asks for what was ordered by its op id",
    ),
    "endpoint-invalid": (ExitCode.USAGE, "correct the node's address, user, key or jump chain"),
    "host-key-changed": (
        ExitCode.INTEGRITY,
        "find out why: the host was reinstalled, or somebody stands between; only then pin anew",
    ),
    "ssh-auth-refused": (
        ExitCode.PREFLIGHT_REFUSED,
        "let authorized_keys hold the controller's key, or name another: CAPSULE_SSH_IDENTITY",
    ),
    "ssh-banner-invalid": (
        ExitCode.TRANSFER_INCOMPLETE,
        "see what answers at this address and port: `ssh -v -p PORT ADDRESS`",
    ),
    "ssh-client-missing": (ExitCode.INCOMPATIBLE, "install OpenSSH's client on the controller"),
    "ssh-connect-deadline": (
        ExitCode.TRANSFER_INCOMPLETE,
        "see that the host is up and not frozen, then run the same command again",
    ),
    "ssh-jump-refused": (
        ExitCode.TRANSFER_INCOMPLETE,
        "see that the jump host reaches the next one and lets it be forwarded (AllowTcpForwarding)",
    ),
    "ssh-sessions-exhausted": (
        ExitCode.TRANSFER_INCOMPLETE,
        "raise MaxSessions in the host's sshd_config, or run again later",
    ),
    "ssh-start-deadline": (
        ExitCode.TRANSFER_INCOMPLETE,
        "see whether the user's shell start-up files wait for something, then run again",
    ),
    "ssh-start-failed": (
        ExitCode.TRANSFER_INCOMPLETE,
        "log in as this user and see what its shell start-up files do",
    ),
    "ssh-throttled": (
        ExitCode.TRANSFER_INCOMPLETE,
        "run again later; raise MaxStartups in sshd_config if it repeats",
    ),
    "sudo-refused": (
        ExitCode.PREFLIGHT_REFUSED,
        "let the user run sudo without a password (NOPASSWD), or connect as root",
    ),
}

# --- lanes and rollout -------------------------------------------------------------------------
_LANE: dict[str, tuple[ExitCode, str]] = {
    "credential-ends-first": (
        ExitCode.BUDGET_REFUSED,
        "rotate the listed credentials first: `capsule credential rotate`",
    ),
    "credential-ends-inside": (
        ExitCode.BUDGET_REFUSED,
        "rotate the node's credential first: `capsule credential rotate`",
    ),
    "floor-too-high": (
        ExitCode.BUDGET_REFUSED,
        "lower the floor in fleet.toml, or bring more nodes into service first",
    ),
    "lane-too-wide": (ExitCode.BUDGET_REFUSED, "split the lane in fleet.toml, then freeze again"),
    "outage-not-allowed": (
        ExitCode.BUDGET_REFUSED,
        "plan again with --allow-outage if the service may be away",
    ),
    "plan-empty": (ExitCode.USAGE, "select at least one node"),
    "plan-mismatch": (
        ExitCode.ROUTE_MISMATCH,
        "adopt with the plan that the epoch was started with: `capsule rollout status`",
    ),
    "plan-node-twice": (ExitCode.USAGE, "select every node once"),
    "window-above-ttl": (
        ExitCode.BUDGET_REFUSED,
        "raise the TTL in fleet.toml, or shorten D1, D2 or the units' time-outs",
    ),
}

# --- rollout -----------------------------------------------------------------------------------
_ROLLOUT: dict[str, tuple[ExitCode, str]] = {
    "decision-waiting": (
        ExitCode.BUSY,
        "its controller may be gone: look at `capsule rollout status`, then adopt with --takeover",
    ),
    "hook-failed": (
        ExitCode.NODES_HELD,
        "run the hook by hand with the same words; the rollout asks again by itself",
    ),
    "plan-changed": (
        ExitCode.PREFLIGHT_REFUSED,
        "look at `capsule rollout plan` again, and start with the digest that it prints",
    ),
    "preflight-missing": (
        ExitCode.PREFLIGHT_REFUSED,
        "run `capsule preflight` for this capsule, after the last stage, then start again",
    ),
    "preflight-refused": (
        ExitCode.PREFLIGHT_REFUSED,
        "follow the remedy named for each node, or leave them out with --without-unfit",
    ),
    "quarantine-stays": (
        ExitCode.PREFLIGHT_REFUSED,
        "mend the host or repair its marker, run `capsule preflight`, then release it again",
    ),
    "repair-refused": (
        ExitCode.PREFLIGHT_REFUSED,
        "the named evidence is missing or disagrees; find out why before anything is written",
    ),
    "route-mismatch": (
        ExitCode.ROUTE_MISMATCH,
        "use the capsule and the frozen route that the epoch was planned with",
    ),
}

# --- ledger ------------------------------------------------------------------------------------
_LEDGER: dict[str, tuple[ExitCode, str]] = {
    "epoch-unknown": (
        ExitCode.USAGE,
        "look at `capsule ledger show` for the epochs that there are",
    ),
    "epoch-unfinished": (
        ExitCode.UNFINISHED_EPOCH,
        "adopt the named epoch or abort it: `capsule rollout adopt|abort`",
    ),
    "fence-stale": (
        ExitCode.FENCED,
        "a newer controller is at work; look at `capsule rollout status` before doing anything",
    ),
    "lease-busy": (
        ExitCode.BUSY,
        "wait for the named controller, or take over with `capsule rollout adopt --takeover`",
    ),
    "ledger-conflict": (ExitCode.FENCED, "read the epoch again: `capsule rollout status`"),
    "ledger-address": (
        ExitCode.USAGE,
        "give a path, or postgresql://USER@HOST/DATABASE",
    ),
    "ledger-damaged": (
        ExitCode.INTEGRITY,
        "keep the file, and make a new ledger from the hosts: `capsule ledger rebuild`",
    ),
    "ledger-full": (
        ExitCode.SPACE,
        "free space on the controller, then adopt; what is under way on hosts ends by itself",
    ),
    "ledger-missing": (
        ExitCode.USAGE,
        "name the ledger with --ledger; a lost one is made again by `capsule ledger rebuild`",
    ),
    "ledger-not-empty": (
        ExitCode.PREFLIGHT_REFUSED,
        "name a ledger that does not exist yet; keep the old one for its history",
    ),
    "ledger-on-network": (
        ExitCode.PREFLIGHT_REFUSED,
        "put the ledger on a local disk, or use PostgreSQL",
    ),
    "ledger-too-new": (
        ExitCode.INCOMPATIBLE,
        "use the capsule that last wrote to this ledger, or a newer one",
    ),
    "ledger-unavailable": (
        ExitCode.BUSY,
        "look after the database, then run the same command again",
    ),
    "permit-taken": (
        ExitCode.UNFINISHED_EPOCH,
        "finish or abort the epoch that has the node's permit",
    ),
}

# --- policies, owners, keyless signers, and updates of trust -----------------------------------
_POLICY: dict[str, tuple[ExitCode, str]] = {
    "certificate-revoked": (ExitCode.DENIED, "sign again with a fresh certificate"),
    "counter-signer-unknown": (
        ExitCode.INTEGRITY,
        "have an owner that the policy names sign: `capsule sign CAPSULE --as OWNER --key KEY`",
    ),
    "identity-unknown": (
        ExitCode.INTEGRITY,
        "sign from the workflow that the policy names, or have the identity added to the policy",
    ),
    "keyless-unverified": (
        ExitCode.INTEGRITY,
        "verify it where a trusted root is, and counter-sign: `capsule sign CAPSULE --as OWNER`",
    ),
    "policy-changed": (
        ExitCode.ROUTE_MISMATCH,
        "stage again: the capsule is then checked under the policy that holds now",
    ),
    "trusted-root-mismatch": (
        ExitCode.INTEGRITY,
        "give the trusted root that belongs to this policy; `capsule trust update` brings both",
    ),
    "owner-mismatch": (ExitCode.DENIED, "sign with this owner's own key, or name its real owner"),
    "policy-differs": (
        ExitCode.ROUTE_MISMATCH,
        "use the newest policy and keep its policy-update.json beside it: `capsule trust update`",
    ),
    "policy-floor-lowered": (
        ExitCode.DENIED,
        "keep the floor; name the one capsule to go back to: `capsule trust revise --allow`",
    ),
    "policy-forked": (
        ExitCode.INTEGRITY,
        "don't use it; find out who signed two policies under one number, then issue a higher one",
    ),
    "policy-older": (ExitCode.DENIED, "bring the newest policy; trust never goes back"),
    "policy-threshold-not-met": (
        ExitCode.INTEGRITY,
        "have more owners of the trust authority sign: `capsule trust sign MEDIUM --key KEY`",
    ),
    "trust-below-threshold": (
        ExitCode.INTEGRITY,
        "have more owners of the trust authority sign: `capsule trust sign MEDIUM --key KEY`",
    ),
    "trust-clock-behind": (
        ExitCode.TIME,
        "set this machine's clock, then update again; installs go on meanwhile",
    ),
    "trust-expired": (
        ExitCode.TIME,
        "bring a fresh medium, or set this machine's clock; installs go on meanwhile",
    ),
    "trust-malformed": (ExitCode.INTEGRITY, "write the medium again: `capsule trust export`"),
    "trust-medium-incomplete": (
        ExitCode.TRANSFER_INCOMPLETE,
        "copy the whole folder that `capsule trust export` wrote",
    ),
    "trust-mixed": (
        ExitCode.INTEGRITY,
        "copy all files of one export; this medium has files of several",
    ),
    "trust-not-pinned": (
        ExitCode.USAGE,
        "pin the first policy once: `capsule trust update MEDIUM --pin POLICY`",
    ),
    "trust-rollback": (
        ExitCode.DENIED,
        "bring the newest medium; one that is older than what was accepted is never taken",
    ),
    "trust-root-broken": (
        ExitCode.INTEGRITY,
        "bring a medium with every root from the accepted one to the newest, each signed by both",
    ),
    "owner-counted-once": (
        ExitCode.INTEGRITY,
        "have another owner sign; a second key of the same owner adds no voice",
    ),
}

# --- inputs that would not be on a host what they are on the builder ---------------------------
_CONTENT: dict[str, tuple[ExitCode, str]] = {
    "capability-refused": (
        ExitCode.USAGE,
        "take the capabilities from the file and give them to the unit that runs it",
    ),
    "input-hollow": (
        ExitCode.USAGE,
        "ship a program that makes the file on the host, or leave the file out",
    ),
}

# --- keyless -----------------------------------------------------------------------------------
_KEYLESS: dict[str, tuple[ExitCode, str]] = {
    "keyless-malformed": (
        ExitCode.INTEGRITY,
        "get the signature file again; one of an old client must be signed anew",
    ),
    "keyless-unchecked": (
        ExitCode.INTEGRITY,
        "don't use the capsule: no valid signature file looks like this one",
    ),
    "keyless-unproved": (
        ExitCode.INTEGRITY,
        "don't use the capsule; sign it again, with the Sigstore instance that the policy pins",
    ),
    "sigstore-unavailable": (
        ExitCode.TRANSFER_INCOMPLETE,
        "look at the named service, then run the same command again",
    ),
    "timestamp-missing": (
        ExitCode.INTEGRITY,
        "name a time-stamp authority in the trust configuration, or sign again when it answers",
    ),
    "token-missing": (
        ExitCode.USAGE,
        "let the CI job ask for one: `id-token: write` or `id_tokens`; or give --identity-token",
    ),
    "token-refused": (
        ExitCode.DENIED,
        "get a fresh identity token with the audience sigstore",
    ),
    "trust-config-malformed": (
        ExitCode.USAGE,
        "give the Sigstore instance's client trust configuration, as its operator hands it out",
    ),
    "trust-config-missing": (ExitCode.USAGE, "name the file with --trust-config"),
    "trusted-root-malformed": (
        ExitCode.INTEGRITY,
        "get the trusted root again, from where the trust policy came from",
    ),
    "trusted-root-missing": (ExitCode.USAGE, "name the file with --trusted-root"),
}

# --- Nix ---------------------------------------------------------------------------------------
_NIX: dict[str, tuple[ExitCode, str]] = {
    "nar-malformed": (
        ExitCode.INTEGRITY,
        "don't use the archive; let Nix build or fetch the store path again",
    ),
    "narinfo-malformed": (
        ExitCode.INTEGRITY,
        "don't use the binary cache as it is; copy the closure into a new one with `nix copy`",
    ),
    "nix-cache-invalid": (
        ExitCode.USAGE,
        "write addresses of binary caches into CAPSULE_NIX_CACHES, separated by spaces",
    ),
    "nix-closure-open": (
        ExitCode.INTEGRITY,
        "copy the whole closure into the binary cache, not single paths of it; then lock again",
    ),
    "nix-component-invalid": (
        ExitCode.USAGE,
        "correct what the flake says of the component; docs/reference/nix.md has the interface",
    ),
    "nix-failed": (ExitCode.USAGE, "see what Nix says, correct the flake, and lock again"),
    "nix-flake-unpinned": (
        ExitCode.USAGE,
        "commit the flake, or name it by a reference that has a revision",
    ),
    "nix-link-outside": (
        ExitCode.USAGE,
        "patch the package so that its links stay in the store; a capsule carries nothing else",
    ),
    "nix-missing": (
        ExitCode.USAGE,
        "install Nix 2.8 or newer and lock, or take release.lock from a machine that has it",
    ),
    "nix-nar-mismatch": (
        ExitCode.INTEGRITY,
        "don't use the binary cache; if another content is meant, lock again where Nix is",
    ),
    "nix-path-unavailable": (
        ExitCode.TRANSFER_INCOMPLETE,
        "name a binary cache that has the path in CAPSULE_NIX_CACHES, or lock where Nix is",
    ),
    "nix-signature-invalid": (
        ExitCode.INTEGRITY,
        "don't use the binary cache; ask who signs it what has changed",
    ),
    "nix-signature-missing": (
        ExitCode.INTEGRITY,
        "sign the closure with a key that release.toml pins, or pin the key that signed it",
    ),
}

ROWS: Final[Mapping[str, tuple[ExitCode, str]]] = MappingProxyType(
    _CANONICAL
    | _ENVELOPE
    | _TRUST
    | _RECORDS
    | _FORMATS
    | _INPUTS
    | _BUILDER
    | _STAGE
    | _INSTALL
    | _CONTROLLER
    | _SSH
    | _LANE
    | _ROLLOUT
    | _LEDGER
    | _KEYLESS
    | _POLICY
    | _CONTENT
    | _NIX
)
