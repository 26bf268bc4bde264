"""One way to assert a failure by its id, whatever its class."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from capsule_manifest.error_table import ROWS
from capsule_manifest.errors import CapsuleError

__all__ = ["fails_with"]


@contextmanager
def fails_with(error_id: str) -> Iterator[pytest.ExceptionInfo[CapsuleError]]:
    """Assert that the block fails with `error_id`, and that the table has a row for it."""
    with pytest.raises(CapsuleError) as caught:
        yield caught
    assert caught.value.error_id == error_id, str(caught.value)
    assert error_id in ROWS
