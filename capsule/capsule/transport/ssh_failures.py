"""Why SSH gave no program: one typed error for each way in which it fails before it starts.

OpenSSH says it in English and always exits with 255; its words are stable in the C locale and
tests hold them against a real server. The order of the table matters: with jump hosts the client
of the target also complains that its pipe was closed, so the more precise reason comes first.
"""

import re
from typing import Final

from capsule_manifest.errors import CapsuleError, Failed, Refused

__all__ = ["RETRYABLE", "lost", "start_failure"]

RETRYABLE: Final = frozenset({"ssh-throttled"})
"""What may be tried again by the transport itself: the host said that it is busy."""

_SAID_SHOWN: Final = 600

_FINGERPRINT: Final = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")

# (what OpenSSH or sudo prints, error id, what to say)
_TABLE: Final = tuple(
    (re.compile(pattern, re.MULTILINE), error_id, what)
    for pattern, error_id, what in (
        (
            (
                r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed"
                r"|host key is known for|Certificate invalid"
            ),
            "host-key-changed",
            "a host showed another SSH key than the pinned one",
        ),
        (
            (
                r"Permission denied|Too many authentication failures|Load key .* invalid format"
                r"|UNPROTECTED PRIVATE KEY"
            ),
            "ssh-auth-refused",
            "a host does not take this controller's SSH key",
        ),
        (
            (
                r"Connection refused|No route to host|Network is unreachable"
                r"|Could not resolve hostname|Name or service not known"
            ),
            "host-unreachable",
            "no connection to the host",
        ),
        (
            r"onnection timed out|Operation timed out|ssh: connect to host .* timed out",
            "ssh-connect-deadline",
            "a host did not complete the SSH connection in time",
        ),
        (
            r"administratively prohibited|open failed|stdio forwarding failed",
            "ssh-jump-refused",
            "a jump host does not forward the connection",
        ),
        (
            (
                r"Exceeded MaxStartups|Not allowed at this time|kex_exchange_identification: read"
                r"|kex_exchange_identification: Connection closed"
                r"|Connection (reset|closed) by (remote|\S+ port)"
                r"|Connection to \S+ closed by remote|Broken pipe"
            ),
            "ssh-throttled",
            "a host closed the connection before it asked who we are",
        ),
        (
            (
                r"No SSH version received|banner line contains invalid|banner exchange"
                r"|Bad remote protocol|Protocol major"
                r"|too many|invalid format|Bad packet length|Unable to negotiate|no matching"
            ),
            "ssh-banner-invalid",
            "something else than a usable SSH server answers",
        ),
        (
            r"^sudo: ",
            "sudo-refused",
            "the user may not become root without a password",
        ),
    )
)
_REFUSED: Final = frozenset({"host-key-changed", "ssh-auth-refused", "sudo-refused"})


def start_failure(said: str, *, noise: str, exit_code: int, place: str) -> CapsuleError:
    """Return the error for a client that ended before the program started.

    `said` is what came on standard error, `noise` what the host printed before its program. Those
    of `RETRYABLE` changed nothing on the host.
    """
    text = _shown(said)
    for pattern, error_id, what in _TABLE:
        if pattern.search(said):
            fingerprint = _FINGERPRINT.search(said) if error_id == "host-key-changed" else None
            got = fingerprint[0] if fingerprint else text
            return _error(error_id, what, got=got, place=place)
    shown = "; ".join(part for part in (text, _shown(noise)) if part)
    return _error(
        "ssh-start-failed",
        "the host's shell ended before the program was started",
        got=f"exit code {exit_code}" + (f"; {shown}" if shown else ""),
        place=place,
    )


def lost(said: str, *, place: str) -> Failed:
    """Return the error for a connection that ended while the program ran.

    What the program did is not known; whoever ordered something asks for it by its op id.
    """
    return Failed(
        "connection-lost",
        "the connection ended while the host's program ran",
        got=_shown(said),
        where=place,
        retryable=True,
    )


def _shown(said: str) -> str:
    """Return the end of what was said as one line, without OpenSSH's frame of at signs."""
    lines = [line.strip() for line in said.splitlines()]
    return "; ".join(line for line in lines if line.strip("@"))[-_SAID_SHOWN:]


def _error(error_id: str, what: str, *, got: str, place: str) -> CapsuleError:
    if error_id in _REFUSED:
        return Refused(error_id, what, got=got, where=place)
    return Failed(error_id, what, got=got, where=place, retryable=error_id in RETRYABLE)
