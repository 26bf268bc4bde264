"""What a guarded step sees of the file system, as a plan."""

import pytest

from capsule_installer.guard.mounts import (
    READ_ONLY,
    RESOLVER,
    Verb,
    make_mounts,
    read_only_places,
)


def plan(*, resolver=None, sockets=(), lacks=()):
    places = read_only_places(READ_ONLY, lambda name: None if name in lacks else name)
    return make_mounts(
        lambda path: path not in lacks, read_only=places, resolver=resolver, sockets=sockets
    )


def covered(mounts, path):
    """Return the verbs that a path itself is the target of."""
    return [mount.verb for mount in mounts if mount.path == path]


def test_folders_of_sockets_and_spools_are_empty_and_spools_stay_so():
    mounts = plan()
    for path in ("/run", "/tmp", "/var/tmp"):
        assert covered(mounts, path) == [Verb.TMPFS]
    assert covered(mounts, "/var/spool") == [Verb.TMPFS, Verb.READ_ONLY]


def test_what_others_run_or_read_is_read_only():
    mounts = plan()
    for path in ("/etc", "/usr", "/boot", "/sys", "/root", "/opt/capsule", "/var/lib/capsule"):
        assert covered(mounts, path) == [Verb.BIND, Verb.READ_ONLY], path


@pytest.mark.parametrize(
    ("links", "places"),
    [
        ({}, ["/home", "/opt/capsule", "/usr"]),
        ({"/home": "/var/home"}, ["/opt/capsule", "/usr", "/var/home"]),
        ({"/opt/capsule": "/data/capsule"}, ["/data/capsule", "/home", "/usr"]),
        ({"/usr/local": "/var/usrlocal"}, ["/home", "/opt/capsule", "/usr", "/var/usrlocal"]),
        ({"/home": "/usr/home"}, ["/opt/capsule", "/usr"]),
        ({"/home": "/usrhome"}, ["/opt/capsule", "/usr", "/usrhome"]),
        ({"/home": "/run/home"}, ["/opt/capsule", "/usr"]),
        ({"/home": None}, ["/opt/capsule", "/usr"]),
    ],
)
def test_a_folder_is_read_only_where_it_really_lies_and_once(links, places):
    names = ["/home", "/opt/capsule", "/usr", "/usr/local"]
    assert list(read_only_places(names, lambda name: links.get(name, name))) == places


def test_a_link_to_the_root_is_no_folder_that_can_be_protected():
    with pytest.raises(OSError, match="link to /"):
        read_only_places(["/home"], lambda _: "/")


def test_kernel_settings_are_read_only_in_the_new_view_of_processes():
    mounts = plan()
    proc = covered(mounts, "/proc").index(Verb.PROC)
    assert proc == 0
    at = [mount.path for mount in mounts]
    for path in ("/proc/sys", "/proc/sysrq-trigger"):
        assert at.index(path) > at.index("/proc")
        assert covered(mounts, path) == [Verb.BIND, Verb.READ_ONLY]


def test_no_disk_is_in_the_folder_of_devices():
    mounts = plan()
    made = [mount.path for mount in mounts if mount.path.startswith("/run/capsule-guard/dev/")]
    names = {path.rpartition("/")[2] for path in made}
    assert names == {"full", "null", "random", "urandom", "zero", "shm", "fd", "stdin", "stdout",
                     "stderr"}  # fmt: skip
    assert covered(mounts, "/dev") == [Verb.MOVE]


def test_each_socket_outside_the_empty_folders_is_covered():
    sockets = ["/run/a.sock", "/var/lib/db/sock", "/tmp/b", "/srv/c", "/dev/log", "/var/spool/p/x"]
    mounts = plan(sockets=sockets)
    masks = [mount.path for mount in mounts if mount.source == "/dev/null" and mount.path[1] != "r"]
    assert masks == ["/srv/c", "/var/lib/db/sock"]


def test_a_folder_that_is_not_there_is_not_covered():
    mounts = plan(lacks={"/efi", "/var/spool", "/lib64"})
    assert not {"/efi", "/var/spool", "/lib64"} & {mount.path for mount in mounts}


def test_the_name_server_inside_is_the_sink_wherever_the_file_really_lies():
    def told(real):
        return [mount for mount in plan(resolver=real) if real and mount.path == real]

    assert [(mount.verb, mount.source) for mount in told("/etc/resolv.conf")] == [
        (Verb.BIND, RESOLVER)
    ]
    stub = "/run/systemd/resolve/stub-resolv.conf"
    [inside] = told(stub)
    assert inside.verb is Verb.FILE
    assert inside.source.startswith("nameserver 127.0.0.1\n")
    assert not [mount for mount in plan(resolver=None) if mount.path == "/etc/resolv.conf"]


def test_whatever_is_written_is_written_where_it_is_forgotten():
    writes = {Verb.FOLDER, Verb.FILE, Verb.LINK}
    mounts = plan(resolver="/etc/resolv.conf")
    for mount in mounts:
        if mount.verb in writes:
            assert mount.path.startswith("/run/"), mount
    at = [mount.path for mount in mounts]
    first_write = next(i for i, mount in enumerate(mounts) if mount.verb in writes)
    assert at.index("/run") < first_write
