"""Placeholders: what is replaced, what is copied, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_manifest.errors import Refused
from capsule_manifest.template import placeholders, substitute

VALUES = {
    "root": "",
    "generation": "/opt/capsule/generations/7-01234567",
    "current": "/opt/capsule/current",
    "node.id": "n1",
    "node.port": "8101",
}


def test_every_known_placeholder_is_replaced():
    text = "@{root}|@{generation}|@{current}|@{node.id}|@{node.port}"
    assert substitute(text, VALUES) == "|".join(VALUES.values())
    assert placeholders(text) == set(VALUES)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("@@{root}", "@{root}"),
        ("@@@{node.id}", "@@{node.id}"),
        ("a@b.example {x} @ {y} ${HOME} %i", "a@b.example {x} @ {y} ${HOME} %i"),
        ("@@{", "@{"),
        ("", ""),
    ],
)
def test_what_is_no_placeholder_is_copied(text, result):
    assert substitute(text, VALUES) == result


@pytest.mark.parametrize(
    "text",
    [
        "@{}",
        "@{ root }",
        "@{Root}",
        "@{node}",
        "@{node.}",
        "@{node.1}",
        "@{node.a.b}",
        "@{home}",
        "@{root",
        "@{root\n}",
        "@{ro@{root}ot}",
        "@{node.port|default}",
        "@{node." + "a" * 64 + "}",
    ],
)
def test_an_unknown_or_open_placeholder_is_refused(text):
    for call in (lambda: placeholders(text), lambda: substitute(text, VALUES)):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.error_id == "template-invalid"


def test_a_refusal_names_the_line():
    with pytest.raises(Refused) as caught:
        placeholders("fine @{root}\n\nbad @{nope}", where="units/a.service")
    assert caught.value.where == "units/a.service, line 3"
    assert caught.value.got == "@{nope}"


def test_a_value_that_the_node_lacks_is_refused():
    with pytest.raises(Refused) as caught:
        substitute("@{node.color}", VALUES)
    assert caught.value.error_id == "template-value-missing"


@pytest.mark.parametrize("value", ["a\nExecStart=/bin/sh", "a\0", "\x1b[2J", "a\r"])
def test_a_value_that_would_add_a_line_is_refused(value):
    with pytest.raises(Refused) as caught:
        substitute("x=@{node.port}", VALUES | {"node.port": value})
    assert caught.value.error_id == "template-value-invalid"


def test_a_value_is_not_read_for_placeholders():
    assert substitute("@{node.port}", VALUES | {"node.port": "@{node.id}"}) == "@{node.id}"


@given(st.text(alphabet="@{}nodeidrt. \n", max_size=30))
def test_no_text_leaves_a_placeholder_behind_or_raises_anything_else(text):
    try:
        names = placeholders(text)
    except Refused:
        return
    # `@{` can then come from an escape only.
    done = substitute(text, dict.fromkeys(names, "x"))
    assert done.count("@{") == text.count("@@{")
