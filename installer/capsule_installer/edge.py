"""The process edge of the host program: what was raised becomes words and an exit code."""

from collections.abc import Callable
from contextlib import suppress

from capsule_installer.system.report import Reporter
from capsule_manifest.errors import CapsuleError, ExitCode

__all__ = ["exit_code_of"]


def exit_code_of(reporter: Reporter, work: Callable[[], object]) -> int:
    """Do `work`, report why it failed if it did, and return the exit code of the process.

    A number that `work` returns is the code, such as that of an op which was restored.
    """
    try:
        code = work()
    except CapsuleError as error:
        # Whoever asked may have gone; the exit code is then all that is left to tell.
        with suppress(BrokenPipeError):
            reporter.error(error)
        return int(error.exit_code)
    except BrokenPipeError:
        # The controller is gone; what has come of a transfer is kept.
        return int(ExitCode.TRANSFER_INCOMPLETE)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return code if isinstance(code, int) else int(ExitCode.DONE)
