"""Attestations that others published by the public Sigstore instance, as bundles.

Source: PEP 740; the source distribution of `pypi-attestations`, whose tests have them.
"""

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import sigstore._store

from support.foreign import source_distribution

__all__ = ["PUBLIC", "STAGING", "public_root_bytes", "published_attestations"]

_GITHUB = "https://token.actions.githubusercontent.com"
_MODELS = (
    "https://github.com/trailofbits/pypi-attestation-models/"
    ".github/workflows/release.yml@refs/tags/v0.0.4a2"
)
_ATTESTATIONS = (
    "https://github.com/trailofbits/pypi-attestations/"
    ".github/workflows/release.yml@refs/tags/v0.0.19"
)
_GITLAB = "https://gitlab.com/facutuesca/gitlab-oidc-project//.gitlab-ci.yml@refs/heads/main"

# file: subject, issuer
PUBLIC = {
    "pypi_attestation_models-0.0.4a2.tar.gz.sigstore": (_MODELS, _GITHUB),
    "pypi_attestation_models-0.0.4a2.tar.gz.attestation": (_MODELS, _GITHUB),
    "pypi_attestations-0.0.19.tar.gz.publish.attestation": (_ATTESTATIONS, _GITHUB),
    "pypi_attestations-0.0.19.tar.gz.slsa.attestation": (_ATTESTATIONS, _GITHUB),
    "gitlab_oidc_project-0.0.3.tar.gz.publish.attestation": (_GITLAB, "https://gitlab.com"),
}
STAGING = "rfc8785-0.1.2-py3-none-any.whl.sigstore"


@cache
def published_attestations() -> dict[str, dict[str, Any]]:
    """Return the bundles of `PUBLIC` and `STAGING` by file name; skip where they can't be had."""
    found = {}
    with tarfile.open(source_distribution("pypi-attestations==0.0.30")) as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            if name in PUBLIC or name == STAGING:
                stream = archive.extractfile(member)
                assert stream is not None
                found[name] = _as_bundle(json.load(stream))
    return found


def public_root_bytes(host: str) -> bytes:
    """Return the trusted root of an instance that the package itself carries."""
    folder = Path(sigstore._store.__file__).parent / f"https%3A%2F%2Ftuf-repo-cdn.{host}.dev"
    return (folder / "trusted_root.json").read_bytes()


def _as_bundle(document: dict[str, Any]) -> dict[str, Any]:
    """Return an attestation as the bundle that it was made from. Source: PEP 740."""
    if "mediaType" in document:
        return document
    material, envelope = document["verification_material"], document["envelope"]
    return {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {
            "certificate": {"rawBytes": material["certificate"]},
            "tlogEntries": material["transparency_entries"],
        },
        "dsseEnvelope": {
            "payload": envelope["statement"],
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": envelope["signature"]}],
        },
    }
