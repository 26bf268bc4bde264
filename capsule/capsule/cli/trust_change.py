"""`capsule trust revise|check|export|sign|update`: a policy's life after the first one.

`revise` writes the next version, `export` puts it on a medium, `sign` adds another owner's
signature there, `update` takes it where it was carried to, and `check` says beforehand whether it
would be taken.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from capsule.builder.keyfile import load_public_key, load_signer
from capsule.cli.controller import read_policy
from capsule.cli.output import json_option, print_json, print_pairs
from capsule.cli.trust_text import (
    DAY_S,
    age_text,
    digest_of_root,
    named_identities,
    read_root,
    signer_rows,
)
from capsule.clock import utc_now
from capsule.durable import publish_once
from capsule.trust.revision import Revision, revise
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Refused
from capsule_manifest.policy import CLAIMS, Authority, Policy, encode_policy

__all__ = ["CHANGES"]

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_TRUST_FOLDER: Final = Path("/etc/capsule/trust")

_trust_folder_option = click.option(
    "--trust-dir", "folder", type=_FOLDER, default=_TRUST_FOLDER, show_default=True,
    help="Where this machine keeps what it trusts.",
)  # fmt: skip


@click.command(
    "revise",
    epilog="Example: capsule trust revise trust.json --retire 0a1b2c3d 41 --output trust-2.json",
)
@click.argument("path", type=_FILE)
@click.option(
    "--add-key", "added", type=(click.Choice(["release", "route", "trust"]), _FILE), multiple=True,
    metavar="AUTHORITY FILE", help="Let a public key use an authority.",
)  # fmt: skip
@click.option(
    "--identity", "identities", type=(str, str, str), multiple=True,
    metavar="OWNER ISSUER SAN", help="Add a keyless signer of releases.",
)  # fmt: skip
@click.option(
    "--claim", "claims", type=(str, click.Choice(sorted(CLAIMS)), str), multiple=True,
    metavar="OWNER CLAIM VALUE", help="What the certificates of OWNER's identity must say, too.",
)  # fmt: skip
@click.option(
    "--retire", type=(str, click.IntRange(min=0)), multiple=True, metavar="SIGNER COUNTER",
    help="Let a signer cover no release above COUNTER; older ones stay good.",
)  # fmt: skip
@click.option(
    "--revoke-key", multiple=True, metavar="KEY",
    help="End all that a key signed; a controller's is given by its public file or whole id.",
)  # fmt: skip
@click.option("--remove-key", multiple=True, metavar="KEY", help="Take a key off the list.")
@click.option("--revoke-capsule", multiple=True, metavar="ID", help="Refuse one capsule for ever.")
@click.option(
    "--revoke-certificate", multiple=True, metavar="SHA256", help="Refuse one certificate."
)
@click.option(
    "--allow", type=(str, str), multiple=True, metavar="ID REASON",
    help="Let one capsule be installed below the floor; receipts repeat the reason.",
)  # fmt: skip
@click.option("--floor", type=click.IntRange(min=0), help="The lowest release counter.")
@click.option("--release-threshold", type=click.IntRange(min=1), help="Owners for a release.")
@click.option("--trust-threshold", type=click.IntRange(min=1), help="Owners for a policy.")
@click.option("--trusted-root", type=_FILE, help="The Sigstore root file.")
@click.option("--max-age-days", type=click.IntRange(min=1), help="When it counts as stale.")
@click.option("--output", "-o", type=_FILE, required=True, help="The new policy's file.")
def _revise(
    path: Path,
    added: tuple[tuple[str, Path], ...],
    identities: tuple[tuple[str, str, str], ...],
    claims: tuple[tuple[str, str, str], ...],
    retire: tuple[tuple[str, int], ...],
    revoke_key: tuple[str, ...],
    remove_key: tuple[str, ...],
    revoke_capsule: tuple[str, ...],
    revoke_certificate: tuple[str, ...],
    allow: tuple[tuple[str, str], ...],
    floor: int | None,
    release_threshold: int | None,
    trust_threshold: int | None,
    trusted_root: Path | None,
    max_age_days: int | None,
    output: Path,
) -> None:
    """Write the next version of a policy. Hosts take it once the trust owners signed it."""
    policy = read_policy(path)
    owned = [(Authority(name), load_public_key(key)) for name, key in added]
    thresholds = {Authority.RELEASE: release_threshold, Authority.TRUST: trust_threshold}
    revision = Revision(
        add_keys=[(authority, item.owner, item.key) for authority, item in owned],
        add_identities=named_identities(
            identities, claims, counter_from=policy.release_counter_floor
        ),
        retire=dict(retire),
        revoke_keys=[_key_name(name) for name in revoke_key],
        remove_keys=remove_key,
        revoke_capsules=revoke_capsule,
        revoke_certificates=revoke_certificate,
        allow=dict(allow),
        thresholds={name: value for name, value in thresholds.items() if value is not None},
        floor=floor,
        trusted_root=None if trusted_root is None else digest_of_root(trusted_root),
        max_age_s=None if max_age_days is None else max_age_days * DAY_S,
    )
    revised = revise(policy, revision, issued_s=int(utc_now().timestamp()))
    raw = encode_policy(revised)
    if not publish_once(output, raw, mode=0o644):
        raise Refused(
            "key-exists", "a policy exists already; it is never overwritten", where=output
        )
    click.echo(f"{output}: policy version {revised.version} {sha256_text(raw)}")


@click.command(
    "export",
    epilog="Example: capsule trust export trust-2.json --key root.key --medium /media/usb/trust",
)
@click.argument("path", type=_FILE)
@click.option(
    "--key", "keys", type=_FILE, multiple=True, required=True, help="A key with trust authority."
)
@click.option("--medium", "medium", type=_FOLDER, required=True, help="The folder to carry.")
@click.option("--trusted-root", type=_FILE, help="The Sigstore root file that the policy pins.")
@click.option(
    "--days", type=click.IntRange(min=1, max=3650), default=90, show_default=True,
    help="How long the medium stays fresh.",
)  # fmt: skip
@json_option
def _export(
    path: Path,
    keys: tuple[Path, ...],
    medium: Path,
    trusted_root: Path | None,
    days: int,
    *,
    as_json: bool,
) -> None:
    """Put a signed policy on a medium; continues from what the medium holds."""
    from capsule.trust.medium import Medium  # tuf costs more than most commands

    written = Medium(medium).write(
        read_policy(path),
        [load_signer(key) for key in keys],
        now=utc_now(),
        days=days,
        trusted_root=None if trusted_root is None else read_root(trusted_root),
    )
    fields = {
        "policy": written.policy,
        "metadata": written.metadata,
        "root": written.root,
        "expires": written.expires.isoformat(),
    }
    if as_json:
        print_json(fields)
        return
    click.echo(
        f"{medium}: policy version {written.policy}, fresh until {written.expires:%Y-%m-%d}; "
        f"signed by {len(keys)} of the keys that it needs"
    )


@click.command("sign", epilog="Example: capsule trust sign /media/usb/trust --key second.key")
@click.argument("medium", type=_FOLDER)
@click.option("--key", "key", type=_FILE, required=True, help="A key with trust authority.")
@click.option("--digest", help="Sign only the policy with this digest, as `trust show` prints it.")
def _sign(medium: Path, key: Path, digest: str | None) -> None:
    """Add another owner's signature to what a medium holds."""
    from capsule.trust.medium import Medium  # tuf costs more than most commands

    signer = load_signer(key)
    written = Medium(medium).add_signature(signer, digest=digest)
    click.echo(f"{medium}: policy version {written.policy} signed with key {signer.public.short}")


@click.command("update", epilog="Example: capsule trust update /media/usb/trust")
@click.argument("medium", type=_FOLDER)
@_trust_folder_option
@click.option("--pin", type=_FILE, help="Take this first policy on your word.")
@json_option
def _update(medium: Path, folder: Path, pin: Path | None, *, as_json: bool) -> None:
    """Take the policy and trusted root that a medium brings, if they are newest and fresh."""
    _take(medium, folder, pin, keep=True, as_json=as_json)


@click.command("check", epilog="Example: capsule trust check trust.json --medium /media/usb/trust")
@click.argument("path", type=_FILE, required=False)
@click.option("--medium", type=_FOLDER, help="Say whether this medium would be taken.")
@_trust_folder_option
@json_option
def _check(path: Path | None, medium: Path | None, folder: Path, *, as_json: bool) -> None:
    """Look for what will go wrong: stale policies, spent keys, thresholds with no one to spare."""
    if medium is not None:
        _take(medium, folder, None, keep=False, as_json=as_json)
        return
    policy = read_policy(path or folder / "policy.json")
    warnings = _warnings(policy)
    if as_json:
        print_json({"version": policy.version, "warnings": warnings})
        return
    click.echo(f"policy version {policy.version}, issued {age_text(policy, utc_now())}")
    for warning in warnings:
        click.echo(f"  warning: {warning}")
    if not warnings:
        click.echo("  nothing to warn of")


def _key_name(name: str) -> str:
    """Return the id of the key in a public file, or the name as it was given."""
    path = Path(name)
    return load_public_key(path).key.keyid if path.suffix == ".pub" else name


def _take(medium: Path, folder: Path, pin: Path | None, *, keep: bool, as_json: bool) -> None:
    from capsule.trust.medium import Medium  # tuf costs more than most commands
    from capsule.trust.updating import TrustFolder

    trust = TrustFolder(folder)
    if pin is not None:
        trust.pin(read_policy(pin))
    taken = trust.update(Medium(medium), now=utc_now(), keep=keep)
    digest = sha256_text(encode_policy(taken.policy))
    if as_json:
        print_json(
            {
                "kept": keep,
                "before": taken.before,
                "version": taken.policy.version,
                "digest": digest,
                "metadata": taken.metadata,
                "expires": taken.expires.isoformat(),
            }
        )
        return
    moved = (
        f"version {taken.before} to {taken.policy.version}"
        if taken.before != taken.policy.version
        else f"version {taken.before} stays"
    )
    print_pairs(
        [
            ("policy", moved if keep else f"{moved}, if it were taken"),
            ("digest", digest),
            ("fresh until", f"{taken.expires:%Y-%m-%d %H:%M:%S} UTC"),
        ]
    )
    if keep:
        click.echo(f"for hosts: `capsule stage … --policy {folder / 'policy.json'}` brings it")


def _warnings(policy: Policy) -> list[str]:
    found = []
    over_s = policy.stale_s(int(utc_now().timestamp()))
    if over_s is not None:
        found.append(f"stale since {over_s // DAY_S} days; bring a newer one")
    for authority in (Authority.RELEASE, Authority.ROUTE, Authority.TRUST):
        rule = policy.rule(authority)
        live = {
            policy.keys[keyid].owner for keyid in rule.keys if keyid not in policy.revoked_keys
        } | {policy.identities[name].owner for name in rule.identities}
        if len(live) < rule.threshold:
            found.append(f"nobody can use the {authority} authority: {len(live)} owners are left")
        elif len(live) == rule.threshold and authority is not Authority.ROUTE:
            found.append(f"losing one owner ends the {authority} authority")
    voices = {
        policy.keys[keyid].owner
        for keyid in policy.release.keys
        if keyid not in policy.revoked_keys
    }
    if policy.identities and len(voices) < policy.release.threshold:
        found.append(
            f"hosts refuse every release: they count keys, {len(voices)} owners have one, and "
            f"{policy.release.threshold} must sign"
        )
    found += [
        f"{row['key']} of {row['owner']} covers no release that may still be installed"
        for row in signer_rows(policy)
        if row["state"] == "spent"
    ]
    return found


CHANGES: Final[Mapping[str, click.Command]] = {
    command.name or "": command for command in (_revise, _check, _export, _sign, _update)
}
