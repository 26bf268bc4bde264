"""The engine of the unit tests keeps the contract that the lab proves of podman."""

from contextlib import contextmanager

import pytest

from capsule_installer.engines.base import Container
from capsule_installer.system.disk import RealDisk
from support.engine_contract import EngineCase, EngineContract
from support.engines import FakeEngine


class TestFakeEngine(EngineContract):
    @pytest.fixture
    def case(self, tmp_path):
        engine = FakeEngine(disk=RealDisk())
        numbers = iter(range(1000))

        def put(files):
            folder = tmp_path / f"layout{next(numbers)}"
            for path, data in files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            return str(folder)

        @contextmanager
        def runs(image):
            engine.running = (Container(id="c" * 64, image=image, pid=77),)
            yield 77
            engine.running = ()

        return EngineCase(
            engine=engine, put=put, runs=runs, prune=lambda every: engine.prune(every_unused=every)
        )
