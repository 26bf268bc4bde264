"""What every ledger says when it refuses: one text, whichever database is behind it."""

from capsule_manifest.errors import Refused

__all__ = ["epoch_unfinished", "fence_stale", "lease_busy", "ledger_conflict", "permit_taken"]


def lease_busy(scope: str, holder: str, *, left_ms: int) -> Refused:
    """Return the refusal of a lease that another holder has for so long, unless it renews it."""
    return Refused(
        "lease-busy",
        "another controller is at work",
        expected="a free lease",
        got=f"holder {holder}, for {-(-left_ms // 1000)} s more unless renewed",
        where=scope,
    )


def fence_stale(scope: str, *, newest: int, own: int) -> Refused:
    """Return the refusal of a write under a fence that is not the newest."""
    return Refused(
        "fence-stale",
        "a newer controller has taken over",
        expected=f"fence {newest}",
        got=f"fence {own}",
        where=scope,
    )


def ledger_conflict(stream: str, *, expected_seq: int, length: int) -> Refused:
    """Return the refusal of an append that was decided on an older state of the stream."""
    return Refused(
        "ledger-conflict",
        "the stream has moved on",
        expected=f"{expected_seq} events",
        got=f"{length} events",
        where=stream,
    )


def epoch_unfinished(node: str, stream: str) -> Refused:
    """Return the refusal of a node that another epoch still has."""
    return Refused(
        "epoch-unfinished",
        "a node belongs to an unfinished epoch",
        got=f"epoch {stream}",
        where=node,
    )


def permit_taken(node: str, stream: str) -> Refused:
    """Return the refusal of a second permit for one node."""
    return Refused(
        "permit-taken", "a node's permit is out already", got=f"epoch {stream}", where=node
    )
