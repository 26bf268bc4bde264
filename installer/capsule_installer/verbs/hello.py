"""`capsule hello`: who and how this host is, with a nonce that binds an order to this moment."""

import click

from capsule_installer.greet import hello
from capsule_installer.host.host import Host

__all__ = ["command", "hello"]


@click.command(name="hello", epilog="Example: capsule hello")
@click.pass_obj
def command(host: Host) -> None:
    """Say who and how this host is, as one record."""
    host.prepare()
    host.reporter.record("hello", hello(host))
