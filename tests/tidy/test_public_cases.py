"""The page of public cases names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "public-cases.md"
ROW = re.compile(r"^\| (\d+) \|.*\| `([^`]+)` \|$", re.MULTILINE)


def test_every_public_case_names_a_test_that_exists() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) > 20
    for number, named in rows:
        path, _, function = named.partition("::")
        assert f"def {function}(" in (TESTS / path).read_text(), f"case {number}: {named}"


def test_cases_are_listed_once_and_in_order() -> None:
    numbers = [int(number) for number, _ in ROW.findall(PAGE.read_text())]
    assert numbers == sorted(set(numbers))
