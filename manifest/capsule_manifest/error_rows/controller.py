"""Errors of the controller: its folder, the ways to hosts, rollouts, the ledger."""

from typing import Final

from capsule_manifest.exit_codes import ExitCode

__all__ = ["ROWS"]

ROWS: Final[dict[str, tuple[ExitCode, str]]] = {
    # --- inventory, work on hosts ---
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
    "host-verb-unknown": (
        ExitCode.INCOMPATIBLE,
        "run `capsule stage`: the capsule brings the program that this controller speaks to",
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
    # --- SSH ---
    "connection-lost": (
        ExitCode.TRANSFER_INCOMPLETE,
        "run the same command again: it continues, and asks for what was ordered by its op id",
    ),
    "endpoint-shared": (
        ExitCode.USAGE,
        "remove one of the two nodes from fleet.toml, or correct its address",
    ),
    "name-unknown": (
        ExitCode.TRANSFER_INCOMPLETE,
        "correct the name in fleet.toml, or write the IP address, which needs no look-up",
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
    # --- lanes ---
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
    # --- rollouts ---
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
    # --- the ledger ---
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
