"""What each distribution may import is what its pyproject.toml says, and no more."""

import ast
import re
import sys
import tomllib

import pytest

from support.sources import DISTRIBUTIONS, ROOT, imported_names, modules

# This set is what a host must carry; a change of it is a decision, not a side effect.
HOST_DEPENDENCIES = {
    "blake3",
    "capsule-manifest",
    "click",
    "cryptography",
    "zstandard",
}
# Loaded by name at run time, never by an import statement: the database driver.
LOADED_BY_NAME = {"psycopg"}
MOVERS = {
    "capsule/capsule/builder/content_cache.py",  # what a cache loses is fetched again
    "capsule/capsule/builder/remembered.py",  # what is lost with the boot is worked out again
    "capsule/capsule/durable.py",
    "capsule/capsule/first_contact_host.py",
    "installer/capsule_installer/system/disk.py",
}


def declared(folder):
    """Return the names of a distribution's dependencies."""
    document = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    return {re.split(r"[\[<>=~! ]", text)[0] for text in document["project"]["dependencies"]}


def test_the_host_depends_on_the_agreed_packages_only():
    assert declared("installer") <= HOST_DEPENDENCIES


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_a_distribution_imports_only_what_it_declares(folder):
    allowed = set(sys.stdlib_module_names) | {DISTRIBUTIONS[folder]}
    allowed |= {name.replace("-", "_") for name in declared(folder)}
    foreign = [
        f"{module.name}:{line} {name}"
        for module in modules(folder)
        for line, name in imported_names(module)
        if name not in allowed
    ]
    assert foreign == []


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_a_distribution_declares_only_what_it_imports(folder):
    # A list is complete: it names what the formats need, too.
    used = {name for module in modules("manifest", folder) for _, name in imported_names(module)}
    unused = {
        name for name in declared(folder) - LOADED_BY_NAME if name.replace("-", "_") not in used
    }
    if not any(module.name.startswith("capsule/capsule/ledger/") for module in modules()):
        unused -= {"alembic", "sqlalchemy"}
    assert unused == set()


def test_no_import_is_relative():
    relative = [
        f"{module.name}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def calls(*names):
    """Yield every method call with one of these names."""
    for module in modules():
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in names
            ):
                yield module, node


def test_archives_are_never_unpacked_by_their_own_idea_of_a_path():
    # ruff sees the function's full name only; a method of an open archive escapes it.
    found = [f"{m.name}:{n.lineno}" for m, n in calls("extractall", "unpack_archive")]
    assert found == []


def test_files_are_moved_only_by_the_durable_modules():
    moves = [
        f"{module.name}:{node.lineno}"
        for module, node in calls("rename", "hardlink_to", "link_to", "replace")
        if not module.name.startswith(tuple(MOVERS))
        # the host program moves files through its Disk, whose methods have the kernel's names
        and not ast.unparse(node.func.value).endswith("disk")
        # str.replace takes two arguments, dataclasses.replace keywords, Path.replace one
        and (node.func.attr != "replace" or (len(node.args) == 1 and not node.keywords))
    ]
    assert moves == []
