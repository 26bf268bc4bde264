"""Measure from outside for how long a service does not answer, and which release does.

An outage is the time from the last good answer to the first good answer after it; between releases
that is what users see. The service is asked every twenty milliseconds over a new connection each
time, as users do.
"""

import http.client
import json
import threading
import time
from dataclasses import dataclass
from typing import Final

__all__ = ["Answer", "Watcher", "ask", "await_answer"]

_PERIOD_S: Final = 0.02
_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a service says it is."""

    release: str
    generation: str
    commit: str


def ask(port: int) -> Answer | None:
    """Return what the service on a loopback port says, or None when it doesn't answer well."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/")
        response = connection.getresponse()
        body = json.loads(response.read(64 * 1024))
        if response.status != http.HTTPStatus.OK:
            return None
        return Answer(release=body["release"], generation=body["generation"], commit=body["commit"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()


def await_answer(port: int, limit_s: float = 15.0) -> Answer | None:
    """Ask until the service answers, or return None once `limit_s` has passed."""
    until = time.monotonic() + limit_s
    while (answer := ask(port)) is None and time.monotonic() < until:
        time.sleep(_PERIOD_S)
    return answer


class Watcher:
    """Ask one service without pause on a thread of its own, from `start` to `stop`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"port {port}", daemon=True)
        self._longest_s = 0.0
        self._answers = 0
        self._last_good: float | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> int:
        """End asking; return the longest outage in milliseconds, also one that still lasts."""
        self._end.set()
        self._thread.join()
        if self._last_good is not None:
            self._note(time.monotonic())
        # Two answers are always a period apart; that is how we ask, not an outage.
        return max(0, int((self._longest_s - 2 * _PERIOD_S) * 1000))

    @property
    def answers(self) -> int:
        """Return how many good answers came."""
        return self._answers

    def _watch(self) -> None:
        while not self._end.wait(_PERIOD_S):
            if ask(self._port) is not None:
                self._note(time.monotonic())
                self._answers += 1

    def _note(self, now: float) -> None:
        if self._last_good is not None:
            self._longest_s = max(self._longest_s, now - self._last_good)
        self._last_good = now
