"""The error table and the code name the same ids, each once."""

import ast
from collections import Counter

from capsule_manifest.error_table import ROWS
from support.sources import modules

TABLE = "manifest/capsule_manifest/error_rows/"
RAISED = {"CapsuleError", "Failed", "Refused"}


def raised_ids():
    """Yield the place and id of every error that is made with a literal id."""
    for module in modules():
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            first = node.args[0]
            if node.func.id in RAISED and isinstance(first, ast.Constant):
                yield f"{module.name}:{node.lineno}", first.value


def literals():
    """Return every string literal outside the table: an id may be passed on by a helper."""
    return {
        node.value
        for module in modules()
        if not module.name.startswith(TABLE)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_error_that_is_raised_has_a_row():
    ids = list(raised_ids())
    assert len(ids) > 50, "the search itself found too little"
    assert [f"{where} {error_id}" for where, error_id in ids if error_id not in ROWS] == []


def test_every_row_belongs_to_an_error_that_the_code_names():
    assert sorted(set(ROWS) - literals()) == []


def test_no_id_has_two_rows():
    # Within a part and between parts the last row would be kept without a word.
    keys = Counter(
        key.value
        for part in modules()
        if part.name.startswith(TABLE)
        for node in ast.walk(part.tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    )
    assert [key for key, count in keys.items() if count > 1] == []
    assert set(keys) == set(ROWS)


def test_every_advice_is_a_step_in_lower_case_without_a_full_stop():
    odd = [
        error_id
        for error_id, (_, advice) in ROWS.items()
        if not advice or advice.endswith(".") or advice[0].isupper()
    ]
    assert odd == []
