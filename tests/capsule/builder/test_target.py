"""Targets: tags and markers of a platform that is not the machine that builds."""

import pytest
from packaging.markers import Marker
from packaging.tags import parse_tag

from capsule_manifest.errors import Refused
from support.wheels import target

FITS = [
    "py3-none-any",
    "py2.py3-none-any",
    "cp311-cp311-manylinux_2_36_x86_64",
    "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",
    "cp311-cp311-manylinux2014_x86_64",
    "cp311-cp311-manylinux2010_x86_64",
    "cp311-cp311-manylinux1_x86_64",
    "cp311-cp311-linux_x86_64",
    "cp38-abi3-manylinux_2_28_x86_64",
    "py3-none-manylinux_2_17_x86_64",
    "cp311-none-any",
]
MISFITS = [
    "cp312-cp312-manylinux_2_17_x86_64",
    "cp311-cp311d-manylinux_2_17_x86_64",
    "cp311-cp311-manylinux_2_17_aarch64",
    "cp311-cp311-musllinux_1_2_x86_64",
    "cp311-cp311-macosx_11_0_arm64",
    "cp311-cp311-win_amd64",
    "cp312-abi3-manylinux_2_17_x86_64",
    "pp311-pypy311_pp73-manylinux_2_17_x86_64",
    "py2-none-any",
]


@pytest.mark.parametrize("tag", FITS)
def test_a_tag_of_the_platform_fits(tag):
    assert target().fit(parse_tag(tag)).rank is not None


@pytest.mark.parametrize("tag", MISFITS)
def test_a_tag_of_another_platform_or_python_does_not_fit(tag):
    fit = target().fit(parse_tag(tag))
    assert fit.rank is None
    assert tag.split(".")[0] in fit.got


def test_a_wheel_tag_newer_than_the_hosts_glibc_does_not_fit_and_both_are_shown():
    fit = target(glibc="2.31").fit(parse_tag("cp311-cp311-manylinux_2_34_x86_64"))
    assert fit.rank is None
    assert "2.31" in fit.expected
    assert "2.34" in fit.got


def test_a_wheel_for_another_python_is_not_said_to_need_a_newer_glibc():
    fit = target(glibc="2.31").fit(parse_tag("cp310-cp310-manylinux_2_34_x86_64"))
    assert "another platform or Python" in fit.reason


def test_of_two_fitting_wheels_the_one_for_the_newer_glibc_is_better_than_pure_python():
    ranks = [
        target().fit(parse_tag(tag)).rank
        for tag in (
            "cp311-cp311-manylinux_2_28_x86_64",
            "cp311-cp311-manylinux_2_17_x86_64",
            "cp39-abi3-manylinux_2_28_x86_64",
            "py3-none-any",
        )
    ]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 4


def test_old_manylinux_names_stand_for_their_glibc_on_each_machine():
    assert "manylinux1_x86_64" in target().platform_tags
    assert "manylinux2014_aarch64" in target(machine="aarch64").platform_tags
    # There never was an older one for this machine.
    assert "manylinux_2_16_aarch64" not in target(machine="aarch64").platform_tags
    assert "manylinux2014_x86_64" not in target(glibc="2.16").platform_tags


@pytest.mark.parametrize(
    ("marker", "holds"),
    [
        ('python_version >= "3.13"', True),
        ('python_version < "3.13"', False),
        ('platform_machine == "aarch64"', True),
        ('sys_platform == "linux" and os_name == "posix"', True),
        ('sys_platform == "win32" or platform_system == "Darwin"', False),
        ('implementation_name != "cpython"', False),
        ('platform_python_implementation == "CPython"', True),
        ('extra == "test"', False),
    ],
)
def test_a_marker_true_only_on_the_builder_is_evaluated_for_the_target(marker, holds):
    elsewhere = target(machine="aarch64", python="3.13")
    assert elsewhere.holds(Marker(marker), where="x") is holds


def test_a_marker_on_the_patch_level_holds_if_it_may_and_demands_if_it_must():
    backport = Marker('python_full_version < "3.11.3"')
    assert target().holds(backport, where="x")
    assert not target().needs(backport, where="x")
    assert not target(python="3.12").holds(backport, where="x")


@pytest.mark.parametrize("variable", ["platform_release", "platform_version"])
def test_a_marker_on_the_running_kernel_is_refused(variable):
    with pytest.raises(Refused) as caught:
        target().holds(Marker(f'{variable} > "5"'), where="requirements.lock:1")
    assert caught.value.error_id == "marker-unknowable"


@pytest.mark.parametrize(
    ("specifier", "accepted"),
    [(">=3.8", True), (">=3.11.4", True), ("<3.11", False), ("==3.12.*", False), ("~=3.11", True)],
)
def test_requires_python_is_asked_for_the_minor_version(specifier, accepted):
    assert target().accepts_python(specifier) is accepted
