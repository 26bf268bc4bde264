"""Sign statements without a key of one's own: one certificate, one log entry and one time stamp.

Everything that needs a network happens here, before a capsule is handed out. The result is refused
unless it can be verified without one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capsule.durable import read_bounded
from capsule.keyless.boundary import using_services
from capsule_manifest.errors import Failed, Refused

if TYPE_CHECKING:
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken

__all__ = ["sign_statements"]

_CONFIG_BYTES_MAX: Final = 1024 * 1024
_PUBLIC_INSTANCE: Final = "the public Sigstore instance"


def sign_statements(
    statements: Mapping[str, bytes], token: "IdentityToken", *, trust_config: Path | None
) -> dict[str, bytes]:
    """Return a bundle for each statement, all under one certificate.

    `trust_config` names the instance; None is the public one, whose addresses come over TUF.

    Raises:
        Refused: `trust-config-malformed`, `timestamp-missing`, `token-refused`.
        Failed: `sigstore-unavailable`, `trust-config-missing`, `controller-disk`.
    """
    from sigstore.dsse import Statement
    from sigstore.sign import SigningContext

    config, where = _configuration(trust_config)
    bundles = {}
    with using_services(where):
        context = SigningContext.from_trust_config(config)
        with context.signer(token) as signer:
            for name, payload in statements.items():
                bundle = signer.sign_dsse(Statement(payload))
                _check_timestamp(bundle.verification_material.timestamp_verification_data, where)
                bundles[name] = bundle.to_json().encode()
    return bundles


def _check_timestamp(data: object, where: str) -> None:
    """Refuse a bundle without a time stamp: the package only warns when it got none.

    Without it the log's own word would be the only one about when a short-lived key was used.
    """
    if not getattr(data, "rfc3161_timestamps", None):
        raise Refused(
            "timestamp-missing",
            "no time-stamp authority stamped the signature",
            expected="one RFC 3161 time stamp",
            got="none",
            where=where,
        )


def _configuration(path: Path | None) -> tuple["ClientTrustConfig", str]:
    from sigstore.models import ClientTrustConfig

    if path is None:
        with using_services(_PUBLIC_INSTANCE):
            return ClientTrustConfig.production(), _PUBLIC_INSTANCE
    raw = read_bounded(path, _CONFIG_BYTES_MAX)
    if raw is None:
        raise Failed("trust-config-missing", "there is no trust configuration", where=path)
    try:
        config = ClientTrustConfig.from_json(raw.decode())
        # Both halves are read lazily; a broken one shall not pass for a broken service.
        assert config.trusted_root is not None
        assert config.signing_config is not None
    except Exception as error:  # noqa: BLE001 - pydantic's, the package's and bare errors leave it
        raise Refused(
            "trust-config-malformed",
            "a trust configuration can't be read",
            got=f"{type(error).__name__}: {error}",
            where=path,
        ) from None
    return config, str(path)
