"""The page of what real inputs get wrong names tests that exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "real-inputs.md"
ROW = re.compile(r"^\| .+ \| .+ \| (.+) \| `([^`]+)` \|$", re.MULTILINE)
KINDS = (
    "wheel without a hash", "marker that is true only on the builder",
    "image index without the platform", "tag that moved since it was locked",
    "truncated download", "redirect to another host", "registry that answers 429",
    "archive that was changed", "git submodule", "LFS pointer", "`export-subst`",
    "CRLF attributes", "executable bit", "link that leads out", "names that differ only by case",
)  # fmt: skip


def functions_of(path: str) -> set[str]:
    """Return the names of a file's tests."""
    body = ast.parse((TESTS / path).read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_kind_has_a_row_and_every_row_a_test() -> None:
    text = PAGE.read_text()
    rows = ROW.findall(text)
    assert len(rows) == text.count("\n| ") - 2, "a row is malformed"
    assert [kind for kind in KINDS if f"\n| {kind}" not in text] == []
    named = [test.partition("::") for _, test in rows]
    assert [name for path, _, name in named if name not in functions_of(path)] == []
