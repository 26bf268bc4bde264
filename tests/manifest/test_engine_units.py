"""Commands of units that start containers: nothing is pulled, nothing outlives its unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        ("podman", "--log-level", "debug", "--root=/srv/x", *RUN[1:]),
        ("podman", "container", *RUN[1:]),
        ("podman", "run", "--name", "pull", "-itp", "80:80", *RUN[2:]),
        ("podman", "run", "-e", "A=b", "-v/a:/b", "--detach=false", "-d=false", *RUN[2:]),
        (*RUN[:-2], "--rarer", "x", IMAGE),
        (*RUN, "--pull=always", "-d"),
        ("podman", "rm", "--force", "web"),
        ("podman", "exec", "web", "pull"),
        ("podman", "system", "prune"),
        ("/usr/bin/env", "A=b", *RUN),
        ("/bin/true", ";", *RUN),
        ("docker", "ps"),
        ("podman",),
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
        (("podman", "run", IMAGE, "--pull=never", "--cgroups=split"), "--pull=never"),
        (("podman", "run", IMAGE, "--pull=never", "--cgroups=split"), "--cgroups"),
        (("podman", "run", "--", IMAGE, "--pull=never", "--cgroups=split"), "--pull=never"),
        (("podman", "run", "--rm", "x", "--pull=never", "--cgroups=split", IMAGE), "--pull=never"),
        (("podman", "run", "--env", "--pull=never", "--cgroups=split", IMAGE), "--pull=never"),
        (("podman", "run", "-e", "--pull=never", "--cgroups=split", IMAGE), "--pull=never"),
        (("podman", "run", "--rarer", "--pull=never", "--cgroups=split", IMAGE), "--pull=never"),
        ((*RUN[:-2], "--rarer", "--pull=always", IMAGE), "--pull=never"),
        ((*RUN[:-2], "--rarer", "--pull", "always", IMAGE), "--pull=never"),
        ((*RUN[:-2], "--rarer", "--cgroups=enabled", IMAGE), "--cgroups"),
        ((*RUN[:-2], "--rarer", "-d", IMAGE), "detached"),
        (("podman", "container", "run", "--cgroups=split", IMAGE), "--pull=never"),
        (("podman", "--log-level", "run", "pull", "x"), "is pulled"),
        (("podman", "--log-level=info", "pull", "x"), "is pulled"),
        (("podman", "images", "pull", "x"), "is pulled"),
        (("podman", "--rarer", *RUN[1:]), "--rarer"),
        (("podman", "kube", "play", "run.yaml"), "kube play"),
        (("podman", "play", "kube", "run.yaml"), "play"),
        (("podman", "compose", "up"), "compose"),
        (("podman", "auto-update"), "auto-update"),
        (("podman", "build", "."), "build"),
        (("docker", "compose", "run", "web"), "compose"),
        (("podman", "image"), "image"),
        (("/usr/bin/env", "podman", "pull", "x"), "is pulled"),
        (("-env", "-i", "-u", "A", "B=c", "env", "podman", "pull", "x"), "is pulled"),
        (("env", "-S", "podman pull x"), "is pulled"),
        (("env", "-Spodman pull x"), "is pulled"),
        (("/bin/true", ";", "podman", "pull", "x"), "is pulled"),
        ((*RUN[:2], "-itd", *RUN[2:]), "detached"),
        ((*RUN[:2], "--detach=1", *RUN[2:]), "detached"),
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
    assert engine_of(["/usr/bin/env", "-i", "A=b", "podman", "ps"]) == "podman"
    assert engine_of(["/usr/bin/env"]) is None
    assert engine_of([]) is None


def test_an_image_is_named_by_a_whole_digest():
    assert is_image_id(IMAGE)
    assert not is_image_id(IMAGE[:-1])
    assert not is_image_id(IMAGE + "0")
    assert not is_image_id("registry.test/web@" + IMAGE)


@given(
    words=st.lists(
        st.sampled_from(
            ["podman", "env", "-S", "-u", "run", "container", ";", "--", "-", "-=", "-d=", "--pull",
             "--pull=never", "--env", "-e", "-itp", "--cgroups=split", "--x", "--=", "", IMAGE]
        ),
        max_size=9,
    )
)  # fmt: skip
def test_whatever_the_words_are_they_are_judged(words):
    assert all(problem.isprintable() for problem in problems(*words))
    assert problems("podman", "run", *words) or "--pull=never" in words or "--pull" in words
