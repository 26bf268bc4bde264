"""Tests of names, paths, link targets and how they are shown."""

import itertools
import posixpath
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_manifest.errors import Refused
from capsule_manifest.paths import (
    case_collisions,
    check_link,
    check_name,
    check_path,
    escape,
)
from support.formats import refused

SURROGATE = "bad\udcff"


@pytest.mark.parametrize("name", ["a", ".hidden", "...", "a b", "a\\b", "näme", "日本", "x" * 255])
def test_a_name_of_one_segment_is_accepted(name: str) -> None:
    check_name(name, "here")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/", "a\0b", "a\nb", "a\x7f", "a\x85", SURROGATE, "x" * 256, "ä" * 128],
)
def test_a_name_that_is_no_plain_segment_is_refused(name: str) -> None:
    with refused("path-invalid"):
        check_name(name, "here")


def test_every_control_character_is_refused() -> None:
    controls = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in {"Cc", "Cs"}]
    assert len(controls) == 65 + 2048
    for control in controls:
        with pytest.raises(Refused):
            check_name(f"a{control}b", "here")


@pytest.mark.parametrize(
    "path",
    ["/a", "a//b", "a/", "./a", "a/.", "a/../b", "..", "", "a\0", f"d/{SURROGATE}"],
)
def test_a_path_that_is_not_relative_and_plain_is_refused(path: str) -> None:
    with refused("path-invalid"):
        check_path(path, "here")


def test_a_path_has_at_most_64_levels() -> None:
    check_path("/".join(["a"] * 64), "here")
    with refused("path-invalid"):
        check_path("/".join(["a"] * 65), "here")


def test_a_path_has_at_most_4096_bytes() -> None:
    longest = "/".join(["x" * 255] * 16)
    assert len(longest) == 4095
    check_path(longest, "here")
    with refused("path-invalid"):
        check_path(longest + "/x", "here")


@given(st.text(max_size=40))
def test_an_accepted_path_stays_below_the_folder_it_is_joined_to(path: str) -> None:
    try:
        check_path(path, "here")
    except Refused:
        return
    joined = posixpath.normpath(posixpath.join("/srv/component", path))
    assert joined == f"/srv/component/{path}"


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", "b"),
        ("a", "./b"),
        ("a", "b//c/"),
        ("d/a", "../b"),
        ("d/a", ".."),
        ("d/e/a", ".././../b"),
        ("a", "missing/also"),
        ("a", "."),
        ("a", "..hidden"),
    ],
)
def test_a_link_inside_the_component_is_accepted(path: str, target: str) -> None:
    check_link(path, target, "here")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", "/etc/passwd"),
        ("a", ".."),
        ("a", "../b"),
        ("d/a", "../../b"),
        ("d/a", "./../.././b"),
        ("d/a", "e/../../../b"),
        ("d/e/a", "f/../g"),
    ],
)
def test_symlink_escape_is_refused(path: str, target: str) -> None:
    with refused("link-escapes"):
        check_link(path, target, "here")


@pytest.mark.parametrize("target", ["", "a\0b", "a\nb", SURROGATE, "x" * 256, "a/" * 2048])
def test_a_link_target_that_cannot_be_written_is_refused(target: str) -> None:
    with refused("path-invalid"):
        check_link("d/a", target, "here")


def _resolve(links: dict[str, str], start: tuple[str, ...], target: str) -> bool:
    """Follow `target` from the directory `start` as a kernel does; say whether it stays inside."""
    here = list(start)
    steps = target.split("/")
    for _ in range(200):
        if not steps:
            return True
        step = steps.pop(0)
        if step in {"", "."}:
            continue
        if step == "..":
            if not here:
                return False
            here.pop()
            continue
        path = "/".join([*here, step])
        if path in links:
            steps = links[path].split("/") + steps
        else:
            here.append(step)
    return True  # a loop leads nowhere


def test_no_chain_of_two_accepted_links_leaves_the_component() -> None:
    """Enumerated: two links in nested directories, all targets of up to four steps."""
    steps = ["..", "d", "one", "two"]
    targets = ["/".join(t) for n in range(1, 5) for t in itertools.product(steps, repeat=n)]

    def accepted(path: str) -> list[str]:
        result = []
        for target in targets:
            try:
                check_link(path, target, "here")
            except Refused:
                continue
            result.append(target)
        return result

    first, second = "d/d/one", "two"
    for one, two in itertools.product(accepted(first), accepted(second)):
        links = {first: one, second: two}
        assert _resolve(links, ("d", "d"), one), (one, two)
        assert _resolve(links, (), two), (one, two)


def test_escape_shows_what_is_not_printable() -> None:
    assert escape("plain") == "plain"
    assert escape("näme") == "näme"
    assert escape("a\nb\x1b[0m") == "a\\nb\\x1b[0m"
    assert escape("\u202egpj") == "\\u202egpj"
    assert escape(b"bad\xff") == "bad\\xff"
    assert escape("bad\udcff") == "bad\\xff"


def test_escape_cuts_at_200_characters() -> None:
    assert escape("x" * 200) == "x" * 200
    assert escape("x" * 201) == "x" * 200 + "…"
    assert len(escape("\x1b" * 5000)) == 201


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_two_different_short_names_never_look_the_same(one: bytes, two: bytes) -> None:
    assert escape(one).isprintable()
    if one != two:
        assert escape(one) != escape(two)


def test_case_collisions_name_the_level_that_differs() -> None:
    assert case_collisions(["Lib/a", "lib/b", "lib/sub/A", "lib/sub/a"]) == [
        ("Lib", "lib"),
        ("lib/sub/A", "lib/sub/a"),
    ]


def test_names_that_differ_in_normalisation_collide() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert case_collisions([composed, decomposed]) == [(decomposed, composed)]
    assert case_collisions(["straße", "STRASSE"]) == [("STRASSE", "straße")]


def test_one_path_given_twice_does_not_collide_with_itself() -> None:
    assert case_collisions(["a/b", "a/b", "a", "a/c"]) == []
