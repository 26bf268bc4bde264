"""What podman says, read; that it does what is asked is shown on real hosts."""

import pytest

from capsule_installer.engines.base import Container
from capsule_installer.engines.podman import Podman
from capsule_installer.system.processes import Completed
from capsule_manifest.errors import Failed

IMAGE = "sha256:" + "1" * 64
STORE = (0, "WARN[0000] odd\n/var/lib/containers/storage\n")


class Scripted:
    """Processes that answer each podman command with what a test wrote down for it."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []
        self.synced = []

    def run(self, argv, *, timeout_ms, **_):
        assert argv[0] == "/usr/bin/podman"
        assert timeout_ms > 0
        self.asked.append(tuple(argv[1:]))
        code, output = self.answers[argv[1]]
        return Completed(exit_code=code, output=output)


def podman(**answers):
    processes = Scripted(answers)
    engine = Podman(processes=processes, program="/usr/bin/podman", sync=processes.synced.append)
    return engine, processes


def test_an_image_is_there_or_not_or_podman_is_broken():
    assert podman(image=(0, ""))[0].holds(IMAGE)
    assert not podman(image=(1, ""))[0].holds(IMAGE)
    with pytest.raises(Failed) as failed:
        podman(image=(125, "database is locked"))[0].holds(IMAGE)
    assert failed.value.error_id == "engine-failed"
    assert "database is locked" in str(failed.value)


def test_warnings_between_rows_are_no_rows():
    told = f"WARN[0000] odd\n{'2' * 64} {'1' * 64} 77\ntime=x level=warning msg=y\n"
    found = podman(ps=(0, told))[0].containers()
    assert found == (Container(id="2" * 64, image=IMAGE, pid=77),)


def test_the_name_that_podman_gives_a_folder_is_taken_away_and_no_other():
    rows = f"{IMAGE} localhost/x/web:latest\n{IMAGE} capsule.local/web:7-0\n{IMAGE} <none>:<none>\n"
    engine, processes = podman(pull=(0, ""), images=(0, rows), untag=(0, ""), info=STORE)
    engine.load("/x/web", 1000)
    assert processes.asked[0] == ("pull", "--quiet", "oci:/x/web")
    assert processes.asked[2] == ("untag", "localhost/x/web:latest", "localhost/x/web:latest")
    assert engine.pins() == {"capsule.local/web:7-0": IMAGE}


def test_no_command_names_a_registry():
    rows = f"{IMAGE} capsule.local/web:7-0\n"
    engine, processes = podman(
        image=(0, ""),
        pull=(0, ""),
        images=(0, rows),
        tag=(0, ""),
        untag=(0, ""),
        rmi=(0, ""),
        ps=(0, ""),
        info=STORE,
    )
    engine.holds(IMAGE)
    engine.load("/x/web", 1000)
    engine.pin(IMAGE, "capsule.local/web:7-0")
    engine.unpin("capsule.local/web:7-0")
    engine.containers()
    engine.discard(IMAGE)
    pulls = [words for words in processes.asked if "pull" in words]
    assert pulls == [("pull", "--quiet", "oci:/x/web")]


def test_the_store_is_durable_before_a_load_is_said_to_be_done():
    engine, processes = podman(pull=(0, ""), images=(0, ""), info=STORE)
    engine.load("/x/web", 1000)
    assert processes.synced == ["/var/lib/containers/storage"]
    engine, processes = podman(pull=(0, ""), images=(0, ""), info=(0, "nothing of use\n"))
    with pytest.raises(Failed) as failed:
        engine.load("/x/web", 1000)
    assert failed.value.error_id == "engine-failed"
