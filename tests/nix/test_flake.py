"""This tree's own flake: evaluated, checked, built and entered by a real Nix without network.

The stub stands in for nixpkgs, which is too large for that: what it can't show is said in
docs/reference/nix.md.
"""

import json
import os
import shutil
import tomllib

import pytest
from packaging.requirements import Requirement

from capsule.builder.nix import program
from support.nix import IsolatedNix, reason_without_nix
from support.sources import ROOT

PARTS = ("capsule", "manifest", "installer")
SYSTEM = f"{os.uname().machine}-linux"

pytestmark = pytest.mark.skipif(bool(reason_without_nix()), reason=reason_without_nix())


@pytest.fixture(scope="module")
def nix(tmp_path_factory):
    return IsolatedNix(tmp_path_factory.mktemp("nix"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return the parts of this tree that the flake reads, as git would have them."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("flake.nix", "flake.lock"):
        shutil.copy(ROOT / name, folder / name)
    no_bytecode = shutil.ignore_patterns("__pycache__")
    for name in ("nix", *PARTS):
        shutil.copytree(ROOT / name, folder / name, ignore=no_bytecode)
    return folder


@pytest.fixture(scope="module")
def flake(nix, tree):
    def run(*command, attribute=""):
        stub = f"path:{tree}/nix/testing/nixpkgs-stub"
        reference = f"path:{tree}" + (f"#{attribute}" if attribute else "")
        verb = command[:2] if command[0] == "flake" else command[:1]
        rest = command[len(verb) :]
        return nix.run(
            "nix", *verb, reference, "--no-write-lock-file",
            "--override-input", "nixpkgs", stub, *rest,
        )  # fmt: skip

    return run


def test_the_functions_pass_their_own_tests(nix):
    raw = nix.run(
        "nix-instantiate", "--eval", "--strict", "--json", str(ROOT / "nix" / "tests.nix")
    )
    assert json.loads(raw) == []


def test_the_flake_checks(flake):
    flake("flake", "check")


def test_the_shell_is_entered(flake):
    # Not its name: versions of Nix differ in that.
    assert "-skopeo-stub-0" in flake("develop", "-c", "sh", "-c", "echo $packages")


def test_the_built_package_is_this_program(flake, nix):
    (built,) = json.loads(flake("build", "--json", "--no-link", attribute="default"))
    listed = nix.run("nix", "store", "ls", "--json", "--recursive", built["outputs"]["out"])
    folders = json.loads(listed)["entries"]["lib"]["entries"]
    assert sorted(folders) == ["capsule", "capsule_installer", "capsule_manifest"]
    wrapper = nix.run("nix", "store", "cat", f"{built['outputs']['out']}/bin/capsule")
    assert f"PYTHONPATH={built['outputs']['out']}/lib" in wrapper
    assert "/bin/python3 -m capsule" in wrapper


def test_components_are_described_as_the_builder_reads_them(flake):
    raw = flake("eval", "--json", attribute=f"capsule.{SYSTEM}.describe")
    described = program._Description.model_validate_json(raw).components
    components = {name: program._Component.model_validate(item) for name, item in described.items()}
    assert {name: item.kind for name, item in components.items()} == {
        "git": "toolchain",
        "python": "toolchain",
        "zstd": "helper",
    }
    assert components["python"].bin == ["bin/python3"]
    assert components["python"].system == SYSTEM


def test_the_stub_knows_what_the_program_needs(flake):
    project = tomllib.loads((ROOT / "capsule" / "pyproject.toml").read_text())
    names = [text for text in project["project"]["dependencies"] if "capsule-" not in text]
    found = json.loads(
        flake(
            "eval", "--json", "--apply",
            f"lib: map lib.requirementName (builtins.fromJSON ''{json.dumps(names)}'')",
            attribute="lib",
        )
    )  # fmt: skip
    assert found == [Requirement(text).name for text in names]


def test_the_lock_of_inputs_is_left_as_it_is(flake, tree):
    flake("flake", "metadata")
    assert (tree / "flake.lock").read_bytes() == (ROOT / "flake.lock").read_bytes()
