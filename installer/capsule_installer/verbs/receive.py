"""`capsule receive`, for a person; a controller's own words take the short way."""

import click

from capsule_installer.greet import take_delivery
from capsule_installer.host.host import Host

__all__ = ["command"]


@click.command(name="receive", epilog="Example: capsule receive < stream")
@click.option(
    "--hello", "greets", is_flag=True, help="Say first who and how this host is, as `hello` does."
)
@click.pass_obj
def command(host: Host, *, greets: bool) -> None:
    """Take a capsule from standard input, verify it and stage it."""
    take_delivery(host, greets=greets)
