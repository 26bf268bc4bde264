"""`capsule trust`: make and show a trust policy; its later life is in `trust_change`."""

from dataclasses import replace
from pathlib import Path

import click

from capsule.builder.keyfile import OwnedKey, load_public_key
from capsule.cli.controller import read_policy
from capsule.cli.output import (
    count_text,
    json_option,
    print_heading,
    print_json,
    print_pairs,
    print_table,
)
from capsule.cli.trust_change import CHANGES
from capsule.cli.trust_text import (
    DAY_S,
    age_text,
    digest_of_root,
    named_identities,
    signer_rows,
    time_text,
)
from capsule.clock import utc_now
from capsule.durable import publish_once
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Refused
from capsule_manifest.policy import (
    CLAIMS,
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
    """Make, show, change and update a trust policy."""


for _name, _change in CHANGES.items():
    command.add_command(_change, _name)


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
@click.option(
    "--trust-threshold", type=click.IntRange(min=1), default=1, show_default=True,
    help="How many owners must sign the next policy.",
)  # fmt: skip
@click.option(
    "--identity", "identities", type=(str, str, str), multiple=True,
    metavar="OWNER ISSUER SAN", help="A keyless signer of releases, by its exact names.",
)  # fmt: skip
@click.option(
    "--claim", "claims", type=(str, click.Choice(sorted(CLAIMS)), str), multiple=True,
    metavar="OWNER CLAIM VALUE", help="What the certificates of OWNER's identity must say, too.",
)  # fmt: skip
@click.option(
    "--trusted-root", type=_FILE, help="The Sigstore root file that keyless signers need."
)
@click.option(
    "--max-age-days", type=click.IntRange(min=1),
    help="After so many days the policy shows as stale, and no update takes it.",
)  # fmt: skip
@click.option("--output", "-o", type=_FILE, required=True, help="The policy's file.")
def init(
    product: str,
    release: tuple[Path, ...],
    route: tuple[Path, ...],
    trust: tuple[Path, ...],
    threshold: int,
    floor: int,
    trust_threshold: int,
    identities: tuple[tuple[str, str, str], ...],
    claims: tuple[tuple[str, str, str], ...],
    trusted_root: Path | None,
    max_age_days: int | None,
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
        identities=named_identities(identities, claims, counter_from=1),
        release=replace(
            _rule(named[Authority.RELEASE], threshold),
            identities=tuple(sorted(named_identities(identities, claims, counter_from=1))),
        ),
        route=_rule(named[Authority.ROUTE], 1),
        trust=_rule(named[Authority.TRUST], trust_threshold),
        release_counter_floor=floor,
        revoked_capsules=frozenset(),
        revoked_keys=frozenset(),
        trusted_root=None if trusted_root is None else digest_of_root(trusted_root),
        issued_s=int(utc_now().timestamp()),
        max_age_s=None if max_age_days is None else max_age_days * DAY_S,
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
    now = utc_now()
    rows = signer_rows(policy)
    if as_json:
        print_json(
            {
                "product": policy.product,
                "version": policy.version,
                "digest": sha256_text(encode_policy(policy)),
                "issued": time_text(policy.issued_s),
                "stale": policy.stale_s(int(now.timestamp())) is not None,
                "release_threshold": policy.release.threshold,
                "trust_threshold": policy.trust.threshold,
                "release_counter_floor": policy.release_counter_floor,
                "revoked_capsules": sorted(policy.revoked_capsules),
                "revoked_keys": sorted(policy.revoked_keys),
                "revoked_certificates": sorted(policy.revoked_certificates),
                "downgrades": {item.capsule: item.reason for item in policy.downgrades},
                "trusted_root": policy.trusted_root,
                "keys": rows,
            }
        )
        return
    print_pairs(
        [
            ("product", policy.product),
            ("version", str(policy.version)),
            ("digest", sha256_text(encode_policy(policy))),
            ("issued", age_text(policy, now)),
            ("release threshold", count_text(policy.release.threshold, "owner")),
            ("trust threshold", count_text(policy.trust.threshold, "owner")),
            ("lowest counter", str(policy.release_counter_floor)),
            ("revoked", count_text(len(policy.revoked_capsules), "capsule") + ", "
             + count_text(len(policy.revoked_keys), "key") + ", "
             + count_text(len(policy.revoked_certificates), "certificate")),
            ("trusted root", policy.trusted_root or "none: keyless signatures don't count"),
        ]
    )  # fmt: skip
    print_heading("Signers")
    headers = ("key", "owner", "authority", "counters", "state")
    print_table(headers, [[row[name] for name in headers] for row in rows])
    if policy.downgrades:
        print_heading("May be installed below the floor")
        print_table(
            ("capsule", "reason"), [(item.capsule, item.reason) for item in policy.downgrades]
        )


def _rule(keys: list[OwnedKey], threshold: int) -> AuthorityRule:
    return AuthorityRule(keys=tuple(owned.key.keyid for owned in keys), threshold=threshold)
