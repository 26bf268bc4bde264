"""`capsule bootstrap`: let a capsule be verified and started on a bare host, by hand."""

from pathlib import Path

import click

from capsule.bootstrap import add_bootstrap
from capsule.builder.keyfile import load_signer
from capsule.cli.controller import policy_option, read_policy
from capsule.cli.output import json_option, print_json
from capsule.payload import open_payload

__all__ = ["command"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    name="bootstrap",
    epilog="Example: capsule bootstrap web-7-0a1b2c3d.capsule --policy trust.json --key qa.key",
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@policy_option
@click.option("--key", "key", type=_FILE, required=True, help="A key with the release authority.")
@json_option
def command(folder: Path, policy_path: Path, key: Path, *, as_json: bool) -> None:
    """Add the files with which a host that has only Python and openssl verifies this capsule.

    The capsule's id does not change. On the host: python3 -I -S CAPSULE/bootstrap/bootstrap.py
    """
    payload = open_payload(folder, read_policy(policy_path))
    platforms = add_bootstrap(folder, payload, load_signer(key))
    if as_json:
        print_json({"capsule": payload.capsule, "platforms": platforms})
        return
    click.echo(f"{payload.capsule}: bootstrap files for {', '.join(platforms)}")
