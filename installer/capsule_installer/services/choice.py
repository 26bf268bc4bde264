"""Which service manager this host has: systemd on a real host, plain processes below a folder."""

from capsule_installer.host.layout import Layout
from capsule_installer.services.base import ServiceManager
from capsule_installer.services.detached import (
    ProcessSupervisors,
    Supervisors,
    SystemdSupervisors,
    SystemdTimers,
)
from capsule_installer.services.process import ProcessServices
from capsule_installer.services.systemd import SystemdServices
from capsule_installer.services.timers import ProcessTimers, Timers
from capsule_installer.system.clock import Clock
from capsule_installer.system.disk import Disk
from capsule_installer.system.processes import Processes

__all__ = ["make_services", "make_supervisors", "make_timers", "manager_name"]

# Source: sd_booted(3).
_SYSTEMD_RUNS = "/run/systemd/system"


def manager_name(disk: Disk, layout: Layout) -> str:
    """Return `systemd` or `process`. A real host without systemd, a container, has processes."""
    return "systemd" if not layout.root and disk.stat(_SYSTEMD_RUNS) is not None else "process"


def make_services(disk: Disk, layout: Layout, processes: Processes) -> ServiceManager:
    """Return this host's service manager."""
    name = manager_name(disk, layout)
    kind = SystemdServices if name == "systemd" else ProcessServices
    script = f"{layout.recovery}/service-{name}.sh"
    return kind(disk=disk, layout=layout, processes=processes, script=script)


def make_supervisors(layout: Layout, processes: Processes, services: ServiceManager) -> Supervisors:
    """Return how supervisors are started on this host."""
    if services.name == "systemd":
        return SystemdSupervisors(services=services, processes=processes)
    return ProcessSupervisors(layout=layout, processes=processes)


def make_timers(
    layout: Layout, processes: Processes, services: ServiceManager, clock: Clock
) -> Timers:
    """Return how timers are started on this host."""
    if services.name == "systemd":
        return SystemdTimers(layout=layout, processes=processes, clock=clock)
    return ProcessTimers(layout=layout, processes=processes)
