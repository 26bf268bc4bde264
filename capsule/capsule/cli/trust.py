"""`capsule trust`: make or show a trust policy."""

from pathlib import Path

import click

from capsule.builder.keyfile import OwnedKey, load_public_key
from capsule.cli.controller import read_policy
from capsule.cli.output import json_option, print_heading, print_json, print_pairs, print_table
from capsule.durable import publish_once
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Refused
from capsule_manifest.policy import (
    Authority,
    AuthorityRule,
    Policy,
    PolicyKey,
    check_policy,
    encode_policy,
)

__all__ = ["command"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(name="trust", epilog="Example: capsule trust show trust.json")
def command() -> None:
    """Make or show a trust policy."""


@command.command(
    epilog="Example: capsule trust init --product acme/web --release-key ci.pub"
    " --route-key ops.pub --trust-key root.pub --output trust.json"
)
@click.option("--product", required=True, help="VENDOR/NAME, as in release.toml.")
@click.option(
    "--release-key", "release", type=_FILE, multiple=True, required=True, help="Signs releases."
)
@click.option(
    "--route-key", "route", type=_FILE, multiple=True, required=True, help="Signs routes."
)
@click.option(
    "--trust-key", "trust", type=_FILE, multiple=True, required=True, help="Signs the next policy."
)
@click.option(
    "--threshold", type=click.IntRange(min=1), default=1, show_default=True,
    help="How many owners must have signed a release.",
)  # fmt: skip
@click.option(
    "--floor", type=click.IntRange(min=0), default=0, show_default=True,
    help="The lowest release counter that hosts may install.",
)  # fmt: skip
@click.option("--output", "-o", type=_FILE, required=True, help="The policy's file.")
def init(
    product: str,
    release: tuple[Path, ...],
    route: tuple[Path, ...],
    trust: tuple[Path, ...],
    threshold: int,
    floor: int,
    output: Path,
) -> None:
    """Write a first policy from public keys. Each key serves one authority only."""
    named = {
        Authority.RELEASE: [load_public_key(path) for path in release],
        Authority.ROUTE: [load_public_key(path) for path in route],
        Authority.TRUST: [load_public_key(path) for path in trust],
    }
    policy = Policy(
        product=product,
        version=1,
        keys={
            owned.key.keyid: PolicyKey(
                key=owned.key, owner=owned.owner, counter_from=1, counter_to=None
            )
            for keys in named.values()
            for owned in keys
        },
        release=_rule(named[Authority.RELEASE], threshold),
        route=_rule(named[Authority.ROUTE], 1),
        trust=_rule(named[Authority.TRUST], 1),
        release_counter_floor=floor,
        revoked_capsules=frozenset(),
        revoked_keys=frozenset(),
    )
    check_policy(policy, str(output))
    raw = encode_policy(policy)
    if not publish_once(output, raw, mode=0o644):
        raise Refused(
            "key-exists", "a policy exists already; it is never overwritten", where=output
        )
    click.echo(f"{output}: policy {sha256_text(raw)}")


@command.command(epilog="Example: capsule trust show trust.json")
@click.argument("path", type=_FILE)
@json_option
def show(path: Path, *, as_json: bool) -> None:
    """Show whom a policy trusts with what."""
    policy = read_policy(path)
    rows = [
        {
            "key": item.key.short,
            "owner": item.owner,
            "authority": str(policy.authority_of(keyid) or "none"),
            "counters": f"{item.counter_from} to {item.counter_to or 'any'}",
            "state": "revoked" if keyid in policy.revoked_keys else "valid",
        }
        for keyid, item in policy.keys.items()
    ]
    if as_json:
        print_json(
            {
                "product": policy.product,
                "version": policy.version,
                "digest": sha256_text(encode_policy(policy)),
                "release_threshold": policy.release.threshold,
                "release_counter_floor": policy.release_counter_floor,
                "revoked_capsules": sorted(policy.revoked_capsules),
                "keys": rows,
            }
        )
        return
    print_pairs(
        [
            ("product", policy.product),
            ("version", str(policy.version)),
            ("digest", sha256_text(encode_policy(policy))),
            ("release threshold", f"{policy.release.threshold} owners"),
            ("lowest counter", str(policy.release_counter_floor)),
            ("revoked capsules", str(len(policy.revoked_capsules))),
        ]
    )
    print_heading("Keys")
    headers = ("key", "owner", "authority", "counters", "state")
    print_table(headers, [[row[name] for name in headers] for row in rows])


def _rule(keys: list[OwnedKey], threshold: int) -> AuthorityRule:
    return AuthorityRule(keys=tuple(owned.key.keyid for owned in keys), threshold=threshold)
