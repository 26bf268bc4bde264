"""Errors of the formats: canonical JSON, envelopes, records, trees, packs."""

from typing import Final

from capsule_manifest.exit_codes import ExitCode

__all__ = ["ROWS"]

ROWS: Final[dict[str, tuple[ExitCode, str]]] = {
    # --- canonical JSON ---
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
    # --- envelopes and bundles ---
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
    # --- orders and records ---
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
    # --- paths, trees, packs, containers ---
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
