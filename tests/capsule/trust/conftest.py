"""A medium, a controller that takes it, and the clock that both see."""

import shutil

import pytest
from tuf.ngclient._internal import trusted_metadata_set

from capsule.trust.medium import Medium
from support.trust_media import ALICE, BOB, NOW, pinned, policy, write


@pytest.fixture
def clock(monkeypatch):
    """Give tuf, which reads this machine's clock, the time that a test chooses."""
    real = trusted_metadata_set.datetime

    class Module:
        timezone = real.timezone

        class datetime(real.datetime):  # noqa: N801
            moment = NOW

            @classmethod
            def now(cls, _tz=None):
                return cls.moment

    monkeypatch.setattr(trusted_metadata_set, "datetime", Module)

    def set_to(moment):
        Module.datetime.moment = moment
        return moment

    return set_to


@pytest.fixture
def world(tmp_path, clock):
    return World(tmp_path, clock)


class World:
    """A medium that is carried, and a controller's trust folder that takes it."""

    def __init__(self, folder, clock):
        self.folder = folder
        self.path = folder / "medium"
        self.trust = pinned(folder / "trust", policy(1))
        self.clock = clock

    def write(self, wanted, signers=(ALICE, BOB), **how):
        return write(self.path, wanted, signers, **how)

    def update(self, now=NOW):
        return self.trust.update(Medium(self.path), now=self.clock(now))

    def copy(self, name):
        shutil.copytree(self.path, self.folder / name)

    def bring(self, name):
        shutil.rmtree(self.path)
        shutil.copytree(self.folder / name, self.path)
