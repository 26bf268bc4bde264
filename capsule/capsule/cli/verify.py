"""`capsule verify`: check every byte of a capsule under a trust policy."""

from pathlib import Path

import click

from capsule.bootstrap import check_bootstrap
from capsule.builder.opened import open_capsule
from capsule.builder.verify import verify_capsule
from capsule.cli.controller import policy_option, read_policy
from capsule.cli.keyless import keyless_verifier, trusted_root_option
from capsule.cli.output import count_text, duration_text, json_option, print_json, size_text
from capsule.keyless.signing import hosts_refuse

__all__ = ["command"]


@click.command(
    name="verify", epilog="Example: capsule verify web-7-0a1b2c3d.capsule --policy trust.json"
)
@click.argument("path", type=click.Path(path_type=Path))
@policy_option
@trusted_root_option
@json_option
def command(
    path: Path, policy_path: Path, trusted_root_path: Path | None, *, as_json: bool
) -> None:
    """Check signatures first, then every tree, frame and object, in either form."""
    policy = read_policy(policy_path)
    keyless = keyless_verifier(policy, policy_path, trusted_root_path)
    source = open_capsule(path)
    found = verify_capsule(source, policy, keyless=keyless, report=_report)
    check_bootstrap(source, policy, found.capsule, found.release.release_counter)
    refusal = hosts_refuse(source, policy) if keyless is not None else None
    if as_json:
        print_json(
            {
                "capsule": found.capsule,
                "product": found.release.product,
                "version": found.release.version,
                "release_counter": found.release.release_counter,
                "owners": list(found.owners),
                "hosts_refuse": refusal.as_record() if refusal else None,
                "trees": found.trees,
                "packs": found.packs,
                "frames": found.frames,
                "objects": found.objects,
                "content_bytes": found.content_bytes,
                "took_ms": found.took_ms,
            }
        )
        return
    release = found.release
    click.echo(
        f"{release.product} {release.version} (counter {release.release_counter}) {found.capsule}"
    )
    click.echo(f"  signed by {', '.join(found.owners)}")
    click.echo(
        f"  {count_text(found.trees, 'tree')}, {count_text(found.frames, 'frame')}, "
        f"{count_text(found.objects, 'object')}, {size_text(found.content_bytes)}: "
        f"all as signed, in {duration_text(found.took_ms)}"
    )
    if refusal:
        click.echo(f"  hosts refuse it yet: {refusal}\n  next: {refusal.advice}")


def _report(name: str) -> None:
    click.echo(f"verify: {name}", err=True)
