"""What a binary cache says: read strictly, and believed only when a pinned key signed it."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.builder.nix.names import decode_sha256, encode_nix32
from capsule.builder.nix.narinfo import decode_narinfo, verify_narinfo
from support.failures import fails_with
from support.nars import CacheKey, StorePath, nar, store_path_name

KEY = CacheKey()
LIBRARY = store_path_name("library-1.0")
PATH = StorePath(label="hello-1.0", node=b"hello", references=[LIBRARY], key=KEY)


def decode(raw):
    return decode_narinfo(raw, where="test")


def test_a_document_is_read():
    info = decode(PATH.narinfo())
    assert info.name == PATH.name
    assert info.nar_sha256 == hashlib.sha256(nar(b"hello")).hexdigest()
    assert info.references == (LIBRARY,)
    verify_narinfo(info, [KEY.public], where="test")


@given(st.binary(min_size=32, max_size=32))
def test_digests_are_read_in_each_of_their_spellings(raw):
    import base64

    for text in (
        f"sha256:{encode_nix32(raw)}",
        f"sha256:{raw.hex()}",
        f"sha256-{base64.b64encode(raw).decode()}",
    ):
        assert decode_sha256(text, "test") == raw.hex()


def test_base_32_is_that_of_nix():
    # `nix-hash --type sha256 --to-base32` of the SHA-256 of nothing.
    digest = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    assert encode_nix32(digest) == "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73"


@pytest.mark.parametrize(
    "text",
    [
        "sha256:" + "z" * 52,  # bits to spare that are not zero
        "sha256:" + "e" * 52,  # no digit
        "sha256:" + "0" * 51,
        "sha256:" + "A" * 64,
        "sha256-AAAA",
        "sha256-*" + "A" * 43,
        "sha512:" + "0" * 52,
        "md5:" + "0" * 26,
        "0" * 52,
    ],
)
def test_a_digest_of_another_spelling_is_refused(text):
    with fails_with("narinfo-malformed"):
        decode_sha256(text, "test")


DEFECTS = {
    "no store path": (b"StorePath: /nix/store/", b"StorePath: /gnu/store/"),
    "a way up": (b"/nix/store/", b"/nix/store/../"),
    "a short name": (PATH.name.encode(), PATH.name[3:].encode()),
    "no separator": (b"NarSize: ", b"NarSize "),
    "an empty line": (b"NarSize: ", b"\nNarSize: "),
    "a size of nothing": (b"NarSize: ", b"NarSize: 0"),
    "a negative size": (b"NarSize: ", b"NarSize: -"),
    "a size that is no number": (b"NarSize: ", b"NarSize: \xb2"),
    "a field twice": (b"NarSize: ", b"NarSize: 1\nNarSize: "),
    "no address": (b"URL: ", b"Address: "),
    "an absolute address": (b"URL: ", b"URL: /"),
    "another host": (b"URL: ", b"URL: https://example.org/"),
    "an address upwards": (b"URL: ", b"URL: nar/../../"),
    "an unknown compression": (b"Compression: none", b"Compression: br"),
    "a reference that is none": (b"References: ", b"References: x "),
    "a reference twice": (b"References: ", f"References: {LIBRARY} ".encode()),
    "a carriage return": (b"\n", b"\r\n"),
}


@pytest.mark.parametrize(("before", "after"), DEFECTS.values(), ids=DEFECTS)
def test_a_document_with_one_defect_is_refused(before, after):
    raw = PATH.narinfo()
    assert before in raw
    with fails_with("narinfo-malformed"):
        decode(raw.replace(before, after))


def test_a_document_that_is_too_large_is_refused():
    with fails_with("narinfo-malformed"):
        decode(PATH.narinfo() + b"Sig: x\n" * 200_000)


def test_a_path_that_nobody_signed_is_refused():
    path = StorePath(label="hello-1.0", node=b"hello")
    with fails_with("nix-signature-missing"):
        verify_narinfo(decode(path.narinfo()), [KEY.public], where="test")


def test_a_signature_by_another_key_counts_for_nothing():
    with fails_with("nix-signature-missing"):
        verify_narinfo(decode(PATH.narinfo()), [CacheKey("other-1").public], where="test")


def test_a_signature_by_another_key_of_the_same_name_is_refused():
    with fails_with("nix-signature-invalid"):
        verify_narinfo(decode(PATH.narinfo()), [CacheKey(seed=2).public], where="test")


def test_one_valid_signature_of_several_is_enough():
    raw = PATH.narinfo() + b"Sig: other-1:AAAA\nSig: cache.test-1:AAAA\nSig: x\n"
    verify_narinfo(decode(raw), [KEY.public], where="test")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PATH.name, store_path_name("other-1.0")),
        (LIBRARY, store_path_name("library-2.0")),
        (f"References: {LIBRARY}", "References: "),
        ("NarSize: 1", "NarSize: 2"),
        ("NarHash: sha256:", "NarHash: sha256:" + "0" * 52 + "\nNothing: "),
    ],
)
def test_a_signature_covers_path_digest_size_and_references(before, after):
    raw = PATH.narinfo()
    assert raw.count(before.encode()) >= 1
    with fails_with("nix-signature-invalid"):
        verify_narinfo(decode(raw.replace(before.encode(), after.encode())), [KEY.public], where="")


def test_the_address_is_not_signed_and_need_not_be():
    raw = PATH.narinfo().replace(b"URL: nar/", b"URL: elsewhere/")
    verify_narinfo(decode(raw), [KEY.public], where="test")
