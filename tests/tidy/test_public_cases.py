"""The pages of public cases are total: every case has one row, and every row's test exists."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGES = TESTS.parent / "docs" / "reference"
LAST = {"public-cases.md": 74, "public-cases-orchestration.md": 74}
ROW = re.compile(r"^\| (\d+) \|.*\| `([^`]+)` \|$", re.MULTILINE)
OTHER = re.compile(
    r"^\| (\d[\d, ]*) \|.*\| (?:does not apply|not built yet|not in use): .+ \|$", re.MULTILINE
)

every_page = pytest.mark.parametrize("page", LAST)


def with_a_test(page: str) -> list[tuple[int, str]]:
    return [(int(number), named) for number, named in ROW.findall((PAGES / page).read_text())]


def without_a_test(page: str) -> list[int]:
    rows = OTHER.findall((PAGES / page).read_text())
    return [int(number) for numbers in rows for number in numbers.split(", ")]


def test_no_page_of_cases_is_forgotten() -> None:
    assert {path.name for path in PAGES.glob("public-cases*.md")} == set(LAST)


@every_page
def test_every_public_case_names_a_test_that_exists(page: str) -> None:
    for number, named in with_a_test(page):
        path, _, function = named.partition("::")
        tree = ast.parse((TESTS / path).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in functions, f"case {number}: {named}"


@every_page
def test_every_case_has_exactly_one_row(page: str) -> None:
    assert sorted([number for number, _ in with_a_test(page)] + without_a_test(page)) == list(
        range(1, LAST[page] + 1)
    )


@every_page
def test_cases_are_listed_in_order(page: str) -> None:
    numbers = [number for number, _ in with_a_test(page)]
    assert numbers == sorted(numbers)


@every_page
def test_every_line_of_a_table_was_understood(page: str) -> None:
    lines = [line for line in (PAGES / page).read_text().splitlines() if re.match(r"\| \d", line)]
    understood = [line for line in lines if ROW.match(line) or OTHER.match(line)]
    assert understood == lines
