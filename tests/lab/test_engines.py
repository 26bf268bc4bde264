"""Debian's podman keeps the contract of engines, on a real host."""

from contextlib import contextmanager

import pytest

from capsule_installer.engines.podman import Podman
from support.engine_contract import EngineCase, EngineContract
from support.lab.podman import LabProcesses, install_podman, running, web_image

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine_host(lab):
    host = lab.new_host()
    install_podman(host)
    yield host
    host.remove()


class TestPodman(EngineContract):
    @pytest.fixture
    def case(self, engine_host):
        synced = []
        engine = Podman(
            processes=LabProcesses(engine_host), program="/usr/bin/podman", sync=synced.append
        )
        numbers = iter(range(1000))

        def put(files):
            folder = f"/srv/layout{next(numbers)}"
            engine_host.run("rm", "-rf", folder)
            for path, data in files.items():
                engine_host.write(f"{folder}/{path}", data)
            return folder

        def prune(every_unused):
            words = ["--all"] if every_unused else []
            engine_host.run("podman", "image", "prune", "--force", *words, timeout_s=60)

        @contextmanager
        def runs(image):
            with running(engine_host, image) as pid:
                yield pid

        prune(True)
        return EngineCase(
            engine=engine, put=put, runs=runs, prune=prune, base=web_image("any").layers[0]
        )
