"""A capsule on a bare host: the standard library and openssl decide as the host program does."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from capsule.__main__ import main
from capsule.bootstrap import add_bootstrap
from capsule.payload import open_payload
from capsule_manifest.policy import Downgrade, encode_policy
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


def a_changed_unpacker(bare):
    (bare.capsule / "bootstrap/unpack.py").write_text("print('mine')")


def a_changed_index(bare):
    path = bare.capsule / "bootstrap/index.json"
    path.write_bytes(path.read_bytes().replace(b"bookworm", b"bullseye"))


def a_shorter_stream(bare):
    path = bare.capsule / "bootstrap/runtime-bookworm.stream"
    path.write_bytes(path.read_bytes()[:-1])


def no_json(bare):
    bare.policy.write_bytes(b"{")


ROWS = [
    (two_owners, 10, "threshold-not-met"),
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
    (a_changed_unpacker, 10, "object-mismatch"),
    (a_changed_index, 10, "signature-wrong-subject"),
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
