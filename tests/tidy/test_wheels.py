"""The three wheels: reproducible, and each holds its own package and nothing else."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.sources import DISTRIBUTIONS, ROOT, tracked


def build(folder, output):
    """Build one wheel and return its path."""
    program = "import sys, uv_build; print(uv_build.build_wheel(sys.argv[1]))"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    # uv_build starts the program beside this Python, which is not always on PATH
    environment["PATH"] = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    done = subprocess.run(
        [sys.executable, "-c", program, str(output)],
        cwd=ROOT / folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return output / done.stdout.split()[-1]


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_a_wheel_is_reproducible_and_holds_one_package(folder, tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    wheel = build(folder, first)
    assert wheel.read_bytes() == build(folder, second).read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.partition("/")[0] for name in names}
    package = DISTRIBUTIONS[folder]
    version = wheel.name.split("-")[1]
    assert tops == {package, f"{package}-{version}.dist-info"}
    expected = {
        name.removeprefix(f"{folder}/")
        for name in tracked()
        if name.startswith(f"{folder}/{package}/")
    }
    assert expected <= names
