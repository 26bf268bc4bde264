"""A transparency log: a Merkle tree of entries, proofs, and signed checkpoints.

Source: RFC 6962, section 2.1; C2SP tlog-checkpoint and signed-note.
"""

import base64
import hashlib
from collections.abc import Callable

__all__ = ["Log", "b64", "sha256"]

SEEDED_ENTRIES = 5  # with an empty log every proof would be empty, and nothing would be proved


def b64(raw: bytes) -> str:
    """Return standard base64 as text."""
    return base64.b64encode(raw).decode()


def sha256(raw: bytes) -> bytes:
    """Return a SHA-256."""
    return hashlib.sha256(raw).digest()


class Log:
    """An append-only log that signs what it holds."""

    def __init__(self, origin: str, key_id: bytes, sign: Callable[[bytes], bytes]) -> None:
        self.origin = origin
        self.key_id = key_id
        self.sign = sign
        self._leaves: list[bytes] = []
        for number in range(SEEDED_ENTRIES):
            self.add(b"seed %d" % number)

    @property
    def size(self) -> int:
        return len(self._leaves)

    @property
    def root(self) -> bytes:
        return self._root(0, self.size)

    def add(self, body: bytes) -> int:
        """Append an entry and return its index."""
        self._leaves.append(sha256(b"\0" + body))
        return self.size - 1

    def path(self, index: int) -> list[bytes]:
        """Return the inclusion proof of an entry in the tree as it is."""
        return self._path(index, 0, self.size)

    def checkpoint(self) -> str:
        """Return the signed note of the tree as it is."""
        note = f"{self.origin}\n{self.size}\n{b64(self.root)}\n"
        signature = b64(self.key_id[:4] + self.sign(note.encode()))
        return f"{note}\n\u2014 {self.origin} {signature}\n"

    def _root(self, low: int, high: int) -> bytes:
        if high - low == 1:
            return self._leaves[low]
        middle = low + _split(high - low)
        return sha256(b"\1" + self._root(low, middle) + self._root(middle, high))

    def _path(self, index: int, low: int, high: int) -> list[bytes]:
        if high - low == 1:
            return []
        middle = low + _split(high - low)
        if index < middle:
            return [*self._path(index, low, middle), self._root(middle, high)]
        return [*self._path(index, middle, high), self._root(low, middle)]


def _split(count: int) -> int:
    """Return the largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1
