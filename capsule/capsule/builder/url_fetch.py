"""Fetch a file over HTTP: what was there is resumed, and trouble that passes is waited out.

What a file is, its digest decides; where it is, nothing else says. So a redirect is followed to any
host, but not away from TLS, and nothing secret is ever sent. Every wait and count has a bound.

Source: RFC 9110, sections 10.2.3 (Retry-After), 13.1.5 (If-Range) and 14 (ranges); RFC 6585,
section 4 (429).
"""

import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from time import sleep
from typing import IO, BinaryIO, Final
from urllib.error import HTTPError

from capsule_manifest.errors import Failed

__all__ = ["UrlFetcher"]

_TIMEOUT_S: Final = 60
_FILE_BYTES_MAX: Final = 8 * 1024**3
_CHUNK_BYTES: Final = 1024 * 1024
_TRIES_MAX: Final = 5
_WAIT_MAX_S: Final = 120
"""A server that asks for more patience is given up, and its wish is told."""

_REQUEST_TIMEOUT: Final = 408
_RANGE_NOT_SATISFIABLE: Final = 416
_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500
_PARTIAL: Final = 206


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trouble:
    """Why one try failed. `wait_s` is what the server asks for; None if waiting can't help."""

    what: str
    wait_s: float | None
    cause: Exception


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow to another host, but never from TLS to plain HTTP, nor to a disk."""

    max_redirections = 5

    def redirect_request(  # the interface of the standard library
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request that follows, or raise HTTPError."""
        wanted = ("https://",) if req.full_url.startswith("https://") else ("https://", "http://")
        if not newurl.lower().startswith(wanted):
            raise HTTPError(newurl, code, "a redirect leads away from HTTP over TLS", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class UrlFetcher:
    """Fetch a file over HTTP or HTTPS, at most five tries. `wait` is how to sleep, in seconds."""

    def __init__(self, *, wait: Callable[[float], None] = sleep) -> None:
        self._wait = wait
        self._opener = urllib.request.build_opener(_Redirects())

    def fetch(self, url: str, stream: BinaryIO) -> None:
        """Write the content behind `url` to `stream`, after what is in it. See `FileFetcher`."""
        if not url.startswith(("https://", "http://")):
            raise Failed("url-fetch-failed", "an address is not HTTP", got=url)
        version = ""
        attempt = 1
        while True:
            trouble, version = self._try(url, stream, version)
            if trouble is None:
                return
            if trouble.wait_s is None or attempt == _TRIES_MAX:
                raise Failed(
                    "url-fetch-failed", "a file can't be fetched",
                    expected=f"in {_TRIES_MAX} tries", got=trouble.what, where=url, retryable=True,
                ) from trouble.cause  # fmt: skip
            if trouble.wait_s > _WAIT_MAX_S:
                raise Failed(
                    "url-fetch-failed", "a server asks for more patience than there is",
                    expected=f"at most {_WAIT_MAX_S} s", got=f"{trouble.wait_s:.0f} s", where=url,
                    retryable=True,
                ) from trouble.cause  # fmt: skip
            self._wait(max(trouble.wait_s, 2.0 ** (attempt - 1)))
            attempt += 1

    def _try(self, url: str, stream: BinaryIO, version: str) -> tuple[_Trouble | None, str]:
        """Fetch what is missing; return what went wrong, and the version that the server has."""
        start = stream.seek(0, 2)
        headers = {"User-Agent": "capsule", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if version:
                headers["If-Range"] = version
        request = urllib.request.Request(url, headers=headers)  # noqa: S310  # checked by fetch
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                version = answer.headers.get("ETag", "")
                _copy(answer, stream, start, url)
        except HTTPError as error:
            error.close()  # it is the answer too, and holds the connection
            if error.code == _RANGE_NOT_SATISFIABLE and start:
                # What is here is not the beginning of what is there.
                stream.truncate(stream.seek(0))
                return _Trouble(what=str(error), wait_s=0, cause=error), ""
            return _Trouble(what=str(error), wait_s=_wait_of(error), cause=error), version
        except (OSError, ValueError, HTTPException) as error:
            return _Trouble(what=str(error) or repr(error), wait_s=0, cause=error), version
        return None, version


def _copy(answer: HTTPResponse, stream: BinaryIO, start: int, url: str) -> None:
    is_rest = answer.status == _PARTIAL and (
        answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
    )
    if not is_rest:
        stream.truncate(stream.seek(0))
        start = 0
    size_bytes = start
    while chunk := answer.read(_CHUNK_BYTES):
        size_bytes += len(chunk)
        if size_bytes > _FILE_BYTES_MAX:
            raise Failed(
                "url-fetch-failed", "a file is too large",
                expected=f"at most {_FILE_BYTES_MAX} bytes", where=url,
            )  # fmt: skip
        stream.write(chunk)
    # A connection that ends early gives no error when it is read in pieces.
    if answer.length:
        raise ConnectionError(f"{answer.length} bytes are missing")


def _wait_of(error: HTTPError) -> float | None:
    """Return how long a server wants to be left alone; None if it will not change its mind."""
    if error.code in {_REQUEST_TIMEOUT, _TOO_MANY} or error.code >= _SERVER_ERRORS:
        asked = (error.headers.get("Retry-After") or "0").strip()
        # The other form is a date, which needs two clocks that agree; our own pauses do instead.
        return float(asked) if asked.isdigit() else 0
    return None
