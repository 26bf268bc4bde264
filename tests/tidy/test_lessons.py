"""The table of lessons names a test for each row, and each named test exists."""

import re

from support.sources import ROOT, text_of

PAGE = "docs/explanation/lessons.md"


def rows():
    """Return (what was learned, the test that keeps it) of both tables."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text_of(PAGE).splitlines()
        if line.startswith("|") and "---" not in line
    ]
    return [(row[0], row[2].strip("`")) for row in cells if row[2] != "test"]


def test_both_tables_are_read_whole():
    assert len(rows()) == 12
    assert [name[:2] for name, _ in rows()[:5]] == ["R1", "R2", "R3", "R4", "R5"]


def test_every_row_names_a_test_that_exists():
    missing = []
    for lesson, named in rows():
        path, _, name = named.partition("::")
        file = ROOT / "tests" / path
        if not file.is_file() or not re.search(rf"^def {name}\(", file.read_text(), re.MULTILINE):
            missing.append((lesson, named))
    assert missing == []
