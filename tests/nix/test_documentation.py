"""The examples of the pages about Nix are read by the code that they describe."""

import json
import re

import pytest

from capsule.builder.config import NixOrigin, parse_release
from capsule.builder.nix.program import _Component, _Description
from support.nix import IsolatedNix, reason_without_nix
from support.sources import ROOT

REFERENCE = ROOT / "docs" / "reference" / "nix.md"
HOW_TO = ROOT / "docs" / "how-to" / "nix.md"
AROUND = """\
format = 1
product = "acme/hello"
version = "1.0.0"
release_counter = 1
[installer]
min_version = "0.1.0"
reason = "the first release"
[platforms.bookworm]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
[roles.web]
components = ["python"]
"""


def block(page, language, begin):
    fenced = re.compile(rf"^ *```{language}\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    blocks = fenced.findall(page.read_text())
    (found,) = [text for text in blocks if begin in text]
    return found


@pytest.mark.parametrize(("page", "language"), [(REFERENCE, ""), (HOW_TO, "toml")])
def test_the_documented_origin_is_a_right_one(page, language, tmp_path):
    text = AROUND + block(page, language, "[components.python]")
    (component,) = parse_release(text.encode(), folder=tmp_path).components
    assert isinstance(component.origin, NixOrigin)


def test_every_reported_symptom_names_a_test_that_exists():
    named = re.findall(r"\| `([^`]+)::([^`]+)` \|$", REFERENCE.read_text(), re.MULTILINE)
    assert len(named) >= 10
    for path, function in named:
        assert f"\ndef {function}(" in (ROOT / "tests" / path).read_text(), function


def test_the_documented_description_has_all_that_is_read():
    described = _Description.model_validate_json(block(REFERENCE, "json", "capsule.nix/1"))
    for component in described.components.values():
        assert _Component.model_validate(component).kind == "toolchain"


@pytest.mark.skipif(bool(reason_without_nix()), reason=reason_without_nix())
def test_the_flake_of_the_how_to_gives_a_component(tmp_path):
    nix = IsolatedNix(tmp_path / "nix")
    (tmp_path / "flake.nix").write_text(block(HOW_TO, "nix", "componentsFor"))
    raw = nix.run(
        "nix-instantiate", "--eval", "--strict", "--json", "--expr",
        f"""
        let
          flake = import {tmp_path}/flake.nix;
          stub = (import {ROOT}/nix/testing/nixpkgs-stub/flake.nix).outputs {{ self = null; }};
          lib = import {ROOT}/nix/lib.nix;
          made = flake.outputs {{ self = null; nixpkgs = stub; capsule = {{ inherit lib; }}; }};
        in made.capsule.x86_64-linux.describe
        """,
    )  # fmt: skip
    component = _Component.model_validate(json.loads(raw)["components"]["python"])
    assert (component.kind, component.bin) == ("toolchain", ["bin/python3"])
