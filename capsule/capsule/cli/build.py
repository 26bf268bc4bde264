"""`capsule build`: from pins to a capsule."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsule.builder.remembered import Memory, memory_of
from capsule.builder.unchanged import BuildAnswer, KnownBuilds
from capsule.cli.output import json_option, print_json, size_text
from capsule.clock import utc_now

if TYPE_CHECKING:
    from capsule_manifest.keys import Signer

__all__ = ["command"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(name="build", epilog="Example: capsule build --key release.key --output dist")
@click.option(
    "--release", "release_path", type=_FILE, default=Path("release.toml"), show_default=True,
    help="The release; release.lock lies beside it.",
)  # fmt: skip
@click.option(
    "--output", "-o", type=click.Path(file_okay=False, path_type=Path), default=Path("dist"),
    show_default=True, help="The folder of capsules; packs of earlier ones are reused.",
)  # fmt: skip
@click.option("--key", "key_path", type=_FILE, help="Sign with this release key.")
@click.option("--single-file", is_flag=True, help="Also write the single-file form.")
@click.option(
    "--check-reproducible", is_flag=True,
    help="Build the commit again elsewhere, under other conditions, and compare.",
)  # fmt: skip
@click.option("--forget", is_flag=True, help="Use nothing that earlier builds found out.")
@json_option
def command(
    release_path: Path,
    output: Path,
    key_path: Path | None,
    *,
    single_file: bool,
    check_reproducible: bool,
    forget: bool,
    as_json: bool,
) -> None:
    """Build a capsule directory from a clean commit and its lock. Asks no index for versions.

    What this machine built or proved since it was started is not done again.
    """
    signer = _signer(key_path) if key_path else None
    memory = Memory() if forget else memory_of(dict(os.environ))
    known = KnownBuilds(memory, release_path, today=utc_now().date())
    answer = None if check_reproducible else known.recall(output)
    if answer is None:
        answer = _build(release_path, output, memory, is_checked=check_reproducible)
    else:
        _report("nothing has changed since it was built")
    folder = output / answer.name
    if signer is not None:
        _sign(folder, signer)
    archive = _single_file(folder) if single_file else None
    for warning in answer.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        print_json(_fields(answer, folder, archive) | {"signed": signer is not None})
        return
    click.echo(f"{folder}")
    click.echo(
        f"  {answer.capsule}, {answer.components} components, {size_text(answer.content_bytes)}, "
        f"{answer.reused} reused, {'signed' if _has_signatures(folder) else 'not signed'}"
    )
    if archive:
        click.echo(f"  {archive}")


def _build(release_path: Path, output: Path, memory: Memory, *, is_checked: bool) -> BuildAnswer:
    # Imported when there is something to build: all of it takes longer than to see that not.
    from capsule.builder.build import build_release
    from capsule.builder.build_twice import check_reproducible
    from capsule.cli.lock import content_cache

    cache = content_cache(memory)
    today = utc_now().date()
    build = build_release(release_path, output, cache, today=today, report=_report)
    if is_checked:
        _report("a second time, elsewhere")
        check_reproducible(release_path, build.draft, dict(os.environ))
    return build.answer


def _signer(key_path: Path) -> "Signer":
    from capsule.builder.keyfile import load_signer

    return load_signer(key_path)


def _sign(folder: Path, signer: "Signer") -> None:
    from capsule.builder.signing import sign_directory

    sign_directory(folder, signer)


def _single_file(folder: Path) -> Path:
    from capsule.builder.single_file import write_single_file

    return write_single_file(folder)


def _fields(answer: BuildAnswer, folder: Path, archive: Path | None) -> dict[str, object]:
    return {
        "capsule": answer.capsule,
        "folder": str(folder),
        "file": str(archive) if archive else None,
        "product": answer.product,
        "version": answer.version,
        "release_counter": answer.release_counter,
        "components": answer.components,
        "reused": answer.reused,
        "warnings": list(answer.warnings),
        "waived_secrets": answer.waived_secrets,
    }


def _has_signatures(folder: Path) -> bool:
    """Return whether there are signatures: a finished directory keeps those that it has."""
    return any((folder / "signatures").glob("*.sigstore.json"))


def _report(text: str) -> None:
    click.echo(f"build: {text}", err=True)
