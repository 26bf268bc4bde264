"""`capsule sign`: add a signature to a capsule, by a key or keyless."""

from datetime import UTC, datetime
from pathlib import Path

import click

from capsule.builder.keyfile import load_signer
from capsule.builder.opened import open_capsule
from capsule.builder.signing import check_owner, sign_directory
from capsule.builder.verify import verify_capsule
from capsule.cli.controller import read_policy
from capsule.cli.keyless import keyless_verifier, trusted_root_option
from capsule.cli.output import json_option, print_json, print_pairs
from capsule_manifest.errors import Refused

__all__ = ["command"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    name="sign",
    epilog="\b\nExample: capsule sign dist/web-7-0a1b2c3d.capsule --key qa.key\n"
    "In CI:   capsule sign dist/web-7-0a1b2c3d.capsule --keyless --policy trust.json",
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--key", "key_path", type=_FILE, help="A key with the release authority.")
@click.option(
    "--keyless", is_flag=True, help="Sign by Sigstore as the CI job that this is; needs --policy."
)
@click.option(
    "--policy", "policy_path", type=_FILE,
    help="The hosts' trust policy: a keyless signature is written only if it counts there.",
)  # fmt: skip
@click.option(
    "--as", "owner", metavar="OWNER",
    help="Counter-sign as this owner of --policy; refused if the key is not his.",
)  # fmt: skip
@click.option(
    "--vouched-by", "origin", type=_FILE, metavar="POLICY",
    help="Check every byte under this policy first: the one of where the capsule comes from.",
)  # fmt: skip
@trusted_root_option
@click.option(
    "--trust-config", "trust_config", type=_FILE,
    help="Client trust configuration of a Sigstore instance.  [default: the public one]",
)  # fmt: skip
@click.option(
    "--identity-token", "token_path", type=_FILE,
    help="File with an identity token.  [default: $CAPSULE_IDENTITY_TOKEN, then the CI system's]",
)  # fmt: skip
@json_option
def command(
    folder: Path,
    key_path: Path | None,
    policy_path: Path | None,
    owner: str | None,
    origin: Path | None,
    trusted_root_path: Path | None,
    trust_config: Path | None,
    token_path: Path | None,
    *,
    keyless: bool,
    as_json: bool,
) -> None:
    """Add a release and a packing signature. The capsule's id does not change."""
    if keyless == (key_path is not None):
        raise click.UsageError("give either --key or --keyless")
    if origin is not None:
        vouching = read_policy(origin)
        verifier = keyless_verifier(vouching, origin, trusted_root_path)
        verify_capsule(open_capsule(folder), vouching, report=_report, keyless=verifier)
    if keyless:
        if policy_path is None:
            raise click.UsageError("--keyless needs --policy, the trust policy that hosts have")
        _sign_keyless(
            folder, policy_path, trusted_root_path, trust_config, token_path, as_json=as_json
        )
        return
    assert key_path is not None, "one of the two is given"
    signer = load_signer(key_path)
    if owner is not None:
        if policy_path is None:
            raise click.UsageError("--as needs --policy, the trust policy that names the owner")
        check_owner(read_policy(policy_path), signer.public, owner, folder)
    capsule = sign_directory(folder, signer)
    if as_json:
        print_json({"capsule": capsule, "key": signer.public.short})
        return
    click.echo(f"{capsule}: signed with key {signer.public.short}")


def _sign_keyless(
    folder: Path,
    policy_path: Path,
    trusted_root_path: Path | None,
    trust_config: Path | None,
    token_path: Path | None,
    *,
    as_json: bool,
) -> None:
    from capsule.keyless.signing import sign_directory_keyless
    from capsule.keyless.token import identity_token

    policy = read_policy(policy_path)
    verifier = keyless_verifier(policy, policy_path, trusted_root_path)
    if verifier is None:
        raise Refused(
            "identity-unknown",
            "the policy names no keyless identity",
            expected="the identity that signs here",
            where=policy_path,
        )
    token = identity_token(token_path)
    signed = sign_directory_keyless(
        folder, policy=policy, verifier=verifier, token=token, trust_config=trust_config
    )
    identity, refusal = signed.signature.identity, signed.hosts_refuse
    signed_at = datetime.fromtimestamp(signed.signature.signed_s, tz=UTC).isoformat()
    if as_json:
        print_json(
            {
                "capsule": signed.capsule,
                "identity": signed.signature.name,
                "owner": identity.owner,
                "subject": identity.san,
                "issuer": identity.issuer,
                "certificate": signed.signature.certificate,
                "signed_at": signed_at,
                "trusted_root": verifier.trusted_root,
                "files": [str(path) for path in signed.files],
                "hosts_refuse": refusal.as_record() if refusal else None,
            }
        )
        return
    click.echo(f"{signed.capsule}: signed keyless as {signed.signature.name}")
    print_pairs(
        [
            ("  owner", identity.owner),
            ("  subject", identity.san),
            ("  issuer", identity.issuer),
            ("  signed", signed_at),
            ("  proved by", f"trusted root {verifier.trusted_root}"),
            ("  hosts", f"refuse it yet: {refusal}" if refusal else "accept it"),
        ]
    )
    if refusal:
        click.echo(f"  next: {refusal.advice}", err=True)


def _report(name: str) -> None:
    click.echo(f"verify: {name}", err=True)
