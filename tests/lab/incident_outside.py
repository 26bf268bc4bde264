"""Hosts as their users see them: asked from outside, every 100 ms, past every program of ours."""

import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from support.lab.host import LabHost

__all__ = ["PORT", "SAMPLE_S", "Outside", "answer"]

PORT = 8080
SAMPLE_S = 0.1
_PATIENCE_S = 1.0


def answer(host: LabHost) -> str:
    """Return the release that a node serves, empty when it does not answer within a second.

    A plain socket: fifty hosts are asked ten times a second on a machine that they share.
    """
    try:
        with socket.create_connection((host.address, PORT), timeout=_PATIENCE_S) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            text = b""
            while piece := link.recv(256):
                text += piece
    except OSError:
        return ""
    head, _, body = text.partition(b"\r\n\r\n")
    return body.decode("ascii", "replace") if b" 200 " in head else ""


@dataclass(slots=True)
class _Seen:
    """What one node looked like: since when it is silent, and each silence so far."""

    last_good: float
    silent: bool = False
    outages: list[float] = field(default_factory=list)


class Outside:
    """Ask every node but those in `without`, and remember who did not answer and for how long."""

    def __init__(self, hosts: dict[str, LabHost], without: Iterable[str]) -> None:
        left_out = set(without)
        now = time.monotonic()
        self._seen = {node: _Seen(last_good=now) for node in hosts if node not in left_out}
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._rounds = 0
        self._began = now
        self.out_max = 0
        self.out_nodes_max: tuple[str, ...] = ()
        self._threads = [
            threading.Thread(target=self._watch, args=(hosts[node], seen), daemon=True)
            for node, seen in self._seen.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        # A node that is still silent was away for at least so long.
        now = time.monotonic()
        for seen in self._seen.values():
            if seen.silent:
                seen.outages.append(now - seen.last_good)

    def longest(self) -> dict[str, float]:
        """Return each node's longest outage in seconds, last good answer to first good answer."""
        return {node: max(seen.outages, default=0.0) for node, seen in self._seen.items()}

    def sample_ms(self) -> float:
        """Return how long a round of questions took in truth, its pause included."""
        spent = time.monotonic() - self._began
        return spent * 1000 * len(self._seen) / max(self._rounds, 1)

    def _watch(self, host: LabHost, seen: _Seen) -> None:
        while not self._ended.is_set():
            asked = time.monotonic()
            good = answer(host)
            now = time.monotonic()
            with self._lock:
                self._rounds += 1
                if not good:
                    seen.silent = True
                    out = tuple(node for node, item in self._seen.items() if item.silent)
                    if len(out) > self.out_max:
                        self.out_max, self.out_nodes_max = len(out), out
                elif seen.silent:
                    seen.silent = False
                    seen.outages.append(now - seen.last_good)
            if good:
                seen.last_good = asked
            self._ended.wait(max(0.0, SAMPLE_S - (time.monotonic() - asked)))
