"""The next version of a policy: one value changed on purpose, everything else kept.

Retiring a signer ends its window: releases of its time stay good. Revoking ends all of them. A
floor only rises; going back is allowed for one named capsule, with a reason that receipts repeat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from capsule_manifest.digest import CapsuleId, parse_sha256
from capsule_manifest.errors import Refused
from capsule_manifest.keys import KeyId, PublicKey, b64decode
from capsule_manifest.policy import (
    Authority,
    AuthorityRule,
    Downgrade,
    Identity,
    Policy,
    PolicyKey,
    check_policy,
)

__all__ = ["Revision", "revise"]

_KEYID_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What shall change. Signers are named as `capsule trust show` names them.

    `retire` maps a key's eight digits or an identity's name to the last counter that it covers.
    `revoke_keys` may also have whole key ids: controllers' keys are in routes and not in a policy.
    """

    add_keys: Sequence[tuple[Authority, str, PublicKey]] = ()
    add_identities: Mapping[str, Identity] = field(default_factory=dict)
    retire: Mapping[str, int] = field(default_factory=dict)
    revoke_keys: Sequence[str] = ()
    remove_keys: Sequence[str] = ()
    revoke_capsules: Sequence[str] = ()
    revoke_certificates: Sequence[str] = ()
    allow: Mapping[str, str] = field(default_factory=dict)
    thresholds: Mapping[Authority, int] = field(default_factory=dict)
    floor: int | None = None
    trusted_root: str | None = None
    max_age_s: int | None = None


def revise(policy: Policy, revision: Revision, *, issued_s: int) -> Policy:
    """Return the next version of `policy`. The lowest counter of a new key is the floor.

    Raises:
        Refused: `key-unknown` for a signer that is not listed, `policy-floor-lowered`,
            `policy-invalid`, `digest-malformed`.
    """
    floor = policy.release_counter_floor if revision.floor is None else revision.floor
    if floor < policy.release_counter_floor:
        raise Refused(
            "policy-floor-lowered", "a floor only rises",
            expected=f"{policy.release_counter_floor} or higher", got=floor,
        )  # fmt: skip
    keys = dict(policy.keys)
    identities = dict(policy.identities)
    for name, last in revision.retire.items():
        if name in identities:
            identities[name] = replace(identities[name], counter_to=last)
        else:
            keyid = _find(policy, name)
            keys[keyid] = replace(keys[keyid], counter_to=last)
    rules = {
        authority: _rule(policy, revision, authority, keys)
        for authority in (Authority.RELEASE, Authority.ROUTE, Authority.TRUST)
    }
    for name in revision.remove_keys:
        keys.pop(_find(policy, name), None)
    revised = replace(
        policy,
        version=policy.version + 1,
        keys=keys,
        identities={**identities, **revision.add_identities},
        release=rules[Authority.RELEASE],
        route=rules[Authority.ROUTE],
        trust=rules[Authority.TRUST],
        release_counter_floor=floor,
        revoked_keys=policy.revoked_keys
        | {_revoked(policy, name) for name in revision.revoke_keys},
        revoked_capsules=policy.revoked_capsules | set(map(_capsule, revision.revoke_capsules)),
        revoked_certificates=policy.revoked_certificates
        | {parse_sha256(text, "certificate") for text in revision.revoke_certificates},
        downgrades=(*policy.downgrades, *_allowed(revision.allow)),
        trusted_root=revision.trusted_root or policy.trusted_root,
        issued_s=issued_s,
        max_age_s=policy.max_age_s if revision.max_age_s is None else revision.max_age_s,
    )
    check_policy(revised, f"policy version {revised.version}")
    return revised


def _rule(
    policy: Policy, revision: Revision, authority: Authority, keys: dict[KeyId, PolicyKey]
) -> AuthorityRule:
    rule = policy.rule(authority)
    held = list(rule.keys)
    for wanted, owner, key in revision.add_keys:
        if wanted is authority:
            keys[key.keyid] = PolicyKey(
                key=key, owner=owner, counter_from=policy.release_counter_floor, counter_to=None
            )
            held.append(key.keyid)
    removed = {_find(policy, name) for name in revision.remove_keys}
    identities = list(rule.identities)
    if authority is Authority.RELEASE:
        identities += revision.add_identities
    return AuthorityRule(
        keys=tuple(sorted({*held} - removed)),
        identities=tuple(sorted(identities)),
        threshold=revision.thresholds.get(authority, rule.threshold),
    )


def _find(policy: Policy, name: str) -> KeyId:
    for keyid, item in policy.keys.items():
        if name in {keyid, item.key.short}:
            return keyid
    raise Refused(
        "key-unknown",
        "the policy names no such key",
        expected=", ".join(sorted(item.key.short for item in policy.keys.values())),
        got=name,
    )


def _revoked(policy: Policy, name: str) -> KeyId:
    """Return a key's id; one that the policy doesn't list must be given whole."""
    try:
        return _find(policy, name)
    except Refused:
        try:
            is_whole = len(b64decode(name, "key")) == _KEYID_BYTES
        except Refused:
            is_whole = False
        if not is_whole:
            raise
        return KeyId(name)


def _capsule(text: str) -> CapsuleId:
    return CapsuleId(parse_sha256(text, "capsule"))


def _allowed(allow: Mapping[str, str]) -> list[Downgrade]:
    return [Downgrade(capsule=_capsule(text), reason=reason) for text, reason in allow.items()]
