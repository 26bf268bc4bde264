"""One wheel from whatever index this machine's pip is configured for."""

import os
import re

import pytest

from capsule.builder.pip_fetch import PipFetcher
from capsule.builder.wheels import check_file, parse_requirements
from capsule_manifest.errors import CapsuleError
from support.sources import ROOT
from support.wheels import pin_of, target

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_a_native_wheel_for_another_machine_comes_from_a_real_index(tmp_path):
    text = (ROOT / "capsule/capsule/builder/runtime.lock").read_text()
    (block,) = re.findall(r"^zstandard==.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    elsewhere = target(machine="aarch64", python="3.13", glibc="2.31")
    wanted = parse_requirements(block.encode(), elsewhere, where="runtime.lock")
    try:
        PipFetcher(os.environ).fetch(wanted, elsewhere, tmp_path)
    except CapsuleError as error:
        if error.error_id in {"wheel-fetch-failed", "wheel-not-found"}:
            pytest.skip(f"no index answers: {error}")
        raise
    (path,) = tmp_path.glob("*.whl")
    (item,) = wanted
    check_file(path.name, item.name, item.version, elsewhere, where="")
    assert pin_of(path).sha256 in item.sha256
    assert "aarch64" in path.name
