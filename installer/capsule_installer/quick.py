"""The short way to the verb `survey`: one record, started without the command line.

A fleet is asked for it all at once, and reading a command line takes longer than the answer.
`launch.py` recognises the words that a controller sends; any other spelling goes the long way and
says the same.
"""

from capsule_installer.care.survey import Surveyor
from capsule_installer.edge import exit_code_of
from capsule_installer.host.layout import Layout, make_layout
from capsule_installer.services.choice import make_services
from capsule_installer.system.accounts import FolderAccounts, HostAccounts
from capsule_installer.system.clock import BootClock
from capsule_installer.system.disk import RealDisk
from capsule_installer.system.facts import RealMachine
from capsule_installer.system.processes import RealProcesses
from capsule_installer.system.report import Reporter, standard_reporter
from capsule_manifest.survey import survey_value

__all__ = ["answer", "tell"]


def answer(root: str) -> int:
    """Tell of the host below `root` and return the exit code. The process edge of this way."""
    reporter = standard_reporter()
    return exit_code_of(reporter, lambda: tell(make_layout(root), reporter))


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
        accounts=FolderAccounts() if layout.root else HostAccounts(),
    )
    reporter.record("survey", {"survey": survey_value(surveyor.look())})
