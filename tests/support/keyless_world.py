"""A CI job and a reader: a capsule, a policy with one identity, and a loopback Sigstore."""

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sigstore.oidc import IdentityToken

from capsule.__main__ import main
from capsule.builder.signing import read_statements
from capsule.keyless.signer import sign_statements
from capsule_manifest.digest import sha256_text
from capsule_manifest.policy import Identity, Policy, encode_policy
from support.capsules import write_capsule
from support.documents import make_policy
from support.sigstore_instance import ISSUER, SUBJECT, SigstoreInstance

__all__ = ["IDENTITY", "Bundle", "KeylessWorld", "flip", "keyless_policy"]

Bundle = dict[str, Any]
IDENTITY = Identity(owner="ci", san=SUBJECT, issuer=ISSUER, counter_from=1, counter_to=None)


def keyless_policy(trusted_root: bytes, identity: Identity = IDENTITY) -> Policy:
    """Return a policy that lets one identity sign releases, beside the usual keys."""
    policy = make_policy()
    return replace(
        policy,
        identities={"release-workflow": identity},
        release=replace(policy.release, identities=("release-workflow",)),
        trusted_root=sha256_text(trusted_root),
    )


def flip(text: str) -> str:
    """Return base64 of the same bytes with one bit of the last changed: in DER, a signature's."""
    raw = bytearray(base64.b64decode(text))
    raw[-1] ^= 1
    return base64.b64encode(raw).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessWorld:
    """One folder with all that a job has. Bundles that are made once may be copied in."""

    folder: Path
    instance: SigstoreInstance
    rekor: int = 1

    @property
    def capsule(self) -> Path:
        return self.folder / "web.capsule"

    @property
    def policy_path(self) -> Path:
        return self.folder / "trust.json"

    def prepare(self) -> "KeylessWorld":
        """Write an unsigned capsule, the instance's files, a policy and a token."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_capsule(self.capsule, signers=())
        _, root = self.instance.write(self.folder, rekor=self.rekor)
        self.put_policy(keyless_policy(root.read_bytes()))
        self.put_token(self.instance.token())
        return self

    def copy(self, folder: Path) -> "KeylessWorld":
        """Return the same world in another folder, to be spoiled there."""
        shutil.copytree(self.folder, folder)
        return replace(self, folder=folder)

    def put_policy(self, policy: Policy) -> None:
        self.policy_path.write_bytes(encode_policy(policy))

    def change_policy(self, change: Callable[[Policy], Policy]) -> None:
        root = (self.folder / "trusted_root.json").read_bytes()
        self.put_policy(change(keyless_policy(root)))

    def put_root(self, document: object) -> None:
        """Write another trusted root, and a policy that pins it."""
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        (self.folder / "trusted_root.json").write_bytes(raw)
        self.put_policy(keyless_policy(raw))

    def put_token(self, token: str | bytes) -> None:
        raw = token if isinstance(token, bytes) else token.encode()
        (self.folder / "token").write_bytes(raw)

    def sign(self, *more: str) -> int:
        """Run the command of a CI job."""
        return main(
            [
                "sign", str(self.capsule), "--keyless", "--policy", str(self.policy_path),
                "--trust-config", str(self.folder / "trust-config.json"),
                "--identity-token", str(self.folder / "token"), *more,
            ]
        )  # fmt: skip

    def sign_by_hand(self, token: str | None = None) -> dict[str, bytes]:
        """Sign without the check by the policy, as another client would."""
        made = sign_statements(
            read_statements(self.capsule).payloads,
            IdentityToken(token or self.instance.token()),
            trust_config=self.folder / "trust-config.json",
        )
        for subject, raw in made.items():
            (self.capsule / "signatures" / f"{subject}-hand.sigstore.json").write_bytes(raw)
        return made

    def verify(self, *more: str) -> int:
        return main(["verify", str(self.capsule), "--policy", str(self.policy_path), *more])

    def signatures(self, subject: str = "release") -> list[Path]:
        return sorted((self.capsule / "signatures").glob(f"{subject}-*"))

    def change_bundle(self, change: Callable[[Bundle], object]) -> None:
        """Change the release bundle in place, as JSON."""
        (path,) = self.signatures()
        bundle = json.loads(path.read_bytes())
        change(bundle)
        path.write_text(json.dumps(bundle))
