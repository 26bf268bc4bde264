"""Errors of trust: who may sign what, keyless signers, updates of a policy."""

from typing import Final

from capsule_manifest.exit_codes import ExitCode

__all__ = ["ROWS"]

ROWS: Final[dict[str, tuple[ExitCode, str]]] = {
    # --- authorities and keys ---
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
    "guard-policy-denied": (
        ExitCode.GUARD_NOT_ARMED,
        "order with the policy `fail`, or have the route waive guard-policy for this node",
    ),
    # --- policies, owners, updates ---
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
    # --- keyless signatures ---
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
