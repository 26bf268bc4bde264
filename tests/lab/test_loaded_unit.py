"""Whether a unit has loaded its release, as a real systemd tells it: files, reloads, daemons."""

import pytest

from support.lab.installs import InstallHost

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]

OVERRIDE = "/etc/systemd/system/hello.service"


@pytest.fixture
def installs(host):
    """A host with release 1 installed."""
    on = InstallHost(host=host)
    on.put_program()
    on.stage(1)
    assert on.install(1) == {"result": "committed", "reason": ""}
    return on


def test_a_unit_that_systemd_has_not_read_as_it_is_now_is_no_proof(installs):
    installs.stage(2, "stale-unit")
    ended = installs.install(2)
    assert ended["result"] == "restored"
    assert "NeedDaemonReload=yes" in ended["reason"]
    assert installs.look()["current"] == "1"


def test_another_unit_file_under_the_same_name_is_no_proof(installs):
    installs.stage(2, "other-fragment")
    ended = installs.install(2)
    assert ended["result"] in {"restored", "failed"}
    assert OVERRIDE in ended["reason"]


def test_a_daemon_that_left_its_parent_and_uses_the_release_before_is_no_proof(installs):
    installs.stage(2, "old-daemon")
    ended = installs.install(2)
    assert ended["result"] == "restored"
    assert "still uses another generation" in ended["reason"]
    assert installs.look()["current"] == "1"


def test_a_release_after_another_shows_its_own_unit_file_and_all_its_processes(installs):
    installs.stage(2)
    assert installs.install(2) == {"result": "committed", "reason": ""}
    assert installs.unit("hello.service", "NeedDaemonReload") == "no"
    assert installs.unit("hello.service", "FragmentPath") == (
        "/usr/local/lib/systemd/system/hello.service"
    )
