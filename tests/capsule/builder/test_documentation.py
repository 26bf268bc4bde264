"""The examples of the reference pages are read by the code that they describe."""

import re

import pytest

from capsule.builder.config import parse_release
from capsule.builder.lockfile import decode_lock, encode_lock
from capsule.schemas import SCHEMAS, schema_text
from capsule_manifest.release import ComponentKind
from support.sources import ROOT

REFERENCE = ROOT / "docs" / "reference"


def example(page):
    text = (REFERENCE / page).read_text(encoding="utf-8")
    (found,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found.encode()


def test_the_documented_release_is_a_right_one(tmp_path):
    release = parse_release(example("release-toml.md"), folder=tmp_path)
    kinds = {component.kind.value for component in release.components}
    assert kinds == {kind.value for kind in ComponentKind} - {"runtime"}


def test_the_documented_lock_is_written_as_documented():
    raw = example("release-lock.md")
    head = encode_lock(decode_lock(raw)).decode().partition("format = 1")[0]
    assert encode_lock(decode_lock(raw)).decode() == head + raw.decode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_schema_is_the_one_of_the_code(golden, name):
    golden(REFERENCE / f"{name}.schema.json", schema_text(name))
