"""The trust policy: which keys speak for whom, and what is too old or revoked.

One document for every verb that decides about trust. Four authorities are apart: `release` signs
capsules, `route` signs routes, `order` signs orders and confirms and is named by the route, `trust`
signs the next policy. A key serves one authority only, so that a CI key can't stop a fleet.

Windows of keys count in release counters, not in time: a host needs no clock to decide.

Source: design, section 10; `docs/reference/trust-policy.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.digest import CapsuleId
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object, root_object
from capsule_manifest.keys import KeyId, PublicKey, b64decode, b64encode, public_key
from capsule_manifest.release import PRODUCT

__all__ = [
    "Authority",
    "AuthorityRule",
    "Policy",
    "PolicyKey",
    "decode_policy",
    "encode_policy",
]

POLICY_SCHEMA: Final = "capsule-trust/1"
_LIMITS = Limits(size_bytes_max=1024 * 1024, depth_max=6, values_max=65536)


class Authority(StrEnum):
    """What a key may sign. Source: design, section 10."""

    RELEASE = "release"
    ROUTE = "route"
    ORDER = "order"
    TRUST = "trust"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyKey:
    """A key and its owner. Valid for releases `counter_from` to `counter_to`, both included."""

    key: PublicKey
    owner: str
    counter_from: int
    counter_to: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRule:
    """Which keys hold one authority and how many *owners* must have signed."""

    keys: tuple[KeyId, ...]
    threshold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A whole trust policy. `order` has no rule: a route names the controllers."""

    product: str
    version: int
    keys: Mapping[KeyId, PolicyKey]
    release: AuthorityRule
    route: AuthorityRule
    trust: AuthorityRule
    release_counter_floor: int
    revoked_capsules: frozenset[CapsuleId]
    revoked_keys: frozenset[KeyId]

    def rule(self, authority: Authority) -> AuthorityRule:
        """Return the rule of an authority that the policy itself names."""
        rules = {
            Authority.RELEASE: self.release,
            Authority.ROUTE: self.route,
            Authority.TRUST: self.trust,
        }
        return rules[authority]

    def authority_of(self, keyid: KeyId) -> Authority | None:
        """Return the one authority that a key holds by this policy, if any."""
        for authority in (Authority.RELEASE, Authority.ROUTE, Authority.TRUST):
            if keyid in self.rule(authority).keys:
                return authority
        return None


def encode_policy(policy: Policy) -> bytes:
    """Return the canonical bytes of a policy; their SHA-256 is what a route names."""
    return encode(
        {
            "schema": POLICY_SCHEMA,
            "product": policy.product,
            "version": policy.version,
            "keys": [
                {
                    "keyid": item.key.keyid,
                    "spki": b64encode(item.key.spki),
                    "owner": item.owner,
                    "counter_from": item.counter_from,
                    "counter_to": item.counter_to,
                }
                for _, item in sorted(policy.keys.items())
            ],
            "release": _rule(policy.release),
            "route": _rule(policy.route),
            "trust": _rule(policy.trust),
            "release_counter_floor": policy.release_counter_floor,
            "revoked_capsules": sorted(policy.revoked_capsules),
            "revoked_keys": sorted(policy.revoked_keys),
        }
    )


def decode_policy(raw: bytes, *, where: str = "trust policy") -> Policy:
    """Read a policy strictly and check that it can decide at all.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`, `key-malformed`,
            `policy-invalid` for a threshold that can't be met or a key with two authorities.
    """
    document = root_object(
        decode(raw, limits=_LIMITS, where=where), schema=POLICY_SCHEMA, name=where
    )
    keys = document.items("keys", _read_key)
    policy = Policy(
        product=document.matching("product", PRODUCT),
        version=document.integer("version", least=1),
        keys={item.key.keyid: item for item in keys},
        release=_read_rule(document.nested("release")),
        route=_read_rule(document.nested("route")),
        trust=_read_rule(document.nested("trust")),
        release_counter_floor=document.integer("release_counter_floor"),
        revoked_capsules=frozenset(CapsuleId(text) for text in document.texts("revoked_capsules")),
        revoked_keys=frozenset(KeyId(text) for text in document.texts("revoked_keys")),
    )
    document.end()
    if len(policy.keys) != len(keys):
        raise Refused("policy-invalid", "a key is listed twice", where=where)
    check_policy(policy, where)
    return policy


def check_policy(policy: Policy, where: str) -> None:
    """Check that every authority can be met by the keys that it names.

    Raises:
        Refused: `policy-invalid`.
    """
    seen: dict[KeyId, Authority] = {}
    for authority in (Authority.RELEASE, Authority.ROUTE, Authority.TRUST):
        rule = policy.rule(authority)
        unknown = [keyid for keyid in rule.keys if keyid not in policy.keys]
        if unknown:
            raise Refused(
                "policy-invalid",
                f"the {authority} authority names keys that are not listed",
                got=unknown,
                where=where,
            )
        owners = {policy.keys[keyid].owner for keyid in rule.keys}
        if not 1 <= rule.threshold <= len(owners):
            raise Refused(
                "policy-invalid",
                f"the {authority} threshold can't be met",
                expected=f"from 1 to {len(owners)}, the number of its owners",
                got=rule.threshold,
                where=where,
            )
        for keyid in rule.keys:
            if keyid in seen:
                raise Refused(
                    "policy-invalid",
                    "a key holds two authorities",
                    expected="one authority a key",
                    got=f"{seen[keyid]} and {authority}",
                    where=where,
                )
            seen[keyid] = authority


def _rule(rule: AuthorityRule) -> JsonValue:
    return {"keys": sorted(rule.keys), "threshold": rule.threshold}


def _read_key(item: Object) -> PolicyKey:
    key = public_key(b64decode(item.text("spki"), item.where), item.where)
    if item.text("keyid") != key.keyid:
        raise Refused("key-malformed", "a key id is not the digest of its key", where=item.where)
    read = PolicyKey(
        key=key,
        owner=item.text("owner"),
        counter_from=item.integer("counter_from"),
        counter_to=item.optional_integer("counter_to"),
    )
    item.end()
    return read


def _read_rule(item: Object) -> AuthorityRule:
    rule = AuthorityRule(
        keys=tuple(KeyId(text) for text in item.texts("keys")),
        threshold=item.integer("threshold", least=1),
    )
    item.end()
    return rule
