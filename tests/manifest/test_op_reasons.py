"""Which exit code an undone op ends with."""

import pytest

from capsule_manifest.errors import ExitCode, Failed
from capsule_manifest.op_reasons import restored_exit_code


@pytest.mark.parametrize(
    ("error_id", "code"),
    [
        ("network-violation", ExitCode.NETWORK_VIOLATION),
        ("guard-not-armed", ExitCode.GUARD_NOT_ARMED),
        ("guarded-step-failed", ExitCode.RESTORED),
        ("disk-full", ExitCode.RESTORED),
    ],
)
def test_an_op_ends_with_the_code_of_what_the_guard_found_and_else_as_restored(error_id, code):
    assert restored_exit_code(f"switched: {Failed(error_id, 'it failed', got='x')}") is code


@pytest.mark.parametrize(
    "reason",
    ["", "network-violation", "network-violation: by name", "the first deadline: no proof",
     "switched: a step said: network-violation: me"],
)  # fmt: skip
def test_words_of_others_choose_no_code(reason):
    assert restored_exit_code(reason) is ExitCode.RESTORED
