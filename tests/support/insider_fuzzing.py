"""Damage that the right key signed, and what foreign code reads: deeper than a broken signature.

Damage to a signed document is nearly always found by its signature, so what reads the document
behind it is hardly ever met. Here the document is damaged first and signed after, as by an owner
whose own tools are broken or who was bought.
"""

import importlib.util
import json
import random
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType

from securesystemslib.exceptions import FormatError
from securesystemslib.formats import encode_canonical

from capsule.bootstrap import add_bootstrap
from capsule.keyless.trusted_root import PinnedRoot
from capsule.keyless.verifier import SigstoreVerifier
from capsule.payload import open_payload
from capsule.trust.medium import Medium
from capsule.trust.tuf_keys import tuf_key
from capsule_manifest.envelope import IN_TOTO, Envelope, encode_bundle, sign
from capsule_manifest.errors import Refused
from capsule_manifest.orders import CONFIRM_TYPE, ORDER_TYPE, encode_confirm, encode_order
from capsule_manifest.policy import POLICY_TYPE, Identity, encode_policy
from capsule_manifest.policy_update import next_policy
from capsule_manifest.release import capsule_id, encode_release
from capsule_manifest.route import ROUTE_TYPE, encode_route
from capsule_manifest.statements import ReleaseClaim, release_statement
from capsule_manifest.trust import verify_release
from capsule_manifest.trust_orders import VerifiedRoute, verify_confirm, verify_order, verify_route
from support import documents
from support.capsules import write_capsule
from support.mutation import mutate_bytes, mutate_json
from support.signing import FixedSigner
from support.sigstore_instance import ISSUER, SUBJECT
from support.sources import ROOT
from support.trust_media import ALICE, BOB, pinned, policy, write

__all__ = ["insider_targets"]

Target = Callable[[random.Random], object]
_KEYLESS = ROOT / "tests" / "golden" / "keyless"
_MANIFEST = encode_release(documents.make_release())


def insider_targets(now: datetime) -> dict[str, Target]:
    """Return targets by name. `now` is this machine's time: media must be fresh by it."""
    ours = documents.make_policy()
    route = VerifiedRoute(route=documents.make_route(), digest=documents.make_order().route)
    taken: dict[str, tuple[bytes, str, FixedSigner, Callable[[Envelope], object]]] = {
        "signed policy": (
            encode_policy(replace(ours, version=2)),
            POLICY_TYPE,
            documents.TRUST_KEY,
            lambda record: next_policy(ours, [record], where="update"),
        ),
        "signed route": (
            encode_route(documents.make_route()),
            ROUTE_TYPE,
            documents.ROUTE_KEY,
            lambda record: verify_route(ours, record),
        ),
        "signed order": (
            encode_order(documents.make_order()),
            ORDER_TYPE,
            documents.CONTROLLER_KEY,
            lambda record: verify_order(ours, route, record),
        ),
        "signed confirm": (
            encode_confirm(documents.make_confirm()),
            CONFIRM_TYPE,
            documents.CONTROLLER_KEY,
            lambda record: verify_confirm(ours, route, record),
        ),
    }
    return {
        **{name: _signed(*parts) for name, parts in taken.items()},
        "signed statement": _statement,
        "signed metadata": lambda rng: _metadata(rng, now),
        "keyless bundle": _keyless(),
        "bootstrap": _Bare().case,
    }


def _signed(
    payload: bytes, kind: str, signer: FixedSigner, take: Callable[[Envelope], object]
) -> Target:
    """Return a target that damages `payload`, signs that and has it taken: valid or refused."""
    assert take(sign(payload, payload_type=kind, signer=signer)), "the sample itself is refused"

    def run(rng: random.Random) -> None:
        take(sign(mutate_json(rng, payload), payload_type=kind, signer=signer))

    return run


def _statement(rng: random.Random) -> None:
    release = documents.make_release()
    claim = ReleaseClaim(
        capsule=capsule_id(_MANIFEST), product=release.product, version=release.version,
        release_counter=release.release_counter,
    )  # fmt: skip
    statement = mutate_json(rng, release_statement(claim))
    bundle = encode_bundle(sign(statement, payload_type=IN_TOTO, signer=documents.RELEASE_KEY))
    verified = verify_release(
        documents.make_policy(), _MANIFEST, {"release-a": bundle}, counter_floor=0
    )
    assert verified.capsule == claim.capsule, "a statement about something else was counted"


def _metadata(rng: random.Random, now: datetime) -> None:
    """Damage what both trust owners sign; whatever the metadata say, the policy is signed, too."""
    with tempfile.TemporaryDirectory(prefix="capsule-fuzz-") as name:
        folder = Path(name)
        trust = pinned(folder / "trust", policy(1))
        write(folder / "medium", policy(2), now=now)
        victim = rng.choice(sorted((folder / "medium" / "metadata").iterdir()))
        document = json.loads(victim.read_bytes())
        raw = mutate_json(rng, json.dumps(document["signed"]).encode())
        try:
            document["signed"] = json.loads(raw)
            message = (encode_canonical(document["signed"]) or "").encode()
        except (ValueError, RecursionError, FormatError):
            victim.write_bytes(raw)  # what nobody can sign is still something to read
        else:
            document["signatures"] = [
                {"keyid": tuf_key(owner.public).keyid, "sig": owner.sign(message).hex()}
                for owner in (ALICE, BOB)
            ]
            victim.write_text(json.dumps(document))
        taken = trust.update(Medium(folder / "medium"), now=now)
        assert taken.policy == policy(2), "metadata changed what is trusted"


def _keyless() -> Target:
    """Return proofs of a recorded instance's bundles, under its root, each of them damaged."""
    root = (_KEYLESS / "trusted_root.json").read_bytes()
    bundles = [(_KEYLESS / f"rekor{n}.sigstore.json").read_bytes() for n in (1, 2)]
    who = {"ci": Identity(owner="ci", san=SUBJECT, issuer=ISSUER, counter_from=1, counter_to=None)}
    payload = SigstoreVerifier(PinnedRoot(root, where="root")).verify(
        bundles[0], who, where="bundle"
    ).payload  # fmt: skip

    def run(rng: random.Random) -> None:
        raw, pinned_root = rng.choice(bundles), root
        mutate = rng.choice((mutate_json, mutate_json, mutate_bytes))
        if rng.random() < 0.3:
            pinned_root = mutate(rng, root)
        else:
            raw = mutate(rng, raw)
        verifier = SigstoreVerifier(PinnedRoot(pinned_root, where="root"))
        proved = verifier.verify(raw, who, where="bundle")
        assert proved.payload == payload, "something else was proved"

    return run


class _Bare:
    """The program for bare hosts, on a capsule of which one document is damaged."""

    def __init__(self) -> None:
        root = Path(tempfile.mkdtemp(prefix="capsule-fuzz-"))
        weakref.finalize(self, shutil.rmtree, root)
        self._root = root
        self._capsule = write_capsule(root / "web.capsule", counter=7).folder
        payload = open_payload(self._capsule, documents.make_policy())
        add_bootstrap(self._capsule, payload, documents.RELEASE_KEY)
        self._policy = root / "trust.json"
        self._policy.write_bytes(encode_policy(documents.make_policy()))
        self._program = _module(ROOT / "capsule" / "capsule" / "bootstrap_host.py")
        self._genuine = self._verify()

    def case(self, rng: random.Random) -> None:
        names = ("capsule.json", "bootstrap/index.json", "signatures/release-*", "signatures/boot*")
        (victim,) = rng.choice(
            [[self._policy], *(list(self._capsule.glob(name)) for name in names)]
        )
        good = victim.read_bytes()
        try:
            victim.write_bytes(rng.choice((mutate_json, mutate_bytes))(rng, good))
            found = self._verify()
        finally:
            victim.write_bytes(good)
        assert found == self._genuine, "another program would have been unpacked"

    def _verify(self) -> Mapping[str, object]:
        program = self._program
        try:
            found = program.verify(str(self._capsule), str(self._policy), str(self._root), None)
        except program.Refuse as refusal:
            raise Refused(refusal.error_id, program.clean(refusal.what)) from None
        except (OSError, subprocess.SubprocessError, *program.MALFORMED) as error:
            raise Refused("document-invalid", program.clean(str(error))) from None
        assert isinstance(found, dict)
        return found


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bare", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
