"""One thread that does one thing after the other, each kind of thing waiting at most once."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from capsule_manifest.errors import CapsuleError

__all__ = ["Worker"]

_logger = logging.getLogger(__name__)
_Job = tuple[str, Callable[[], None]]


class Worker:
    """Do what is put in, in a thread of its own; what fails goes to `failed` and ends nothing."""

    def __init__(self, name: str, failed: Callable[[Exception], None]) -> None:
        self._name = name
        self._failed = failed
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, name: str, job: Callable[[], None]) -> None:
        """Do `job` when its turn comes, unless one of this name waits or is being done."""
        with self._lock:
            if name in self._waiting:
                return
            self._waiting.add(name)
        self._jobs.put((name, job))

    def end(self) -> None:
        """End the thread after what was put in before."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            name, job = item
            try:
                job()
            except CapsuleError as error:
                self._failed(error)
            except Exception as error:  # the edge of a thread: the others must go on
                _logger.exception("%s", self._name)
                self._failed(error)
            finally:
                with self._lock:
                    self._waiting.discard(name)
