"""`release.lock`: pins and nothing else, the same text for the same pins."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.builder.lockfile import (
    LockFile,
    ToolPin,
    WheelPin,
    WheelSet,
    decode_lock,
    encode_lock,
    load_lock,
)
from capsule_manifest.errors import Refused

SHA = "a" * 64
PIN = WheelPin(
    name="demo", version="1.0", file="demo-1.0-py3-none-any.whl", sha256=SHA, size_bytes=10
)
SET = WheelSet(input_sha256=SHA, target="cp311 x86_64 glibc 2.36", wheels=(PIN,))
LOCK = LockFile(
    locked_at="2026-01-02T03:04:05Z",
    locked_by="capsule 0.1.0",
    wheels={("deps", "bookworm"): SET, ("a.b", "bookworm"): SET},
    runtime={"bookworm": SET},
    tools={"node": ToolPin(sha256=SHA, size_bytes=7)},
)

names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,9}", fullmatch=True)
sha = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
pins = st.builds(
    WheelPin,
    name=st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True),
    version=text,
    file=st.just("demo-1.0-py3-none-any.whl"),
    sha256=sha,
    size_bytes=st.integers(1, 2**53),
)
sets = st.builds(
    WheelSet,
    input_sha256=sha,
    target=text,
    wheels=st.lists(pins, max_size=3, unique_by=lambda pin: pin.name).map(
        lambda items: tuple(sorted(items, key=lambda pin: pin.name))
    ),
)


def test_a_lock_reads_as_it_was_written():
    assert decode_lock(encode_lock(LOCK)) == LOCK


@given(
    st.builds(
        LockFile,
        locked_at=text,
        locked_by=text,
        wheels=st.dictionaries(st.tuples(names, names), sets, max_size=3),
        runtime=st.dictionaries(names, sets, max_size=2),
        tools=st.dictionaries(
            names, st.builds(ToolPin, sha256=sha, size_bytes=st.integers(0, 9)), max_size=2
        ),
    )
)
def test_any_lock_reads_as_it_was_written(lock):
    assert decode_lock(encode_lock(lock)) == lock


def test_the_order_in_which_pins_were_found_does_not_show():
    other = replace(LOCK, wheels=dict(reversed(LOCK.wheels.items())))
    assert encode_lock(other) == encode_lock(LOCK)


def test_a_lock_names_no_place():
    assert b"://" not in encode_lock(LOCK)


def test_when_a_lock_was_made_is_no_pin():
    later = replace(LOCK, locked_at="2027-01-01T00:00:00Z", locked_by="capsule 0.2.0")
    assert later.has_pins_of(LOCK)
    assert not replace(LOCK, tools={}).has_pins_of(LOCK)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"format = 1", b"format = 2"),
        (b"size_bytes = 10", b"size_bytes = 0"),
        (b"size_bytes = 10", b'size_bytes = "10"'),
        (b'"demo-1.0-py3-none-any.whl"', b'"../demo.whl"'),
        (b'"demo-1.0-py3-none-any.whl"', b'"demo-1.0.tar.gz"'),
        (b'name = "demo"', b'name = "Demo"'),
        (b'name = "demo"', b'url = "x", name = "demo"'),
        (b"a" * 64, b"A" * 64),
        (b"wheels = [", b"wheels = ["[:-1]),
        (b"locked_at", b"\xff"),
    ],
)
def test_a_lock_that_was_edited_wrongly_is_refused(old, new):
    raw = encode_lock(LOCK)
    assert old in raw
    with pytest.raises(Refused) as caught:
        decode_lock(raw.replace(old, new, 1))
    assert caught.value.error_id == "lock-invalid"


def test_a_missing_lock_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(Refused) as caught:
        load_lock(tmp_path / "release.lock")
    assert caught.value.error_id == "lock-missing"
    assert "capsule lock" in caught.value.advice
