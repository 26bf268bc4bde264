"""Compute the next value while the present one is being written: for work that leaves Python."""

from collections.abc import Callable
from threading import Thread
from typing import Final, Generic, TypeVar

from capsule_manifest.errors import CapsuleError

__all__ = ["Ahead"]

Value = TypeVar("Value")

_NONE: Final = object()


class Ahead(Generic[Value]):
    """One call that runs in a thread of its own, begun at once.

    The call must touch nothing that others change, and must end by itself.
    """

    def __init__(self, call: Callable[[], Value]) -> None:
        self._value: Value | object = _NONE
        self._failure: CapsuleError | MemoryError | None = None
        # The thread alone holds the call, and what it works on is free when it is done.
        self._thread = Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Say whether it has ended."""
        return not self._thread.is_alive()

    @property
    def has_failed(self) -> bool:
        """Say whether it has ended with a failure."""
        return self._failure is not None

    def result(self) -> Value:
        """Wait for the end and return what the call returned.

        Raises: what the call raised.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._value is not _NONE, "the call raises nothing else"
        return self._value  # type: ignore[return-value]

    def _run(self, call: Callable[[], Value]) -> None:
        try:
            self._value = call()
        except (CapsuleError, MemoryError) as error:
            self._failure = error
