"""What commands that meet keyless signatures share: their option, and which verifier they use."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from capsule.keyless.verifier import SigstoreVerifier, load_verifier
from capsule_manifest.policy import Policy

__all__ = ["keyless_verifier", "trusted_root_option"]

_ROOT_NAME: Final = "trusted_root.json"

Function = TypeVar("Function", bound=Callable[..., object])


def trusted_root_option(function: Function) -> Function:
    """Add `--trusted-root`."""
    return click.option(
        "--trusted-root",
        "trusted_root_path",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"Sigstore trusted root that the policy pins.  [default: {_ROOT_NAME} beside it]",
    )(function)


def keyless_verifier(
    policy: Policy, policy_path: Path, trusted_root_path: Path | None
) -> SigstoreVerifier | None:
    """Return a verifier when the policy knows keyless identities; None when it knows keys only.

    Raises:
        Refused: `trusted-root-malformed`.
        Failed: `trusted-root-missing`, `controller-disk`.
    """
    if not policy.identities and trusted_root_path is None:
        return None
    return load_verifier(trusted_root_path or policy_path.with_name(_ROOT_NAME))
