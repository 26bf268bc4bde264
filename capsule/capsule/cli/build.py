"""`capsule build`: from pins to a capsule."""

from pathlib import Path

import click

from capsule.builder.assemble import Draft, assemble, draft_release
from capsule.builder.config import load_release
from capsule.builder.content_cache import ContentCache
from capsule.builder.keyfile import load_signer
from capsule.builder.lockfile import load_lock
from capsule.builder.remembered import Memory
from capsule.builder.resolve import resolve_release
from capsule.builder.secret_scan import check_secrets, find_secrets, load_waivers
from capsule.builder.signing import sign_directory
from capsule.builder.single_file import write_single_file
from capsule.cli.lock import content_cache
from capsule.cli.output import json_option, print_json, size_text
from capsule.clock import utc_now
from capsule_manifest.errors import Refused

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
@click.option("--check-reproducible", is_flag=True, help="Resolve and hash twice, compare the ids.")
@json_option
def command(
    release_path: Path,
    output: Path,
    key_path: Path | None,
    *,
    single_file: bool,
    check_reproducible: bool,
    as_json: bool,
) -> None:
    """Build a capsule directory from a clean commit and its lock. Asks no index for versions."""
    signer = load_signer(key_path) if key_path else None
    cache = content_cache()
    draft = _draft(release_path, cache)
    waived = _check_secrets(draft, release_path.with_name("secret-waivers.toml"))
    if check_reproducible:
        second = _draft(release_path, content_cache(Memory()))
        if second.capsule != draft.capsule:
            raise Refused(
                "not-reproducible", "two builds of one commit differ", expected=draft.capsule,
                got=second.capsule,
            )  # fmt: skip
    built = assemble(draft, output, report=_report, memory=cache.memory)
    if signer:
        sign_directory(built.folder, signer)
    archive = write_single_file(built.folder) if single_file else None
    for warning in built.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        print_json(
            {
                "capsule": built.capsule,
                "folder": str(built.folder),
                "file": str(archive) if archive else None,
                "product": built.release.product,
                "version": built.release.version,
                "release_counter": built.release.release_counter,
                "components": len(built.release.components),
                "reused": built.reused,
                "signed": signer is not None,
                "warnings": list(built.warnings),
                "waived_secrets": waived,
            }
        )
        return
    total = sum(component.content_bytes for component in built.release.components)
    click.echo(f"{built.folder}")
    click.echo(
        f"  {built.capsule}, {len(built.release.components)} components, {size_text(total)}, "
        f"{built.reused} reused, {'signed' if _is_signed(built.folder) else 'not signed'}"
    )
    if archive:
        click.echo(f"  {archive}")


def _is_signed(folder: Path) -> bool:
    """Return whether there are signatures: a finished directory keeps those that it has."""
    return any((folder / "signatures").glob("*.sigstore.json"))


def _draft(release_path: Path, cache: ContentCache) -> Draft:
    release = load_release(release_path)
    lock = load_lock(release_path.with_name("release.lock"))
    resolved = resolve_release(release, lock, cache, report=_report)
    return draft_release(release, resolved, report=_report)


def _check_secrets(draft: Draft, waivers: Path) -> int:
    """Refuse what looks like a secret and is not waived; return how many are."""
    found = find_secrets(draft.release.components, draft.listings)
    # The builder's calendar: a waiver is about people, and nothing of it enters the capsule.
    today = utc_now().date()
    return len(check_secrets(found, load_waivers(waivers), today=today))


def _report(text: str) -> None:
    click.echo(f"build: {text}", err=True)
