"""Read each document and check each signature once: the same few bytes are read a million times.

Only for `run.py`; the tests don't use this. Every reader here is pure, from bytes to a value that
nobody changes, so that remembering what it returned changes nothing but the time; what it refuses
is not remembered. A signature of the same bytes is the same again, as from a deterministic signer:
otherwise no two ways to one state would look alike.
"""

import sys
from functools import lru_cache
from typing import Final

from capsule_installer.host.host import identity
from capsule_manifest import envelope, orders, policy, records, release, route, tree
from capsule_manifest.keys import PublicKey
from support.signing import FixedSigner

__all__ = ["remember_pure_functions"]

_ENTRIES_MAX: Final = 50_000
_READERS: Final = (
    identity._parse,
    envelope.decode_bundle,
    envelope.decode_record,
    orders.decode_confirm,
    orders.decode_order,
    policy.decode_policy,
    records.decode_marker,
    records.decode_outcome,
    records.decode_proof,
    records.decode_receipt,
    release.decode_release,
    route.decode_route,
    tree.decode_tree,
)


def remember_pure_functions() -> None:
    """Replace the readers by remembering ones, wherever a loaded module has them under a name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("capsule_")]
    for reader in _READERS:
        remembering = lru_cache(_ENTRIES_MAX)(reader)
        for module in modules:
            for name, value in list(vars(module).items()):
                if value is reader:
                    setattr(module, name, remembering)
    for kind, name in ((PublicKey, "verify"), (identity.NodeSigner, "sign"), (FixedSigner, "sign")):
        setattr(kind, name, lru_cache(_ENTRIES_MAX)(getattr(kind, name)))
