"""What is imported, rendered and compiled before anything is drained, with a real interpreter."""

import sys
from pathlib import Path

import pytest

from capsule_installer.host.layout import make_layout
from capsule_installer.staging.rehearse import entry_point_modules, modules_of, rehearse
from capsule_installer.staging.render import node_values, render, unit_addition
from capsule_installer.staging.venv import RealPython, bytecode_tree, make_venv
from capsule_installer.system.disk import RealDisk
from capsule_installer.system.processes import RealProcesses
from capsule_manifest.digest import CapsuleId
from capsule_manifest.release import ComponentKind, Probe, Unit
from capsule_manifest.tree import build_tree
from support import documents, formats
from support.deliveries import FakeServices, default_parts, part
from support.failures import fails_with

SITE = "lib/python3.11/site-packages"
PYTHON = RealPython(RealProcesses())


def modules(paths, texts=None):
    tree = build_tree(formats.file(path) for path in paths)
    return modules_of(tree, lambda path: (texts or {})[path])


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"{SITE}/fast/core.cpython-311-x86_64-linux-gnu.so", ["fast"]),
        (f"{SITE}/fast/deep/er/core.abi3.so", ["fast"]),
        (f"{SITE}/_backend.cpython-311-x86_64-linux-gnu.so", ["_backend"]),
        (f"{SITE}/plain.so", ["plain"]),
        (f"{SITE}/numpy.libs/libopenblas.so", []),
        (f"{SITE}/fast/libx.so.1", []),
        (f"{SITE}/pure/__init__.py", []),
        ("bin/tool.so", []),
    ],
)
def test_packages_with_compiled_parts_are_imported(path, found):
    assert modules([path]) == found


def test_modules_of_console_scripts_are_imported():
    path = f"{SITE}/tool-1.0.dist-info/entry_points.txt"
    text = (
        b"[console_scripts]\ntool = tool.cli:main\nother=tool.other:main [extra]\n"
        b"\n[gui_scripts]\nx = gui:main\n"
    )
    assert modules([path], {path: text}) == ["tool.cli", "tool.other"]
    assert list(entry_point_modules("tool = a:b")) == []


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    package = tmp_path / "libs" / SITE / "hello"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 42\n")
    (package / "broken.py").write_text("import no_such_module\n")
    (package / "template.py").write_text("{% not python %}\n")
    (package / "noisy.py").write_text("print('noise \\x1e {}')\n")
    (package / "ends.py").write_text("import os\nos._exit(3)\n")
    make_venv(RealDisk(), str(tmp_path / "libs"), interpreter=sys.executable, python="3.11")
    return tmp_path / "libs"


def test_a_venv_imports_from_its_own_folder(venv):
    assert PYTHON.imports(f"{venv}/bin/python", ["hello", "hello.noisy"]) == {}


def test_a_failing_import_is_told_with_its_reason(venv):
    failed = PYTHON.imports(f"{venv}/bin/python", ["hello.broken", "hello"])
    assert list(failed) == ["hello.broken"]
    assert "no_such_module" in failed["hello.broken"]


def distribution(venv, name, source, requires=""):
    """Put a distribution of one module into the venv."""
    site = venv / SITE
    module = name.replace("-", "_").lower()
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{requires}")
    (info / "top_level.txt").write_text(f"{module}\n")
    (info / "RECORD").write_text(f"{module}.py,,\n")


INSISTS = "import sys\nif 'slow' not in sys.modules: raise ImportError('import slow first')\n"


def test_an_accelerator_is_imported_after_the_package_that_it_is_for(venv):
    distribution(venv, "Slow-C", INSISTS)
    distribution(venv, "slow", "", "Requires-Dist: slow_c>=1 ; extra == 'c'\n")
    assert PYTHON.imports(f"{venv}/bin/python", ["slow_c", "hello"]) == {}


def test_an_accelerator_of_nobody_fails_as_it_did(venv):
    distribution(venv, "Slow-C", INSISTS)
    distribution(venv, "slow", "", "Requires-Dist: another\n")
    failed = PYTHON.imports(f"{venv}/bin/python", ["slow_c", "hello"])
    assert failed == {"slow_c": "ImportError: import slow first"}


def test_a_package_that_fails_is_told_also_where_the_one_that_requires_it_fails_too(venv):
    distribution(venv, "Slow-C", INSISTS)
    distribution(venv, "fast", "raise SystemExit(0)\n", "Requires-Dist: slow-c\n")
    assert list(PYTHON.imports(f"{venv}/bin/python", ["slow_c"])) == ["slow_c"]


def test_a_package_that_ends_the_interpreter_is_a_failure(venv):
    with fails_with("rehearsal-failed"):
        PYTHON.imports(f"{venv}/bin/python", ["hello.ends"])


def test_nothing_of_the_builders_environment_is_importable(venv):
    failed = PYTHON.imports(f"{venv}/bin/python", ["pytest", "hypothesis"])
    assert set(failed) == {"pytest", "hypothesis"}


def test_bytecode_is_unchecked_and_never_written_again(venv):
    PYTHON.compile(str(venv), sys.executable)
    cache = venv / SITE / "hello" / "__pycache__"
    compiled = cache / "__init__.cpython-311.pyc"
    raw = compiled.read_bytes()
    # PEP 552: bit 0 says hash-based, bit 1 that the source is checked.
    assert int.from_bytes(raw[4:8], "little") == 0b01
    assert not (cache / "template.cpython-311.pyc").exists()
    (venv / SITE / "hello" / "__init__.py").write_text("VALUE = 43\n")
    assert PYTHON.imports(f"{venv}/bin/python", ["hello"]) == {}
    assert compiled.read_bytes() == raw


def test_the_listing_of_bytecode_names_every_file(venv):
    PYTHON.compile(str(venv), sys.executable)
    tree = build_tree([formats.file(f"{SITE}/hello/__init__.py")])
    listing = bytecode_tree(RealDisk(), str(venv.parent), {"libs": tree})
    files = {entry.path for entry in listing.entries if entry.object is not None}
    on_disk = {str(path.relative_to(venv.parent)) for path in venv.rglob("*.pyc")}
    assert files == on_disk
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in venv.rglob("*.pyc"))


# --- rendering -----------------------------------------------------------------------------------


def rendered(root: str, **node_vars: str) -> dict[str, bytes]:
    layout = make_layout(root)
    parts = {item.name: item for item in default_parts()}

    def read(component, path):
        item = parts[component.name]
        (entry,) = (entry for entry in item.entries if entry.path == path)
        return item.contents[entry.object]

    values = node_values(layout, generation="7-01234567", node="n1", node_vars=node_vars)
    addition = unit_addition(
        layout, documents.make_release(), capsule=CapsuleId("sha256:0"), generation="7-01234567"
    )
    components = [item for item in parts.values() if item.units or item.files]
    return render(components, values, addition, read)  # type: ignore[arg-type]


def test_a_unit_on_a_real_host_waits_for_its_mounts():
    unit = rendered("/", port="1")["units/hello.service"].decode()
    assert "ConditionPathExists=!/var/lib/capsule/hold\n" in unit
    assert "RequiresMountsFor=/opt/capsule /var/lib/capsule\n" in unit
    assert "ExecStart=/opt/capsule/generations/7-01234567/app/run --port 1\n" in unit


def test_a_unit_below_a_folder_has_that_folders_paths_and_no_mounts():
    unit = rendered("/srv/n1", port="1")["units/hello.service"].decode()
    assert "ConditionPathExists=!/srv/n1/var/lib/capsule/hold\n" in unit
    assert "RequiresMountsFor" not in unit


def test_what_the_host_adds_can_not_be_swallowed_by_a_trailing_backslash():
    unit = rendered("/", port="1 \\")["units/hello.service"].decode()
    assert unit.count("\n\n[Unit]\n") == 1


def test_a_missing_value_is_refused_at_stage():
    with fails_with("template-value-missing"):
        rendered("/")


def test_a_value_called_id_does_not_hide_the_nodes_name():
    values = node_values(make_layout("/"), generation="g", node="n1", node_vars={"id": "evil"})
    assert values["node.id"] == "n1"


def test_a_probe_without_its_value_is_refused_at_stage():
    unit = Unit(
        name="hello.service", file="u", start_timeout_ms=1, stop_timeout_ms=1, soak_ms=1,
        probe=Probe(http="http://127.0.0.1:@{node.port}/", timeout_ms=1),
    )  # fmt: skip
    component = part("web", ComponentKind.SERVICE, {"u": b"[Service]\n"}, units=(unit,))
    with fails_with("template-value-missing"):
        render([component], {}, lambda name: name, lambda *_: b"[Service]\n")  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("path", "data", "good"),
    [
        ("files/a.toml", b"x = 1\n", True),
        ("files/a.toml", b"x = = 1\n", False),
        ("files/a.toml", b"\xff", False),
        ("files/a.json", b"{}", True),
        ("files/a.json", b"{", False),
        ("files/a.conf", b"= =", True),
    ],
)
def test_configuration_of_known_kinds_is_parsed(path, data, good):
    def run():
        rehearse({path: data}, [], FakeServices(), PYTHON)

    if good:
        run()
        assert path.startswith("files/")
    else:
        with fails_with("rehearsal-failed"):
            run()
