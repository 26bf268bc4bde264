"""The page of hostile input covers every kind, and says what its tests assert."""

import ast
import re
from pathlib import Path

from capsule_manifest.error_table import ROWS

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "hostile-input.md"
ROW = re.compile(r"^\| (.+) \| (.+) \| (.+) \| (.+) \| `([^`]+)` \|$", re.MULTILINE)
KINDS = (
    "cut off in any member, directory form",
    "cut off anywhere, single-file form",
    "flipped bit in any member, directory form",
    "flipped bit anywhere, single-file form",
    "wrong signature",
    "wrong key",
    "wrong authority",
    "signatures of another capsule",
    "replayed older counter",
    "absolute path",
    "`..`",
    "link that escapes",
    "duplicate entry",
    "device",
    "name that is not UTF-8",
    "frame bomb",
    "window too large",
    "manifest of 100 MB",
    "depth bomb",
    "wheel with a bad RECORD",
    "sdist in a lock",
    "missing hash",
    "wheel for another platform or a newer glibc",
    "read-only target",
    "full disk, bytes and inodes, in the middle",
    "hostile environment",
    "every decoder",
)


def rows() -> list[tuple[str, str, str, str]]:
    """Return the input, the ids, the exit code and the test of each row."""
    found = ROW.findall(PAGE.read_text())
    return [(kind, ids, code, named) for kind, _, ids, code, named in found]


def source_of(named: str) -> str:
    """Return the text of a test with its parameters, "" when there is no such test."""
    path, _, function = named.partition("::")
    text = (TESTS / path).read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return ""


def test_every_kind_of_hostile_input_has_a_row() -> None:
    inputs = [kind for kind, *_ in rows()]
    assert [kind for kind in KINDS if not any(kind in text for text in inputs)] == []


def test_every_row_of_the_page_was_understood() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if "::" in line]
    assert len(lines) == len(rows())


def test_every_row_names_a_test_that_asserts_its_ids() -> None:
    for kind, ids, _, named in rows():
        source = source_of(named)
        assert source, f"{kind}: there is no {named}"
        for error_id in re.findall(r"`([^`]+)`", ids):
            assert f'"{error_id}"' in source, f"{kind}: {named} does not speak of {error_id}"


def test_every_row_has_the_exit_code_of_its_ids() -> None:
    for kind, ids, code, _ in rows():
        codes = {str(int(ROWS[error_id][0])) for error_id in re.findall(r"`([^`]+)`", ids)}
        if codes and code != "that of the id":
            assert codes == {code}, kind
