"""On a real host: files with real owners, processes of older releases, and what stays for them."""

import pytest

from support.lab.installs import InstallHost

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]

FILE = "/etc/hello/hello.toml"


@pytest.fixture
def on(host):
    """A host with the program on it."""
    made = InstallHost(host=host)
    made.put_program()
    return made


def release(on, counter, kind="good"):
    on.stage(counter, kind)
    assert on.install(counter) == {"result": "committed", "reason": ""}


def verb(on, *words):
    (record,) = on.drive("verb", *words, "--json")["records"]
    return record


def kept(on):
    return {
        name.partition("-")[0]: why for name, why in verb(on, "gc", "--dry-run")["kept"].items()
    }


def test_a_file_that_another_user_owns_is_told_refused_and_set_aside_with_its_owner(on):
    release(on, 1, "configured")
    assert on.host.run("stat", "-c", "%U:%G %a", FILE).stdout == "root:root 644\n"
    on.host.run("chown", "nobody:daemon", FILE)
    assert verb(on, "files")["files"][FILE].startswith("owner ")
    on.stage(2, "configured")
    ended = on.install(2)
    assert ended["result"] == "refused"
    assert "managed-file-edited" in ended["reason"]
    place = verb(on, "files", "--set-aside")["kept"][FILE]
    assert on.host.run("stat", "-c", "%U:%G %a", place).stdout == "nobody:daemon 644\n"
    assert on.host.run("stat", "-c", "%U:%G %a", FILE).stdout == "root:root 644\n"
    on.stage(3, "configured")
    assert on.install(3)["result"] == "committed"
    assert on.look()["ops"]["2"] == "refused"


def test_a_process_of_an_older_release_keeps_it_until_it_ends(on):
    for counter in (1, 2, 3):
        release(on, counter)
    on.host.run(
        "systemd-run", "--quiet", "--unit=reader", "sh", "-c",
        "exec tail -f /opt/capsule/generations/1-*/app/serve.py",
    )  # fmt: skip
    assert kept(on) == {"1": "in use by a process", "2": "previous", "3": "current"}
    verb(on, "gc")
    assert on.host.run("sh", "-c", "ls -d /opt/capsule/generations/1-*").stdout != ""
    on.host.run("systemctl", "stop", "reader")
    assert kept(on) == {"2": "previous", "3": "current"}
    verb(on, "gc")
    assert on.host.run("sh", "-c", "ls -d /opt/capsule/generations/1-*", check=False).stdout == ""
    assert on.look()["answer"] == "3"
