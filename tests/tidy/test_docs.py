"""Pages that lead somewhere: links, headings, and the pages generated from code."""

import os
import re
import subprocess
import sys
from pathlib import PurePosixPath

import pytest

from support import diagrams, reference
from support.sources import ROOT, text_of, tracked

PAGES = [name for name in tracked() if name.endswith(".md")]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def commands_page():
    """Return the page of a new process: a command remembers by what name it was helped first."""
    program = "import sys; from support.reference import commands_page as page"
    return subprocess.run(
        [sys.executable, "-c", f"{program}; sys.stdout.write(page())"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        check=True,
        encoding="utf-8",
    ).stdout


GENERATED = {
    "docs/reference/cli.md": commands_page,
    "docs/reference/errors.md": reference.errors_page,
    "docs/reference/exit-codes.md": reference.exit_codes_page,
    "docs/reference/state-diagrams.md": diagrams.state_diagrams_page,
}


def prose(name):
    """Return a page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text_of(name)))


def headings(name):
    """Return the anchors of a page, made as forges make them."""
    lines = re.findall(r"^#{1,6} +(.+)$", FENCE.sub("", text_of(name)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


def links(name):
    """Yield the (page or folder, anchor) that a page's links into this tree lead to."""
    for target in LINK.findall(prose(name)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (ROOT / name).parent / path if path else ROOT / name
        yield target, place.resolve(), anchor


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    broken = [
        target
        for target, place, anchor in links(name)
        if not place.exists()
        or (anchor and anchor not in headings(place.relative_to(ROOT).as_posix()))
    ]
    assert broken == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_one_title_and_begins_with_it(name):
    titles = re.findall(r"^# .+$", FENCE.sub("", text_of(name)), re.MULTILINE)
    assert len(titles) == 1
    assert text_of(name).startswith(titles[0])


def test_every_page_is_reached_from_the_index():
    reached = {place for _, place, _ in links("docs/index.md")}
    pages = [name for name in PAGES if name.startswith("docs/") and name != "docs/index.md"]
    lost = [
        name
        for name in pages
        # decisions are reached through their folder
        if not name.startswith("docs/adr/") and (ROOT / name) not in reached
    ]
    assert lost == []
    assert (ROOT / "docs" / "adr") in reached


def test_every_decision_has_its_own_number():
    names = [PurePosixPath(name).name for name in PAGES if name.startswith("docs/adr/")]
    assert [name for name in names if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name)] == []
    numbers = [name[:4] for name in names]
    assert sorted(numbers) == sorted(set(numbers))


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_says_what_the_code_says(name, golden):
    golden(ROOT / name, GENERATED[name]())
