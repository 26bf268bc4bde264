"""Real hosts for tests: one run of the lab a session, hosts on demand."""

from collections.abc import Iterator

import pytest

from support.lab.fleet import Lab
from support.lab.host import LabHost


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A run of the lab with no host yet; whatever is made in it is taken down at the end."""
    with Lab.open() as run:
        yield run


@pytest.fixture
def host(lab: Lab) -> Iterator[LabHost]:
    """A fresh host that is up, for one test to break."""
    fresh = lab.new_host()
    yield fresh
    fresh.remove()
