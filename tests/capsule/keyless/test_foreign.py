"""Other people's clients and other people's bundles: both sides agree, with no code of ours shared.

Source: sigstore-python's command line; sigstore-js `@sigstore/verify`; attestations as published.
"""

import base64
import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from capsule.builder.signing import sign_directory
from capsule.keyless.trusted_root import PinnedRoot
from capsule.keyless.verifier import SigstoreVerifier
from capsule_manifest.errors import Refused
from capsule_manifest.policy import Identity
from support.documents import RELEASE_KEY
from support.foreign import npm_packages, run_node
from support.keyless_world import IDENTITY, flip
from support.published import PUBLIC, STAGING, public_root_bytes, published_attestations
from support.sigstore_instance import ISSUER, SUBJECT, Fault

SIGSTORE_JS = ("@sigstore/verify@4.1.3", "@sigstore/bundle@5.0.1")


# --- the stock command line -------------------------------------
def stock(world, *arguments):
    """Run the `sigstore` command as it is, without a home; return its exit code and output."""
    command = [
        sys.executable, "-m", "sigstore", "--trust-config", str(world.folder / "trust-config.json"),
        *map(str, arguments),
    ]  # fmt: skip
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(world.folder / "home")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def stock_verify(world, bundle, *, subject=SUBJECT, issuer=ISSUER):
    return stock(
        world, "verify", "identity", "--bundle", bundle, "--cert-identity", subject,
        "--cert-oidc-issuer", issuer, world.capsule / "capsule.json",
    )  # fmt: skip


def test_the_stock_client_verifies_what_we_sign(signed):
    code, said = stock_verify(signed, signed.signatures()[0])
    assert code == 0, said


def test_the_stock_client_refuses_what_we_refuse(signed):
    (bundle,) = signed.signatures()
    assert stock_verify(signed, bundle, subject=SUBJECT + "x")[0] != 0
    assert stock_verify(signed, bundle, issuer="https://gitlab.com")[0] != 0
    signed.change_bundle(
        lambda b: b["dsseEnvelope"].update(payload=flip(b["dsseEnvelope"]["payload"]))
    )
    assert stock_verify(signed, bundle)[0] != 0


def test_we_verify_what_the_stock_client_signs(world):
    """Its own predicate is not ours, so the proof holds and the statement is refused by name."""
    from capsule.builder.signing import read_statements
    from capsule_manifest.statements import read_release_statement

    predicate = world.folder / "predicate.json"
    builder = {"builder": {"id": "https://example.org/ci"}}
    predicate.write_text(
        json.dumps({"buildDefinition": {"buildType": "https://example.org/t",
                                        "externalParameters": {}}, "runDetails": builder})
    )  # fmt: skip
    bundle = world.folder / "stock.sigstore.json"
    code, said = stock(
        world, "attest", "--predicate", predicate, "--predicate-type",
        "https://slsa.dev/provenance/v1", "--identity-token", world.instance.token(),
        "--bundle", bundle, world.capsule / "capsule.json",
    )  # fmt: skip
    assert code == 0, said
    root = PinnedRoot((world.folder / "trusted_root.json").read_bytes(), where="root")
    proved = SigstoreVerifier(root).verify(bundle.read_bytes(), {"ci": IDENTITY}, where="stock")
    assert proved.name == "ci"
    subject = json.loads(proved.payload)["subject"][0]["digest"]["sha256"]
    assert "sha256:" + subject == read_statements(world.capsule).capsule
    with pytest.raises(Refused) as refused:
        read_release_statement(proved.payload, where="stock")
    assert refused.value.error_id == "signature-wrong-subject"


# --- sigstore-js ------------------------------------------------
def sigstore_js(root, bundles, *, keys=None, policy=None):
    """Return the answer of sigstore-js to each bundle."""
    request = {
        "root": root,
        "keys": keys or {},
        "bundles": [{"bundle": b, "keyed": keys is not None, "policy": policy} for b in bundles],
    }
    script = Path(__file__).with_name("foreign_verify.cjs")
    return json.loads(run_node(npm_packages(*SIGSTORE_JS), script, json.dumps(request)))


def changed(bundle, *path, value=flip):
    """Return a copy with one value changed."""
    made = copy.deepcopy(bundle)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value(place[path[-1]])
    return made


def test_sigstore_js_agrees_about_keyless_bundles(signed):
    bundle = json.loads(signed.signatures()[0].read_bytes())
    packing = json.loads(signed.signatures("packing")[0].read_bytes())
    entry = ("verificationMaterial", "tlogEntries", 0)
    spoiled = [
        changed(bundle, "dsseEnvelope", "payload"),
        changed(bundle, "dsseEnvelope", "signatures", 0, "sig"),
        changed(bundle, *entry, "inclusionProof", "hashes", 0),
        changed(bundle, *entry, "inclusionProof", "hashes", value=lambda old: old[:-1]),
        changed(bundle, *entry, "canonicalizedBody"),
        changed(bundle, *entry, "inclusionProof", "checkpoint", "envelope",
                value=lambda old: old.replace("\n", "\n1", 1)),
    ]  # fmt: skip
    root = signed.instance.trusted_root()
    right = {"subjectAlternativeName": SUBJECT, "extensions": {"issuer": ISSUER}}
    answers = sigstore_js(root, [bundle, packing, *spoiled], policy=right)
    assert answers[:2] == ["ok", "ok"]
    assert "ok" not in answers[2:]
    wrong = {"subjectAlternativeName": SUBJECT + "x", "extensions": {"issuer": ISSUER}}
    assert sigstore_js(root, [bundle], policy=wrong) != ["ok"]


@pytest.mark.parametrize("fault", [Fault.OTHER_CA, Fault.OTHER_LOG_KEY], ids=lambda f: f.name)
def test_sigstore_js_refuses_the_same_strangers(world, fault):
    world.instance.faults.add(fault)
    bundle = json.loads(world.sign_by_hand()["release"])
    assert sigstore_js(world.instance.trusted_root(), [bundle]) != ["ok"]
    assert world.verify() == 10


def test_sigstore_js_agrees_about_bundles_by_keys(world):
    sign_directory(world.capsule, RELEASE_KEY)
    bundle = json.loads(world.signatures()[0].read_bytes())
    public = RELEASE_KEY.public
    pem = load_der_public_key(public.spki).public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )
    root = world.instance.trusted_root()
    good = {public.keyid: pem.decode()}
    payload = changed(bundle, "dsseEnvelope", "payload")
    signature = changed(bundle, "dsseEnvelope", "signatures", 0, "sig")
    answers = sigstore_js(root, [bundle, payload, signature], keys=good)
    assert answers[0] == "ok"
    assert "ok" not in answers[1:]
    assert sigstore_js(root, [bundle], keys={}) != ["ok"]


# --- bundles of the public instance -----------------------------
@pytest.fixture(scope="module")
def published():
    return published_attestations()


def public_root(host):
    """Return the trusted root that the package itself carries."""
    return PinnedRoot(public_root_bytes(host), where=host)


def prove(bundle, root, subject, issuer):
    who = Identity(owner="ci", san=subject, issuer=issuer, counter_from=1, counter_to=None)
    raw = json.dumps(bundle).encode()
    return SigstoreVerifier(root).verify(raw, {"ci": who}, where="bundle")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_bundle_of_the_public_instance_is_proved(published, name):
    subject, issuer = PUBLIC[name]
    bundle = published[name]
    proved = prove(bundle, public_root("sigstore"), subject, issuer)
    assert proved.payload == base64.b64decode(bundle["dsseEnvelope"]["payload"])
    assert proved.signed_s > 1_700_000_000


@pytest.mark.parametrize("name", PUBLIC)
def test_a_changed_bundle_of_the_public_instance_is_refused(published, name):
    bundle = changed(published[name], "dsseEnvelope", "payload")
    with pytest.raises(Refused) as refused:
        prove(bundle, public_root("sigstore"), *PUBLIC[name])
    assert refused.value.error_id == "keyless-unproved"


def test_a_bundle_of_the_staging_instance_is_refused_under_the_root_of_the_public_one(published):
    person = ("william@yossarian.net", "https://github.com/login/oauth")
    with pytest.raises(Refused) as refused:
        prove(published[STAGING], public_root("sigstore"), *person)
    assert refused.value.error_id == "keyless-unproved"
    assert prove(published[STAGING], public_root("sigstage"), *person).name == "ci"
