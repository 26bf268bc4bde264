"""Commands of units that start containers: nothing is pulled, nothing outlives its unit."""

import pytest

from capsule_manifest.engine_units import command_problems, engine_of, is_image_id

IMAGE = "sha256:" + "0" * 64
RUN = ("/usr/bin/podman", "run", "--rm", "--pull=never", "--cgroups=split", IMAGE, "serve")


def problems(*argv):
    return list(command_problems(argv))


@pytest.mark.parametrize(
    "argv",
    [
        RUN,
        ("podman", "run", "--pull", "never", "--cgroups", "disabled", IMAGE),
        ("podman", "run", "--pull=always", "--pull=never", "--cgroups=split", IMAGE),
        ("podman", "stop", "web"),
        ("docker", "ps"),
        ("/usr/bin/python3", "run", "pull"),
        ("/opt/podman-tools/serve", "run"),
        (),
    ],
)
def test_commands_that_pull_nothing_and_keep_to_their_unit_are_fine(argv):
    assert problems(*argv) == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("podman", "pull", "registry.test/web"), "is pulled"),
        (("podman", "image", "pull", "registry.test/web"), "is pulled"),
        (("podman", "run", "--cgroups=split", IMAGE), "--pull=never"),
        (("podman", "create", "--cgroups=split", IMAGE), "--pull=never"),
        (("-podman", "run", "--cgroups=split", IMAGE), "--pull=never"),
        (("podman", "run", "--pull=missing", "--cgroups=split", IMAGE), "--pull=never"),
        (("podman", "run", "--pull=never", "--pull=newer", "--cgroups=split", IMAGE), "--pull"),
        (("podman", "run", "--pull=never", IMAGE), "--cgroups"),
        (("podman", "run", "--pull=never", "--cgroups=enabled", IMAGE), "--cgroups"),
        ((*RUN[:2], "-d", *RUN[2:]), "detached"),
        ((*RUN[:2], "--detach", *RUN[2:]), "detached"),
        (("/usr/bin/docker", "run", "--pull=never", IMAGE), "podman"),
        (("ctr", "run", IMAGE, "web"), "podman"),
    ],
)
def test_a_command_that_would_fetch_or_outlive_is_named(argv, words):
    assert any(words in problem for problem in problems(*argv)), problems(*argv)


def test_an_engine_is_known_by_its_name_whatever_systemd_reads_before_it():
    assert engine_of(["+/usr/bin/podman", "ps"]) == "podman"
    assert engine_of(["/usr/bin/podman-compose", "up"]) is None
    assert engine_of([]) is None


def test_an_image_is_named_by_a_whole_digest():
    assert is_image_id(IMAGE)
    assert not is_image_id(IMAGE[:-1])
    assert not is_image_id(IMAGE + "0")
    assert not is_image_id("registry.test/web@" + IMAGE)
