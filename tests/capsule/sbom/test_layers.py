"""What a stack of layers says in the end, and what is no layer at all."""

import io
import tarfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.sbom.layers import last_words
from capsule_manifest.errors import Refused
from support.failures import fails_with
from support.images import layer_of


def opened(*layers):
    return [lambda data=data: io.BytesIO(data) for data in layers]


def words(*layers, wanted=("a/b/list",), limit=100):
    return last_words(opened(*layers), lambda p: limit if p in wanted else None, where="image")


def files(**named):
    return layer_of(**{name.replace("_", "/"): data for name, data in named.items()})


def layer(*members):
    """Return a layer of members with a type each, and no content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "elsewhere"
            archive.addfile(member)
    return stream.getvalue()


LOW = files(a_b_list=b"low", a_b_other=b"not wanted")


def test_the_topmost_layer_has_the_last_word():
    assert words(LOW) == {"a/b/list": b"low"}
    assert words(LOW, files(a_b_list=b"high")) == {"a/b/list": b"high"}
    assert words(files(a_b_list=b"high"), LOW) == {"a/b/list": b"low"}


@pytest.mark.parametrize("name", ["./a/b/list", "/a/b/list", "a//b/./list"])
def test_a_name_is_one_whatever_its_spelling(name):
    assert words(layer_of(**{name: b"x"})) == {"a/b/list": b"x"}


@pytest.mark.parametrize(
    "name",
    ["a/b/.wh.list", "a/.wh.b", ".wh.a", "a/b/.wh..wh..opq", "a/.wh..wh..opq", ".wh..wh..opq"],
)
def test_a_whiteout_takes_away_what_lower_layers_have_and_nothing_of_its_own(name):
    gone = layer_of(**{name: b""})
    assert words(LOW, gone) == {}
    assert words(gone, LOW) == {"a/b/list": b"low"}
    with_its_own = layer_of(**{"a/b/list": b"own", name: b""})
    assert words(LOW, with_its_own) == {"a/b/list": b"own"}


@pytest.mark.parametrize("name", ["a/b/.wh.other", "a/.wh.c", "b/.wh..wh..opq", "a/b/list/.wh.x"])
def test_a_whiteout_of_another_name_changes_nothing(name):
    assert words(LOW, layer_of(**{name: b""})) == {"a/b/list": b"low"}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
@pytest.mark.parametrize("name", ["a/b/list", "a/b", "a"])
def test_what_is_no_folder_hides_what_was_there(name, kind):
    assert words(LOW, layer((name, kind))) == {}


def test_a_folder_that_is_named_again_hides_nothing():
    assert words(LOW, layer(("a", tarfile.DIRTYPE), ("a/b", tarfile.DIRTYPE))) == {
        "a/b/list": b"low"
    }


def test_a_limit_of_zero_asks_only_whether_the_file_is_there():
    assert words(LOW, limit=0) == {"a/b/list": b""}


def test_a_list_beyond_its_limit_is_refused():
    with fails_with("image-malformed"):
        words(LOW, limit=2)


def test_a_layer_of_no_bytes_or_of_zeros_is_empty():
    assert words(LOW, bytes(1024)) == {"a/b/list": b"low"}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_header_is_noticed_wherever_it_is(place):
    data = bytearray(files(x=b"1", a_b_list=b"2", y=b"3"))
    data[place * 1024] ^= 1
    with fails_with("image-malformed"):
        words(bytes(data))


def test_a_layer_may_end_with_its_last_byte_of_content():
    whole = files(x=b"1", a_b_list=b"low")
    assert words(whole[: 3 * 512 + 3]) == {"a/b/list": b"low"}


@pytest.mark.parametrize("size_bytes", [3 * 512 + 2, 3 * 512, 2 * 512 + 9, 512])
def test_a_layer_that_ends_before_it_is_refused(size_bytes):
    with fails_with("image-malformed"):
        words(files(x=b"1", a_b_list=b"low")[:size_bytes])


def test_text_is_no_layer():
    with fails_with("image-malformed"):
        words(b"hello\n" * 200)


@given(st.data())
def test_damage_ends_in_an_answer_or_in_a_refusal(data):
    raw = bytearray(layer_of(**{"a/b/list": b"x" * 700, "long/" * 30 + "name": b"y"}))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    with suppress(Refused):  # whatever else is raised, is a finding
        words(bytes(raw), limit=10_000)
