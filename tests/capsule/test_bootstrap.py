"""A capsule on a bare host: the standard library and openssl decide as the host program does."""

import base64
import copy
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from capsule.__main__ import main
from capsule.bootstrap import add_bootstrap
from capsule.builder.signing import sign_directory
from capsule.payload import open_payload
from capsule_manifest.canonical import encode
from capsule_manifest.envelope import IN_TOTO, encode_bundle, sign
from capsule_manifest.keys import PublicKey
from capsule_manifest.policy import Downgrade, encode_policy
from capsule_manifest.statements import bootstrap_statement
from support import documents
from support.capsules import real_runtime, write_capsule

POLICY = documents.make_policy()
KEYID = documents.RELEASE_KEY.public.keyid

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")


class Bare:
    """A host that has nothing of ours, and a medium with a capsule and a policy."""

    def __init__(self, folder, *, runtime=None):
        self.root = folder / "host"
        self.root.mkdir(mode=0o755)
        self.policy = folder / "trust.json"
        self.trust(POLICY)
        self.made = write_capsule(folder / "web.capsule", counter=7, runtime=runtime)
        self.capsule = self.made.folder
        payload = open_payload(self.capsule, POLICY)
        assert add_bootstrap(self.capsule, payload, documents.RELEASE_KEY) == ["bookworm"]

    def trust(self, policy):
        self.policy.write_bytes(encode_policy(policy))

    def run(self, *words):
        """Return the exit code, the refusal's id, and what was printed."""
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(self.capsule / "bootstrap/bootstrap.py"),
             "--policy", str(self.policy), "--root", str(self.root), *words],
            capture_output=True, check=False, env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        first = done.stderr.decode().partition("bootstrap: ")[2]
        return done.returncode, first.partition(":")[0], done.stdout


@pytest.fixture
def bare(tmp_path):
    return Bare(tmp_path, runtime={
        "site/capsule_installer/bin_capsule.sh": b'#!/bin/sh\necho handed over "$@"\n',
        "VERSION": b"0.1.0\n",
    })  # fmt: skip


def test_a_bare_host_verifies_unpacks_and_hands_over(bare):
    code, _, out = bare.run("--", "status", "--json")
    assert (code, out) == (0, b"handed over status --json\n")
    assert bare.run()[2] == b"handed over hello\n"


def test_the_real_host_program_answers_after_it(tmp_path):
    bare = Bare(tmp_path, runtime=real_runtime())
    code, _, out = bare.run("--", "hello")
    assert code == 0
    assert json.loads(out.strip(b"\x1e\n"))["record"] == "hello"


def test_the_id_and_what_verify_says_of_the_capsule_do_not_change(bare, capsys):
    arguments = ["verify", str(bare.capsule), "--policy", str(bare.policy), "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["capsule"] == bare.made.capsule


@pytest.mark.parametrize(
    "name", ["index.json", "unpack.py", "bootstrap.py", "runtime-bookworm.stream"]
)
def test_verify_refuses_a_changed_bootstrap_file(bare, name):
    path = bare.capsule / "bootstrap" / name
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))
    assert main(["verify", str(bare.capsule), "--policy", str(bare.policy), "--json"]) == 10


def two_owners(bare):
    bare.trust(replace(POLICY, release=replace(POLICY.release, threshold=2)))


def two_owners_of_the_release_and_one_of_these_files(bare):
    sign_directory(bare.capsule, documents.SECOND_RELEASE_KEY)
    two_owners(bare)


def one_owner_twice(bare):
    sign_directory(bare.capsule, documents.SECOND_RELEASE_KEY)
    second = documents.SECOND_RELEASE_KEY.public.keyid
    keys = {**POLICY.keys, second: replace(POLICY.keys[second], owner="ci")}
    keys["-"] = replace(POLICY.keys[KEYID], key=documents.STRANGER_KEY.public, owner="qa")
    stranger = documents.STRANGER_KEY.public.keyid
    keys[stranger] = keys.pop("-")
    rule = replace(POLICY.release, keys=(*POLICY.release.keys, stranger), threshold=2)
    bare.trust(replace(POLICY, keys=keys, release=rule))


def these_files_by_a_retired_key(bare):
    """The release is another owner's; who retired may not say what is run as root, either."""
    (path,) = (bare.capsule / "signatures").glob("release-*")
    path.unlink()
    sign_directory(bare.capsule, documents.SECOND_RELEASE_KEY)
    retired_key(bare)


def these_files_of_another_capsule(bare):
    other = write_capsule(bare.root.parent / "other.capsule", counter=7, components={"x": {}})
    add_bootstrap(other.folder, open_payload(other.folder, POLICY), documents.RELEASE_KEY)
    for name in ("bootstrap", "signatures"):
        for path in (other.folder / name).glob("bootstrap*" if name == "signatures" else "*"):
            shutil.copy(path, bare.capsule / name / path.name)


def revoked_key(bare):
    bare.trust(replace(POLICY, revoked_keys=frozenset({KEYID})))


def revoked_capsule(bare):
    bare.trust(replace(POLICY, revoked_capsules=frozenset({bare.made.capsule})))


def retired_key(bare):
    entry = replace(POLICY.keys[KEYID], counter_to=6)
    bare.trust(replace(POLICY, keys={**POLICY.keys, KEYID: entry}))


def another_product(bare):
    bare.trust(replace(POLICY, product="acme/other"))


def a_floor(bare):
    bare.trust(replace(POLICY, release_counter_floor=8))


def a_known_floor(bare):
    (bare.root / "var/lib/capsule/state").mkdir(parents=True)
    (bare.root / "var/lib/capsule/state/counter-floor").write_text("8\n")


def no_signature(bare):
    for path in (bare.capsule / "signatures").glob("release-*"):
        path.unlink()


def a_changed_manifest(bare):
    path = bare.capsule / "capsule.json"
    path.write_bytes(path.read_bytes() + b" ")


def a_strangers_signature(bare):
    no_signature(bare)
    raw = documents.release_bundle(
        (bare.capsule / "capsule.json").read_bytes(), documents.STRANGER_KEY
    )
    (bare.capsule / "signatures/release-x.sigstore.json").write_bytes(raw)


def a_route_keys_signature(bare):
    no_signature(bare)
    raw = documents.release_bundle(
        (bare.capsule / "capsule.json").read_bytes(), documents.ROUTE_KEY
    )
    (bare.capsule / "signatures/release-x.sigstore.json").write_bytes(raw)


def a_swapped_signature(bare):
    (path,) = (bare.capsule / "signatures").glob("release-*")
    other = json.loads(documents.release_bundle(b"other", documents.RELEASE_KEY))
    bundle = json.loads(path.read_bytes())
    bundle["dsseEnvelope"]["signatures"] = other["dsseEnvelope"]["signatures"]
    path.write_text(json.dumps(bundle))


def a_key_in_another_spelling(bare):
    """The same key with a compressed point has another id, which nobody may have revoked."""
    key = load_der_public_key(documents.RELEASE_KEY.public.spki)
    point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    spki = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200") + point
    load_der_public_key(spki)
    keyid = base64.b64encode(hashlib.sha256(spki).digest()).decode()
    moved = replace(POLICY.keys[KEYID], key=PublicKey(keyid=keyid, spki=spki))
    rule = replace(POLICY.release, keys=(keyid,))
    keys = {**POLICY.keys, keyid: moved}
    bare.trust(replace(POLICY, keys=keys, release=rule, revoked_keys=frozenset({KEYID})))
    for path in (bare.capsule / "signatures").iterdir():
        path.write_bytes(path.read_bytes().replace(KEYID.encode(), keyid.encode()))


def a_changed_unpacker(bare):
    (bare.capsule / "bootstrap/unpack.py").write_text("print('mine')")


def a_changed_index(bare):
    path = bare.capsule / "bootstrap/index.json"
    path.write_bytes(path.read_bytes().replace(b"bookworm", b"bullseye"))


def put_signed_index(bare, **changes):
    """Let the right key sign another index for this capsule."""
    path = bare.capsule / "bootstrap/index.json"
    raw = encode({**json.loads(path.read_bytes()), **changes})
    path.write_bytes(raw)
    statement = bootstrap_statement(raw, bare.made.capsule)
    bundle = encode_bundle(sign(statement, payload_type=IN_TOTO, signer=documents.RELEASE_KEY))
    (old,) = (bare.capsule / "signatures").glob("bootstrap-*")
    old.write_bytes(bundle)


def an_index_that_names_another_capsule(bare):
    put_signed_index(bare, capsule="sha256:" + "0" * 64)


def an_index_of_a_later_format(bare):
    put_signed_index(bare, schema="capsule-bootstrap/2")


def a_shorter_stream(bare):
    path = bare.capsule / "bootstrap/runtime-bookworm.stream"
    path.write_bytes(path.read_bytes()[:-1])


def no_json(bare):
    bare.policy.write_bytes(b"{")


ROWS = [
    (two_owners, 10, "threshold-not-met"),
    (two_owners_of_the_release_and_one_of_these_files, 10, "threshold-not-met"),
    (one_owner_twice, 10, "threshold-not-met"),
    (these_files_by_a_retired_key, 12, "key-outside-window"),
    (these_files_of_another_capsule, 10, "signature-wrong-subject"),
    (revoked_key, 12, "key-revoked"),
    (revoked_capsule, 12, "capsule-revoked"),
    (retired_key, 12, "key-outside-window"),
    (another_product, 12, "product-mismatch"),
    (a_floor, 12, "release-counter-too-low"),
    (a_known_floor, 12, "release-counter-too-low"),
    (no_signature, 10, "signature-missing"),
    (a_changed_manifest, 10, "signature-wrong-subject"),
    (a_strangers_signature, 10, "key-unknown"),
    (a_route_keys_signature, 12, "authority-denied"),
    (a_swapped_signature, 10, "signature-invalid"),
    (a_key_in_another_spelling, 10, "key-malformed"),
    (a_changed_unpacker, 10, "object-mismatch"),
    (a_changed_index, 10, "signature-wrong-subject"),
    (an_index_that_names_another_capsule, 10, "signature-wrong-subject"),
    (an_index_of_a_later_format, 21, "document-version"),
    (a_shorter_stream, 10, "object-mismatch"),
    (no_json, 10, "document-invalid"),
]


@pytest.mark.parametrize(
    ("arrange", "code", "error_id"), ROWS, ids=[row[0].__name__ for row in ROWS]
)
def test_a_capsule_that_must_not_be_used_leaves_the_host_bare(bare, arrange, code, error_id):
    arrange(bare)
    before = sorted(bare.root.rglob("*"))
    assert bare.run()[:2] == (code, error_id)
    assert sorted(bare.root.rglob("*")) == before


# What a bare host alone knows or has: its floor, and the files before they are unpacked.
ALONE = {a_known_floor, a_shorter_stream, no_json}


@pytest.mark.parametrize(
    ("arrange", "code"),
    [row[:2] for row in ROWS if row[0] not in ALONE],
    ids=[row[0].__name__ for row in ROWS if row[0] not in ALONE],
)
def test_what_a_bare_host_refuses_the_controller_refuses_with_the_same_code(bare, arrange, code):
    arrange(bare)
    assert main(["verify", str(bare.capsule), "--policy", str(bare.policy), "--json"]) == code


def test_the_second_owner_adds_his_voice_by_the_same_command(bare):
    two_owners_of_the_release_and_one_of_these_files(bare)
    policy = replace(POLICY, release=replace(POLICY.release, threshold=2))
    payload = open_payload(bare.capsule, policy)
    add_bootstrap(bare.capsule, payload, documents.SECOND_RELEASE_KEY)
    assert bare.run()[0] == 0
    assert main(["verify", str(bare.capsule), "--policy", str(bare.policy), "--json"]) == 0


# --- files of strangers -------------------------------------------------------------------------
VALUES = (None, True, 7, "", "x", "\ud800", [], [7], {}, {"x": 7})


def spoiled(value):
    """Yield each copy of a document in which one value is another or missing."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        for other in (wrong for wrong in VALUES if wrong != value[key]):
            changed = copy.deepcopy(value)
            changed[key] = other
            yield changed
        if isinstance(value[key], dict | list):
            for inner in spoiled(value[key]):
                changed = copy.deepcopy(value)
                changed[key] = inner
                yield changed


def signed_anew(statement):
    """Return a bundle in which the right key says something else."""
    raw = json.dumps(statement).encode()
    bundle = encode_bundle(sign(raw, payload_type=IN_TOTO, signer=documents.RELEASE_KEY))
    return json.loads(bundle)


def test_one_wrong_value_in_a_bundle_or_statement_is_refused_by_a_word_of_ours(
    bare, capsys, monkeypatch
):
    """In this process, because there are hundreds; the program is the file that travels."""
    program = bootstrap_program()
    monkeypatch.setattr(program, "unpack", lambda *_: pytest.fail("it was accepted"))
    (path,) = (bare.capsule / "signatures").glob("release-*")
    bundle = json.loads(path.read_bytes())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    cases = [*spoiled(bundle), *map(signed_anew, spoiled(statement))]
    assert len(cases) >= 200
    for case in cases:
        path.write_text(json.dumps(case))
        arguments = [str(bare.capsule), "--policy", str(bare.policy), "--root", str(bare.root)]
        assert program.main(arguments) in {10, 12}, case
        said = capsys.readouterr().err
        assert said.startswith("bootstrap: "), case
        assert said.rstrip("\n").isprintable(), case
    assert not list(bare.root.iterdir())


def test_a_strangers_file_of_any_shape_does_not_stop_a_signed_capsule(bare):
    for number, raw in enumerate((b"", b"7", b"[" * 100_000, b'{"mediaType":[]}', b"\xff")):
        (bare.capsule / f"signatures/release-{number}.sigstore.json").write_bytes(raw)
        (bare.capsule / f"signatures/bootstrap-{number}.sigstore.json").write_bytes(raw)
    assert bare.run()[0] == 0


def bootstrap_program():
    """Return the program as a module of its own; the controller never imports it."""
    from importlib.util import module_from_spec, spec_from_file_location

    from support.sources import ROOT

    spec = spec_from_file_location("bare", ROOT / "capsule/capsule/bootstrap_host.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_stream_that_differs_from_its_digest_is_not_unpacked(bare):
    path = bare.capsule / "bootstrap/runtime-bookworm.stream"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert bare.run()[0] == 21
    assert not list(bare.root.rglob("bin_capsule.sh"))


def test_a_policy_lets_a_bare_host_go_back_on_purpose(bare):
    exception = Downgrade(capsule=bare.made.capsule, reason="8 loses mail")
    bare.trust(replace(POLICY, release_counter_floor=8, downgrades=(exception,)))
    assert bare.run()[0] == 0
