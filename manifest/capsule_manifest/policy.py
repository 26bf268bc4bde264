"""The trust policy: which keys speak for whom, and what is too old or revoked.

One document for every verb that decides about trust. Four authorities are apart: `release` signs
capsules, `route` signs routes, `order` signs orders and confirms and is named by the route, `trust`
signs the next policy. A key serves one authority only, so that a CI key can't stop a fleet.

Beside keys, the release authority may be held by keyless *identities*: an exact certificate name
from an exact issuer. Keys and identities have owners, and thresholds count owners.

Windows count in release counters, not in time: a host needs no clock to decide. Retiring a key ends
its window and leaves its older releases good; revoking it ends all of them.

Source: design, section 10; `docs/reference/policy.md`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.digest import CapsuleId, parse_sha256
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object, root_object
from capsule_manifest.keys import KeyId, PublicKey, b64decode, b64encode, public_key
from capsule_manifest.release import PRODUCT

__all__ = [
    "CLAIMS",
    "POLICY_TYPE",
    "Authority",
    "AuthorityRule",
    "Downgrade",
    "Identity",
    "Policy",
    "PolicyKey",
    "check_policy",
    "decode_policy",
    "encode_policy",
]

POLICY_SCHEMA: Final = "capsule-trust/1"
POLICY_TYPE: Final = "application/vnd.capsule.policy.v1+json"
CLAIMS: Final = frozenset({"repository_id", "repository_owner_id", "runner"})
"""The numbers of a repository and its owner, which outlive a change of their names; the runner."""
NAMED_BY_POLICY: Final = ("release", "route", "trust")
_LAST_S: Final = 253_402_300_799  # the last second that a calendar of four digits has
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
class Identity:
    """A keyless signer: the exact `san` of a certificate whose exact issuer is `issuer`.

    `counter_from` and `counter_to` are as for a key. `claims` are further words of the issuer that
    must be these, by a name of `CLAIMS`. Nothing here is a pattern: an unanchored expression lets
    strangers in.
    """

    owner: str
    san: str
    issuer: str
    counter_from: int
    counter_to: int | None
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """A signed exception: this one capsule may be installed below every floor, for `reason`."""

    capsule: CapsuleId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRule:
    """Which keys and identities hold one authority and how many *owners* must have signed.

    `identities` are names of the policy's identities; only the release authority has any.
    """

    keys: tuple[KeyId, ...]
    threshold: int
    identities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A whole trust policy. `order` has no rule: a route names the controllers.

    `issued_s` and `max_age_s` are seconds, the first since 1970. They tell people that trust is
    stale; no install depends on them. `trusted_root` is the digest of the Sigstore root file that
    keyless signatures are checked with. `revoked_certificates` are digests of DER certificates.
    """

    product: str
    version: int
    keys: Mapping[KeyId, PolicyKey]
    release: AuthorityRule
    route: AuthorityRule
    trust: AuthorityRule
    release_counter_floor: int
    revoked_capsules: frozenset[CapsuleId]
    revoked_keys: frozenset[KeyId]
    revoked_certificates: frozenset[str] = frozenset()
    identities: Mapping[str, Identity] = field(default_factory=dict)
    trusted_root: str | None = None
    downgrades: tuple[Downgrade, ...] = ()
    issued_s: int = 0
    max_age_s: int | None = None

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
        for authority in map(Authority, NAMED_BY_POLICY):
            if keyid in self.rule(authority).keys:
                return authority
        return None

    def owners_of(self, authority: Authority) -> frozenset[str]:
        """Return the owners of an authority's keys and identities.

        Revoked ones too: in an emergency a policy must be able to revoke the last key.
        """
        rule = self.rule(authority)
        keys = {self.keys[keyid].owner for keyid in rule.keys}
        return frozenset(keys | {self.identities[name].owner for name in rule.identities})

    def downgrade(self, capsule: CapsuleId) -> Downgrade | None:
        """Return the exception that lets a capsule be installed below the floor, if any."""
        return next((item for item in self.downgrades if item.capsule == capsule), None)

    def stale_s(self, now_s: int) -> int | None:
        """Return by how many seconds this policy is too old at `now_s`; None when it is not.

        For people and for trust updates only: installs don't ask.
        """
        if self.max_age_s is None:
            return None
        over = now_s - self.issued_s - self.max_age_s
        return over if over > 0 else None


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
            "revoked_certificates": sorted(policy.revoked_certificates),
            "identities": {
                name: {
                    "owner": item.owner,
                    "san": item.san,
                    "issuer": item.issuer,
                    "counter_from": item.counter_from,
                    "counter_to": item.counter_to,
                    "claims": dict(item.claims),
                }
                for name, item in policy.identities.items()
            },
            "trusted_root": policy.trusted_root,
            "downgrades": [
                {"capsule": item.capsule, "reason": item.reason} for item in policy.downgrades
            ],
            "issued_s": policy.issued_s,
            "max_age_s": policy.max_age_s,
        }
    )


def decode_policy(raw: bytes, *, where: str = "trust policy") -> Policy:
    """Read a policy strictly and check that it can decide at all.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`, `key-malformed`,
            `policy-invalid` for a threshold that can't be met, a key with two authorities, or a
            list that is not in its one order.
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
        revoked_capsules=frozenset(map(CapsuleId, _digests(document, "revoked_capsules"))),
        revoked_keys=frozenset(KeyId(text) for text in document.texts("revoked_keys")),
        revoked_certificates=frozenset(_digests(document, "revoked_certificates")),
        identities=document.named("identities", _read_identity),
        trusted_root=document.optional_sha256("trusted_root"),
        downgrades=document.items("downgrades", _read_downgrade),
        issued_s=document.integer("issued_s", most=_LAST_S),
        max_age_s=document.optional_integer("max_age_s", least=1),
    )
    document.end()
    if len(policy.keys) != len(keys):
        raise Refused("policy-invalid", "a key is listed twice", where=where)
    check_policy(policy, where)
    if encode_policy(policy) != raw:
        # Policies are compared by their digests, so each has one spelling.
        raise Refused(
            "policy-invalid", "a list is out of order or names a thing twice", where=where
        )
    return policy


def check_policy(policy: Policy, where: str) -> None:
    """Check that every authority can be met by the keys and identities that it names.

    Raises:
        Refused: `policy-invalid`.
    """
    for problem, expected, got in _problems(policy):
        raise Refused("policy-invalid", problem, expected=expected, got=got, where=where)


def _problems(policy: Policy) -> Iterator[tuple[str, object, object]]:
    seen: dict[KeyId, Authority] = {}
    for authority in map(Authority, NAMED_BY_POLICY):
        rule = policy.rule(authority)
        unknown: list[str] = [keyid for keyid in rule.keys if keyid not in policy.keys]
        unknown += [name for name in rule.identities if name not in policy.identities]
        if unknown:
            yield f"the {authority} authority names signers that are not listed", "", unknown
            return
        if rule.identities and authority is not Authority.RELEASE:
            yield f"the {authority} authority names identities", "keys only", rule.identities
        owners = policy.owners_of(authority)
        if not 1 <= rule.threshold <= len(owners):
            yield (
                f"the {authority} threshold can't be met",
                f"from 1 to {len(owners)}, the number of its owners",
                rule.threshold,
            )
        for keyid in rule.keys:
            if keyid in seen:
                yield (
                    "a key holds two authorities",
                    "one authority a key, named once",
                    f"{seen[keyid]} and {authority}",
                )
            seen[keyid] = authority
    # A route travels under one signature, so a higher number could never be met by any.
    if policy.route.threshold != 1:
        yield "the route threshold is not 1", 1, policy.route.threshold
    for keyid in (*policy.route.keys, *policy.trust.keys):
        # Nothing compares what they sign with a release, so it would end nothing.
        if policy.keys[keyid].counter_to is not None:
            yield (
                "a key that signs no releases has a last release",
                "null; remove or revoke the key to end it",
                policy.keys[keyid].counter_to,
            )
    signers: list[tuple[str, PolicyKey | Identity]] = [
        *policy.keys.items(),
        *policy.identities.items(),
    ]
    for name, item in signers:
        if item.counter_to is not None and item.counter_to < item.counter_from:
            yield "a window ends before it begins", f"{item.counter_from} or more", name
    if len({(item.issuer, item.san) for item in policy.identities.values()}) != len(
        policy.identities
    ):
        yield "an identity is listed twice", "each issuer and name once", sorted(policy.identities)
    unknown_claims = {name for item in policy.identities.values() for name in item.claims} - CLAIMS
    if unknown_claims:
        yield "an identity names an unknown claim", sorted(CLAIMS), sorted(unknown_claims)
    if policy.identities and policy.trusted_root is None:
        yield "keyless identities without a trusted root", "trusted_root", "null"
    allowed = [item.capsule for item in policy.downgrades]
    if len(set(allowed)) != len(allowed) or policy.revoked_capsules & set(allowed):
        yield "a downgrade is listed twice or is of a revoked capsule", "", allowed


def _rule(rule: AuthorityRule) -> JsonValue:
    return {
        "keys": sorted(rule.keys),
        "identities": sorted(rule.identities),
        "threshold": rule.threshold,
    }


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
        identities=item.texts("identities"),
        threshold=item.integer("threshold", least=1),
    )
    item.end()
    return rule


def _read_identity(item: Object) -> Identity:
    identity = Identity(
        owner=item.text("owner"),
        san=item.text("san"),
        issuer=item.text("issuer"),
        counter_from=item.integer("counter_from"),
        counter_to=item.optional_integer("counter_to"),
        claims=item.text_map("claims"),
    )
    item.end()
    return identity


def _read_downgrade(item: Object) -> Downgrade:
    downgrade = Downgrade(capsule=CapsuleId(item.sha256("capsule")), reason=item.text("reason"))
    item.end()
    return downgrade


def _digests(document: Object, name: str) -> list[str]:
    return [parse_sha256(text, f"{document.where}.{name}") for text in document.texts(name)]
