"""A resolver that counts: an answer for each name of a table, and every question remembered.

It speaks enough DNS for the C library and nothing more. Programs are made to ask it by a
`resolv.conf` of their own, in a mount namespace that only they are in; that needs root.

Source: RFC 1035, sections 3.2 and 4.1.
"""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

__all__ = ["CountingResolver", "can_bind_resolv_conf"]

_ADDRESS: Final = "127.0.53.53"
_PORT: Final = 53
_TYPE_A: Final = 1
_HEADER_BYTES: Final = 12
_TTL_S: Final = 0


def can_bind_resolv_conf() -> bool:
    """Say whether this user may give a program a `resolv.conf` of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


class CountingResolver:
    """Use as a context. `answers` maps names to IPv4 addresses and may be changed meanwhile."""

    def __init__(self, folder: Path, answers: dict[str, str]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self._settings = folder / "resolv.conf"
        self._settings.write_text(f"nameserver {_ADDRESS}\noptions timeout:1 attempts:1\n")

    def around(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs `argv` with this resolver and no other."""
        script = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", str(self._settings), *argv]

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((_ADDRESS, _PORT))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Answer no more."""
        # Only a datagram wakes the thread; an empty one is no question.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"", (_ADDRESS, _PORT))
        self._thread.join(5)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, sender = self._socket.recvfrom(512)
            if not question:
                return
            self._socket.sendto(self._answer(question), sender)

    def _answer(self, question: bytes) -> bytes:
        labels, at = [], _HEADER_BYTES
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode("ascii", "replace"))
            at += 1 + question[at]
        name, kind = ".".join(labels).lower(), int.from_bytes(question[at + 1 : at + 3], "big")
        self.asked.append(name)
        address = self.answers.get(name)
        known = address is not None and kind == _TYPE_A
        # Response, recursion available; 3 says that there is no such name.
        flags = 0x8180 | (0 if address is not None else 3)
        counts = (1, int(known), 0, 0)
        header = question[:2] + b"".join(n.to_bytes(2, "big") for n in (flags, *counts))
        body = question[_HEADER_BYTES : at + 5]
        if address is None or not known:
            return header + body
        record = b"\xc0\x0c" + _TYPE_A.to_bytes(2, "big") + b"\0\1" + _TTL_S.to_bytes(4, "big")
        return header + body + record + b"\0\4" + socket.inet_aton(address)
