"""`capsule key`: make a signing key."""

from pathlib import Path

import click

from capsule.builder.keyfile import generate_key
from capsule.cli.output import json_option, print_json

__all__ = ["command"]


@click.group(name="key", epilog="Example: capsule key generate --owner ci --out release.key")
def command() -> None:
    """Make a signing key."""


@command.command(epilog="Example: capsule key generate --owner ci --out release.key")
@click.option("--owner", required=True, help="Who will answer for what it signs.")
@click.option(
    "--out", "path", type=click.Path(dir_okay=False, path_type=Path), required=True,
    help="The private key's file; the public key goes to the same name with .pub.",
)  # fmt: skip
@json_option
def generate(owner: str, path: Path, *, as_json: bool) -> None:
    """Make an ECDSA P-256 key that only this user can read."""
    made = generate_key(path, owner=owner)
    if as_json:
        print_json({"keyid": made.key.keyid, "owner": made.owner, "private": str(path)})
        return
    click.echo(f"{path}: key {made.key.short} of {made.owner}; public half in {path}.pub")
