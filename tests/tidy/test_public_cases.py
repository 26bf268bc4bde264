"""The page of public cases is total: every case has one row, and every row's test exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "public-cases.md"
ROW = re.compile(r"^\| (\d+) \|.*\| `([^`]+)` \|$", re.MULTILINE)
OTHER = re.compile(
    r"^\| (\d[\d, ]*) \|.*\| (?:does not apply|not built yet|not in use): .+ \|$", re.MULTILINE
)
LAST = 74


def with_a_test() -> list[tuple[int, str]]:
    return [(int(number), named) for number, named in ROW.findall(PAGE.read_text())]


def without_a_test() -> list[int]:
    rows = OTHER.findall(PAGE.read_text())
    return [int(number) for numbers in rows for number in numbers.split(", ")]


def test_every_public_case_names_a_test_that_exists() -> None:
    for number, named in with_a_test():
        path, _, function = named.partition("::")
        tree = ast.parse((TESTS / path).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in functions, f"case {number}: {named}"


def test_every_case_has_exactly_one_row() -> None:
    assert sorted([number for number, _ in with_a_test()] + without_a_test()) == list(
        range(1, LAST + 1)
    )


def test_cases_are_listed_in_order() -> None:
    numbers = [number for number, _ in with_a_test()]
    assert numbers == sorted(numbers)


def test_every_line_of_a_table_was_understood() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    understood = [line for line in lines if ROW.match(line) or OTHER.match(line)]
    assert understood == lines
