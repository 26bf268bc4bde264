"""Identity tokens: from a file, from the environment, or from the CI system that runs us.

A token is a secret for as long as it is valid. It is never an argument, never printed, and never in
an error: `IdentityToken` turns into the token itself when it is formatted, so it isn't formatted.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capsule.durable import read_bounded
from capsule.keyless.boundary import using_services
from capsule_manifest.errors import Failed, Refused

if TYPE_CHECKING:
    from sigstore.oidc import IdentityToken

__all__ = ["TOKEN_VARIABLE", "identity_token"]

TOKEN_VARIABLE: Final = "CAPSULE_IDENTITY_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN_BYTES_MAX: Final = 64 * 1024


def identity_token(path: Path | None) -> "IdentityToken":
    """Return the token in a file, else in the environment, else of the CI system.

    Raises:
        Refused: `token-missing` where there is none, `token-refused` for an expired or broken one
            and for a CI job that may not ask for one.
        Failed: `controller-disk`, `sigstore-unavailable`.
    """
    from sigstore.oidc import IdentityToken

    given, where = _given(path)
    raw = given or _ambient()
    if not raw:
        raise Refused(
            "token-missing",
            "there is no identity to sign with",
            expected=f"--identity-token, {TOKEN_VARIABLE}, or a CI system that offers one",
        )
    with using_services(where):
        return IdentityToken(raw)


def _ambient() -> str | None:
    """Ask the CI system; None outside of one."""
    from sigstore.oidc import IdentityError, detect_credential

    with using_services("the CI system"):
        try:
            return detect_credential()
        except IdentityError as error:
            # Its words are a page of advice; the cause is nearly always the same.
            raise Refused(
                "token-missing",
                "the CI system gives this job no identity token",
                expected="a job that may ask for one",
                got=error,
            ) from None


def _given(path: Path | None) -> tuple[str, str]:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    raw = read_bounded(path, _TOKEN_BYTES_MAX)
    if raw is None:
        raise Failed("token-missing", "there is no such token", where=path)
    try:
        text = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text:
        # Its text is not shown: it may be a token after all.
        raise Refused("token-refused", "a file holds no identity token", where=path)
    return text, str(path)
