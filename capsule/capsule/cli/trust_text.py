"""How trust is told to people and taken from their words."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from capsule.durable import read_bounded
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Failed
from capsule_manifest.policy import Identity, Policy

__all__ = [
    "DAY_S",
    "age_text",
    "digest_of_root",
    "named_identities",
    "read_root",
    "signer_rows",
    "time_text",
]

DAY_S: Final = 86_400
_ROOT_BYTES_MAX: Final = 4 * 1024 * 1024


def signer_rows(policy: Policy) -> list[dict[str, str]]:
    """Return one row a key and one an identity, for a table and for programs."""
    rows = [
        {
            "key": item.key.short,
            "owner": item.owner,
            "authority": str(policy.authority_of(keyid) or "none"),
            "counters": _counters(item.counter_from, item.counter_to),
            "state": _state(
                item.counter_to,
                policy.release_counter_floor,
                is_revoked=keyid in policy.revoked_keys,
            ),
        }
        for keyid, item in policy.keys.items()
    ]
    rows += [
        {
            "key": name,
            "owner": item.owner,
            "authority": "release" if name in policy.release.identities else "none",
            "counters": _counters(item.counter_from, item.counter_to),
            "state": _state(item.counter_to, policy.release_counter_floor, is_revoked=False),
            "issuer": item.issuer,
            "san": item.san,
        }
        for name, item in policy.identities.items()
    ]
    return rows


def age_text(policy: Policy, now: datetime) -> str:
    """Return when a policy was issued, how old it is, and whether that is too old."""
    if not policy.issued_s:
        return "not dated"
    days = int(now.timestamp() - policy.issued_s) // DAY_S
    over_s = policy.stale_s(int(now.timestamp()))
    stale = "" if over_s is None else f"; STALE since {over_s // DAY_S} days"
    return f"{time_text(policy.issued_s)}, {days} days ago{stale}"


def time_text(seconds: int) -> str:
    """Return a moment as a person reads it, in UTC."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def named_identities(
    given: Iterable[tuple[str, str, str]],
    claims: Iterable[tuple[str, str, str]],
    *,
    counter_from: int,
) -> dict[str, Identity]:
    """Return identities by name, which is the owner's, numbered from his second one on.

    `claims` are owner, claim and value; they hold for every identity of the owner that is given.
    """
    named: dict[str, Identity] = {}
    for owner, issuer, san in given:
        count = sum(item.owner == owner for item in named.values())
        named[owner if not count else f"{owner}-{count + 1}"] = Identity(
            owner=owner,
            san=san,
            issuer=issuer,
            counter_from=counter_from,
            counter_to=None,
            claims={claim: value for whose, claim, value in claims if whose == owner},
        )
    return named


def read_root(path: Path) -> bytes:
    """Return a trusted root's bytes.

    Raises:
        Failed: `trust-medium-incomplete` when it is not there, `controller-disk`.
    """
    raw = read_bounded(path, _ROOT_BYTES_MAX)
    if raw is None:
        raise Failed("trust-medium-incomplete", "there is no trusted root", where=path)
    return raw


def digest_of_root(path: Path) -> str:
    """Return what a policy pins a trusted root by. Raises: as `read_root`."""
    return sha256_text(read_root(path))


def _counters(first: int, last: int | None) -> str:
    return f"{first} to {'any' if last is None else last}"


def _state(last: int | None, floor: int, *, is_revoked: bool) -> str:
    if is_revoked:
        return "revoked"
    if last is None:
        return "valid"
    return "spent" if last < floor else "retired"
