"""The verb `survey` on the command line, for people and for spellings that `quick` doesn't know."""

import click

from capsule_installer.host.host import Host
from capsule_installer.quick import tell

__all__ = ["command"]


@click.command(name="survey", epilog="Example: capsule survey")
@click.pass_obj
def command(host: Host) -> None:
    """Say everything that identifies this host and what it runs, as one record."""
    tell(host.layout, host.reporter)
