"""A folder host with real services for the tests of the install half."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.staged_host import StagedHost, free_port


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StagedHost]:
    staged = StagedHost(str(tmp_path), port=free_port())
    yield staged
    staged.stop_services()
