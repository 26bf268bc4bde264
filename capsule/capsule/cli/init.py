"""`capsule init`: write the first files of a release."""

import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from capsule.builder.starter import IGNORED, schema_files, starter_files
from capsule.cli.output import json_option, print_json
from capsule.durable import publish_once, replace_file
from capsule_manifest.errors import Refused
from capsule_manifest.release import PRODUCT

__all__ = ["command"]

_MACHINES: Final = ("x86_64", "aarch64")

_NEXT = """\
next:
  git add --all && git commit
  capsule lock && git add release.lock && git commit
  capsule key generate --owner me --out keys/release.key
  capsule build --key keys/release.key
docs/how-to/build-and-sign.md goes on from there."""


@click.command(name="init", epilog="Example: capsule init --product acme/web")
@click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), required=False
)
@click.option("--product", help="VENDOR/NAME.  [default: example/ and the folder's name]")
@click.option(
    "--schemas", "only_schemas", is_flag=True,
    help="Only write the JSON Schemas, again after an upgrade.",
)  # fmt: skip
@json_option
def command(folder: Path, product: str | None, *, only_schemas: bool, as_json: bool) -> None:
    """Write a first release.toml and fleet.toml, which build and install as they are.

    A file that exists is never overwritten: if one does, nothing is written.
    """
    if only_schemas:
        files = schema_files()
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(folder / name, data, mode=0o644)
    else:
        files = starter_files(
            _product(folder, product),
            machine=platform.machine() if platform.machine() in _MACHINES else _MACHINES[0],
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
        )
        _write(folder, files)
    is_ignored = only_schemas or publish_once(folder / ".gitignore", _ignored(), mode=0o644)
    if as_json:
        print_json({"folder": str(folder), "files": sorted(files)})
        return
    for name in sorted(files):
        click.echo(folder / name)
    if not is_ignored:
        click.echo(f".gitignore exists; it should have: {' '.join(IGNORED)}", err=True)
    if not only_schemas:
        click.echo(_NEXT, err=True)


def _product(folder: Path, given: str | None) -> str:
    if given is not None and not PRODUCT.fullmatch(given):
        raise click.BadParameter(
            "a product is VENDOR/NAME, lower case, digits and `-`", param_hint="--product"
        )
    if given is not None:
        return given
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    return f"example/{name[:63] or 'app'}"


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files, or none if one is there already."""
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise Refused(
            "file-exists",
            "a release begins here already",
            got=", ".join(sorted(there)),
            where=folder,
        )
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not publish_once(path, data, mode=0o644):
            raise Refused("file-exists", "a file appeared meanwhile", where=path)


def _ignored() -> bytes:
    return "".join(f"{line}\n" for line in IGNORED).encode()
