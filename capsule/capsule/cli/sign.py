"""`capsule sign`: add a signature to a capsule."""

from pathlib import Path

import click

from capsule.builder.keyfile import load_signer
from capsule.builder.signing import sign_directory
from capsule.cli.output import json_option, print_json

__all__ = ["command"]


@click.command(name="sign", epilog="Example: capsule sign dist/web-7-0a1b2c3d.capsule --key qa.key")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--key", "key_path", type=click.Path(dir_okay=False, path_type=Path), required=True,
    help="A key with the release authority.",
)  # fmt: skip
@json_option
def command(folder: Path, key_path: Path, *, as_json: bool) -> None:
    """Add a release and a packing signature. The capsule's id does not change."""
    signer = load_signer(key_path)
    capsule = sign_directory(folder, signer)
    if as_json:
        print_json({"capsule": capsule, "key": signer.public.short})
        return
    click.echo(f"{capsule}: signed with key {signer.public.short}")
