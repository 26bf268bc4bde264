"""Read from a binary cache over HTTP: 404 means that it hasn't got the path."""

import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Final
from urllib.error import HTTPError

from capsule_manifest.errors import Failed

__all__ = ["http_get"]

_TIMEOUT_S: Final = 60
_CHUNK_BYTES: Final = 1024 * 1024
_NOT_THERE: Final = frozenset({403, 404})
"""Caches in object stores say 403 to who may not list what is there."""


def http_get(url: str) -> Iterator[bytes] | None:
    """Yield the answer's bytes, or return None if there is nothing at an address.

    Raises:
        Failed: `nix-path-unavailable`, also while the bytes are read.
    """
    assert url.startswith(("https://", "http://")), "checked where caches are opened"
    try:
        answer = urllib.request.urlopen(url, timeout=_TIMEOUT_S)  # noqa: S310  # see the assertion
    except HTTPError as error:
        error.close()
        if error.code in _NOT_THERE:
            return None
        raise _failed(url, error) from error
    except (OSError, ValueError, HTTPException) as error:
        raise _failed(url, error) from error
    return _body(url, answer)


def _body(url: str, answer: HTTPResponse) -> Iterator[bytes]:
    try:
        with answer:
            while chunk := answer.read(_CHUNK_BYTES):
                yield chunk
            # A connection that ends early gives no error when it is read in pieces.
            if answer.length:
                raise ConnectionError(f"{answer.length} bytes are missing")
    except (OSError, ValueError, HTTPException) as error:
        raise _failed(url, error) from error


def _failed(url: str, error: Exception) -> Failed:
    return Failed(
        "nix-path-unavailable", "a binary cache can't be asked", got=error, where=url,
        retryable=True,
    )  # fmt: skip
