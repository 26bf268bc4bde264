"""Three distributions, one version; locks that name versions and hashes and no place."""

import importlib
import re
import tomllib

import pytest

from support.locking import DEV_LOCK, HOST_LOCK, RUN_LOCK, declared
from support.sources import DISTRIBUTIONS, ROOT

LOCKS = [RUN_LOCK, HOST_LOCK, DEV_LOCK]
PROJECTS = {
    folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    for folder in DISTRIBUTIONS
}


def name_of(requirement):
    """Return the normalised name that a requirement begins with."""
    return re.split(r"[\[<>=~!; ]", requirement)[0].lower().replace("_", "-")


def locked(lock):
    """Return name -> number of hashes."""
    blocks = re.split(r"\n(?=\S)", (ROOT / lock).read_text())
    return {name_of(block): block.count("--hash=sha256:") for block in blocks if "==" in block}


def test_all_versions_are_equal():
    versions = {folder: project["version"] for folder, project in PROJECTS.items()}
    assert len(set(versions.values())) == 1, versions
    for package in DISTRIBUTIONS.values():
        module = importlib.import_module(package)
        assert module.__version__ == versions["manifest"], package


def test_a_distribution_pins_the_other_one_exactly():
    version = PROJECTS["manifest"]["version"]
    for folder in ("installer", "capsule"):
        assert f"capsule-manifest=={version}" in PROJECTS[folder]["dependencies"]


def test_nothing_can_be_uploaded_by_accident():
    for project in PROJECTS.values():
        assert "Private :: Do Not Upload" in project["classifiers"]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_place(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--index|--extra-index|--find-links)", text, re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_version_has_hashes(lock):
    assert len(locked(lock)) > 5
    assert [name for name, hashes in locked(lock).items() if hashes == 0] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_every_declared_dependency_is_locked(lock):
    assert {name_of(text) for text in declared(ROOT)[lock]} <= set(locked(lock))


@pytest.mark.parametrize("lock", [HOST_LOCK, DEV_LOCK])
def test_no_lock_fixes_another_version_than_the_first(lock):
    def pins(name):
        return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))

    run, other = pins(RUN_LOCK), pins(lock)
    differing = [name for name in run.keys() & other.keys() if run[name] != other[name]]
    assert differing == []
