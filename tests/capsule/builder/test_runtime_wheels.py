"""The host program as a component: what it imports, and its own sources, never imported here."""

import re
import subprocess
import sys

from capsule import __version__
from capsule.builder.runtime_wheels import runtime_input, runtime_name, runtime_wanted
from capsule.builder.wheel_file import read_wheel
from support.sources import ROOT
from support.wheels import WheelFile, pin_of, target

NEEDED = {"blake3", "cffi", "click", "cryptography", "pycparser", "zstandard"}


def component(tmp_path):
    path = WheelFile(
        files={"demo/__init__.py": b""}, entry_points="[console_scripts]\ndemo = demo:main\n"
    ).write(tmp_path)
    return runtime_input(target(), [read_wheel(path, pin_of(path))])


def test_the_lock_has_all_that_a_host_needs_on_every_python():
    for python in ("3.11", "3.12", "3.13", "3.14"):
        for machine in ("x86_64", "aarch64"):
            wanted, _ = runtime_wanted(target(python=python, machine=machine))
            # Some versions of Python need a backport besides.
            assert NEEDED <= {item.name for item in wanted} <= NEEDED | {"typing-extensions"}


def test_the_lock_names_no_place_and_agrees_with_what_is_tested():
    text = (ROOT / "capsule/capsule/builder/runtime.lock").read_text()
    assert "://" not in text
    tested = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^[a-z0-9-]+==\S+", text, re.MULTILINE)
    assert {pin.partition("=")[0] for pin in pins} == NEEDED | {"typing-extensions"}
    assert [pin for pin in pins if pin not in tested] == []


def test_the_tree_has_both_packages_and_the_wheels_and_no_launcher(tmp_path):
    runtime = component(tmp_path)
    paths = {entry.path for entry in runtime.entries}
    assert runtime.name == runtime_name("bookworm") == "runtime-bookworm"
    assert runtime.platforms == ("bookworm",)
    assert {
        "VERSION",
        "site/demo/__init__.py",
        "site/capsule_manifest/release.py",
        "site/capsule_installer/__init__.py",
    } <= paths
    assert {path.partition("/")[0] for path in paths} == {"site", "VERSION"}
    assert not [path for path in paths if "__pycache__" in path or path.endswith(".pyc")]


def test_the_bytes_are_those_of_the_installed_packages(tmp_path):
    found = {entry.path: entry for entry in component(tmp_path).entries}
    with found["VERSION"].open() as stream:
        assert stream.read() == f"{__version__}\n".encode()
    entry = found["site/capsule_manifest/release.py"]
    with entry.open() as stream:
        content = stream.read()
    assert content == (ROOT / "manifest/capsule_manifest/release.py").read_bytes()
    assert entry.size_bytes == len(content)


def test_the_host_program_is_found_without_being_imported(tmp_path):
    code = (
        "import sys\n"
        "from capsule.builder.runtime_wheels import _package_entries\n"
        "assert list(_package_entries('capsule_installer'))\n"
        "print('capsule_installer' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
