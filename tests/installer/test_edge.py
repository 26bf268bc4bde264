"""Each way a verb can end has its exit code, and a reader that went away hides none of them."""

import pytest

from capsule_installer.edge import exit_code_of
from capsule_manifest.errors import CapsuleError, ExitCode, Failed, Refused


class Reports:
    """Remember the error that was reported, or be a pipe whose reader has gone."""

    def __init__(self, *, is_gone=False):
        self.is_gone, self.errors = is_gone, []

    def error(self, error):
        if self.is_gone:
            raise BrokenPipeError
        self.errors.append(error)


def raising(error):
    def work():
        raise error

    return work


REFUSED = Refused("key-unknown", "a stranger's key", where="here")
FULL = Failed("disk-full", "no room", where="here")


@pytest.mark.parametrize(
    ("work", "code"),
    [
        pytest.param(lambda: None, ExitCode.DONE, id="nothing to say"),
        pytest.param(lambda: int(ExitCode.RESTORED), ExitCode.RESTORED, id="a code of its own"),
        pytest.param(raising(REFUSED), REFUSED.exit_code, id="refused"),
        pytest.param(raising(FULL), FULL.exit_code, id="failed"),
        pytest.param(raising(BrokenPipeError()), ExitCode.TRANSFER_INCOMPLETE, id="reader gone"),
        pytest.param(raising(KeyboardInterrupt()), ExitCode.INTERRUPTED, id="interrupted"),
    ],
)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_verb_ends_with_its_code_whether_or_not_anybody_listens(work, code, is_gone):
    assert exit_code_of(Reports(is_gone=is_gone), work) == int(code)


@pytest.mark.parametrize("error", [REFUSED, FULL], ids=lambda error: error.error_id)
def test_a_failure_is_reported_once(error: CapsuleError):
    reports = Reports()
    exit_code_of(reports, raising(error))
    assert reports.errors == [error]


def test_a_mistake_of_the_program_is_not_taken_for_an_answer():
    with pytest.raises(ZeroDivisionError):
        exit_code_of(Reports(), lambda: 1 // 0)
