"""The page about placeholders shows what the code does."""

import re

from capsule_manifest.template import PLACES, placeholders, substitute
from support.sources import text_of

PAGE = text_of("docs/reference/template.md")


def test_the_table_lists_every_placeholder():
    listed = set(re.findall(r"^\| `@\{(.+?)\}` \|", PAGE, re.MULTILINE))
    assert listed == {*PLACES, "node.id", "node.NAME", "image.NAME"}
    for name in listed:
        # A component's name has no capitals.
        name = name.replace("image.NAME", "image.name")
        assert placeholders(f"@{{{name}}}") == {name}


def test_the_example_becomes_what_the_page_says():
    before, after = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    values = {
        "root": "",
        "generation": "/opt/capsule/generations/7-0a1b2c3d",
        "node.port": "8101",
    }
    assert substitute(before, values) == after
