"""The boundary to the `sigstore` package: whatever leaves it becomes one of our errors.

Its documented errors have one base; in practice bare `ValueError`, `AttributeError`, `binascii.
Error`, pydantic's and those of the HTTP client leave it, too, with a hostile bundle or a broken
service. None may end as a traceback, and none may pass for a proof: what was raised was not proved.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from capsule_manifest.errors import CapsuleError, Failed, Refused

__all__ = ["proving", "using_services"]


@contextmanager
def proving(where: str) -> Iterator[None]:
    """Turn what the package raises over a bundle into `keyless-*`.

    Raises:
        Refused: `keyless-unproved` when it was checked and is bad, `keyless-malformed` when it is
            no bundle, `keyless-unchecked` for anything else.
    """
    from sigstore.errors import Error, VerificationError
    from sigstore.models import IncompatibleEntry, InvalidBundle

    _quiet()
    try:
        yield
    except CapsuleError:
        raise
    except VerificationError as error:
        raise Refused(
            "keyless-unproved", "a keyless signature is not proved", got=error, where=where
        ) from None
    except (InvalidBundle, IncompatibleEntry) as error:
        raise Refused(
            "keyless-malformed", "a keyless signature can't be read", got=error, where=where
        ) from None
    except Error as error:
        raise Refused(
            "keyless-unchecked", "a keyless signature could not be checked", got=error, where=where
        ) from None
    except Exception as error:  # noqa: BLE001 - see the module: anything may leave the package
        raise Refused(
            "keyless-unchecked",
            "a keyless signature could not be checked",
            got=f"{type(error).__name__}: {error}",
            where=where,
        ) from None


@contextmanager
def using_services(where: str) -> Iterator[None]:
    """Turn what the package raises while it talks to its services into our errors.

    The token is never in what is raised: the package's clients keep it in a header.

    Raises:
        Refused: `token-refused`.
        Failed: `sigstore-unavailable`.
    """
    from sigstore.oidc import ExpiredIdentity, IdentityError

    _quiet()
    try:
        yield
    except CapsuleError:
        raise
    except (IdentityError, ExpiredIdentity) as error:
        raise Refused(
            "token-refused", "the identity token can't be used", got=error, where=where
        ) from None
    except Exception as error:  # noqa: BLE001 - requests, pydantic and bare errors leave it as well
        raise Failed(
            "sigstore-unavailable",
            "a Sigstore service did not do its part",
            got=f"{type(error).__name__}: {error}",
            where=where,
            retryable=True,
        ) from None


def _quiet() -> None:
    """Keep the package's warnings off the terminal: they may repeat what a stranger wrote."""
    logging.getLogger("sigstore").setLevel(logging.CRITICAL)
