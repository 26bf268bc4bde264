"""Who holds trust: by a policy, and in TUF's words by a root. Both must say the same."""

from datetime import datetime
from typing import Final

from tuf.api.metadata import Root

from capsule.trust.tuf_keys import tuf_key
from capsule_manifest.policy import Policy

__all__ = ["role_set", "root_of", "trust_of"]

_TOP_LEVEL: Final = ("root", "targets", "snapshot", "timestamp")


def root_of(policy: Policy, version: int, expires: datetime) -> Root:
    """Return the root in which the policy's trust keys hold every role."""
    root = Root(version=version, expires=expires, consistent_snapshot=False)
    for keyid in policy.trust.keys:
        if keyid not in policy.revoked_keys:
            for role in _TOP_LEVEL:
                root.add_key(tuf_key(policy.keys[keyid].key), role)
    for role in ("root", "targets"):
        root.roles[role].threshold = policy.trust.threshold
    return root


def role_set(root: Root) -> dict[str, tuple[frozenset[str], int]]:
    """Return who holds each role by a root, and how many of them must sign."""
    return {
        name: (frozenset(root.roles[name].keyids), root.roles[name].threshold)
        for name in _TOP_LEVEL
    }


def trust_of(policy: Policy) -> object:
    """Return who can sign the next policy, and how many of them must."""
    holders = {
        (keyid, policy.keys[keyid].owner)
        for keyid in policy.trust.keys
        if keyid not in policy.revoked_keys
    }
    return frozenset(holders), policy.trust.threshold
