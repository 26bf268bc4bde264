"""The short way to the verb `survey`: one record, started without the command line.

A fleet is asked for it all at once, and reading a command line takes longer than the answer.
`launch.py` recognises the words that a controller sends; any other spelling goes the long way and
says the same.
"""

from contextlib import suppress

from capsule_installer.clock import BootClock
from capsule_installer.disk import RealDisk
from capsule_installer.facts import RealMachine
from capsule_installer.layout import Layout, make_layout
from capsule_installer.processes import RealProcesses
from capsule_installer.report import Reporter, standard_reporter
from capsule_installer.services.choice import make_services
from capsule_installer.survey import Surveyor
from capsule_manifest.errors import CapsuleError, ExitCode
from capsule_manifest.survey import survey_value

__all__ = ["answer", "tell"]


def answer(root: str) -> int:
    """Tell of the host below `root` and return the exit code. The process edge of this way."""
    reporter = standard_reporter()
    try:
        tell(make_layout(root), reporter)
    except CapsuleError as error:
        # Whoever asked may have gone; the exit code is then all that is left to tell.
        with suppress(BrokenPipeError):
            reporter.error(error)
        return int(error.exit_code)
    except BrokenPipeError:
        return int(ExitCode.TRANSFER_INCOMPLETE)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.DONE)


def tell(layout: Layout, reporter: Reporter) -> None:
    """Write the survey of this machine's host below a layout."""
    disk, processes = RealDisk(), RealProcesses()
    surveyor = Surveyor(
        disk=disk,
        layout=layout,
        clock=BootClock(),
        machine=RealMachine(),
        services=make_services(disk, layout, processes),
        processes=processes,
    )
    reporter.record("survey", {"survey": survey_value(surveyor.look())})
