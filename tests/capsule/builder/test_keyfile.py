"""Key files: private, never overwritten, and refused when they are not what they should be."""

import shutil
import stat
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from capsule.builder.keyfile import generate_key, load_public_key, load_signer
from support.failures import fails_with


def pem(private):
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "keys" / "release.key"
    generate_key(path, owner="ci team")
    return path


def test_a_made_key_signs_and_its_public_half_verifies(key):
    signer = load_signer(key)
    owned = load_public_key(key.with_name("release.key.pub"))
    assert owned.owner == "ci team"
    assert owned.key == signer.public
    owned.key.verify(signer.sign(b"message"), b"message", "here")


def test_only_this_user_can_read_the_private_key_and_its_folder(key):
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_other_tools_read_the_key(key):
    arguments = ["openssl", "ec", "-in", str(key), "-noout", "-text"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "prime256v1" in done.stdout


@pytest.mark.parametrize("name", ["release.key", "release.key.pub"])
def test_an_existing_file_is_never_overwritten(tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    with fails_with("key-exists"):
        generate_key(tmp_path / "release.key", owner="ci")
    assert (tmp_path / name).read_bytes() == b"mine"


@pytest.mark.parametrize("owner", ["", "two\nlines", "\x1b[2J", "x" * 101])
def test_an_owner_that_is_no_line_is_refused(tmp_path, owner):
    with fails_with("key-malformed"):
        generate_key(tmp_path / "a.key", owner=owner)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_can_read_is_refused(key, mode):
    key.chmod(mode)
    with fails_with("key-exposed") as caught:
        load_signer(key)
    assert caught.value.got == f"{mode:04o}"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no key",
        pem(ed25519.Ed25519PrivateKey.generate()),
        pem(ec.generate_private_key(ec.SECP384R1())),
    ],
)
def test_what_is_no_p_256_key_is_refused_without_quoting_it(tmp_path, raw):
    path = tmp_path / "a.key"
    path.write_bytes(raw)
    path.chmod(0o600)
    with fails_with("key-malformed") as caught:
        load_signer(path)
    assert caught.value.__cause__ is None


def test_a_missing_key_says_which(tmp_path):
    for load in (load_signer, load_public_key):
        with fails_with("key-missing") as caught:
            load(tmp_path / "none.key")
        assert "none.key" in caught.value.where


@pytest.mark.parametrize(
    "change", [lambda raw: raw.split(b"\n", 1)[1], lambda raw: raw[:60], bytes.upper]
)
def test_a_public_key_without_its_owner_or_damaged_is_refused(key, change):
    path = key.with_name("release.key.pub")
    path.write_bytes(change(path.read_bytes()))
    with fails_with("key-malformed"):
        load_public_key(path)


def test_a_signer_does_not_show_its_secret(key):
    signer = load_signer(key)
    assert repr(signer) == f"FileSigner({signer.public.short})"
