"""Wheels: what is installed, byte for byte, and every way in which a wheel can be wrong."""

import base64
import hashlib
import os
import subprocess
import sys
import venv

import pytest

from capsule.builder.wheel_file import read_wheel
from capsule.builder.wheel_install import external_of, install_wheels, picked_members
from capsule_manifest.errors import Refused
from support.wheels import WheelFile, digest_of, pin_of, target

LIBRARY = "lib/python3.11/site-packages"


def wheel(tmp_path, made=None, **options):
    made = made or WheelFile(**options)
    path = made.write(tmp_path)
    return read_wheel(path, pin_of(path, name=made.name, version=made.version))


def installed(*wheels, **changes):
    entries = {}
    for entry in install_wheels(wheels, target(**changes)):
        with entry.open() as stream:
            content = stream.read()
        assert len(content) == entry.size_bytes
        entries[entry.path] = (entry.mode, content)
    return entries


def refusal(call, *arguments, **options):
    with pytest.raises(Refused) as caught:
        call(*arguments, **options)
    return caught.value


def test_a_wheel_is_laid_out_as_an_environment(tmp_path):
    entries = installed(
        wheel(
            tmp_path,
            files={
                "demo/__init__.py": b"x = 1\n",
                "demo/native.so": b"\x7fELF",
                "demo-1.0.data/purelib/pure.py": b"p\n",
                "demo-1.0.data/platlib/plat.py": b"q\n",
                "demo-1.0.data/headers/demo.h": b"h\n",
                "demo-1.0.data/data/share/doc/demo.txt": b"d\n",
                "demo-1.0.data/scripts/tool": b"\x7fELF tool",
                "demo-1.0.data/scripts/script": b"#!python -u\nprint(1)\n",
            },
            modes={"demo/native.so": 0o100755},
            entry_points="[console_scripts]\ndemo = demo:main\n"
            "[gui_scripts]\ndemo-g = demo.g:A.b\n",
        )
    )
    assert {path: mode for path, (mode, _) in entries.items()} == {
        f"{LIBRARY}/demo/__init__.py": 0o644,
        f"{LIBRARY}/demo/native.so": 0o755,
        f"{LIBRARY}/pure.py": 0o644,
        f"{LIBRARY}/plat.py": 0o644,
        f"{LIBRARY}/demo-1.0.dist-info/METADATA": 0o644,
        f"{LIBRARY}/demo-1.0.dist-info/WHEEL": 0o644,
        f"{LIBRARY}/demo-1.0.dist-info/entry_points.txt": 0o644,
        "include/site/python3.11/demo/demo.h": 0o644,
        "share/doc/demo.txt": 0o644,
        "bin/tool": 0o755,
        "bin/script": 0o755,
        "bin/demo": 0o755,
        "bin/demo-g": 0o755,
    }
    assert entries["bin/tool"][1] == b"\x7fELF tool"
    assert entries["bin/script"][1].endswith(b"' '''\nprint(1)\n")
    assert b"from demo.g import A\n" in entries["bin/demo-g"][1]
    assert b"sys.exit(A.b())" in entries["bin/demo-g"][1]


def test_the_layout_follows_the_targets_python(tmp_path):
    assert "lib/python3.13/site-packages/demo/__init__.py" in installed(
        wheel(tmp_path), python="3.13"
    )


def test_what_pip_says_about_itself_and_bytecode_are_left_out(tmp_path):
    info = "demo-1.0.dist-info"
    files = {
        "demo/__init__.py": b"",
        "demo/__pycache__/__init__.cpython-311.pyc": b"stale",
        "demo/sourceless.pyc": b"kept",
        f"{info}/INSTALLER": b"pip\n",
        f"{info}/REQUESTED": b"",
        f"{info}/direct_url.json": b"{}",
    }
    names = {path.removeprefix(f"{LIBRARY}/") for path in installed(wheel(tmp_path, files=files))}
    assert names == {
        "demo/__init__.py",
        "demo/sourceless.pyc",
        f"{info}/METADATA",
        f"{info}/WHEEL",
    }


def test_the_wheel_is_named_by_what_others_know_it_by(tmp_path):
    item = wheel(tmp_path)
    external = external_of(item)
    assert (external.type, external.name) == ("wheel", "demo-1.0-py3-none-any.whl")
    assert external.digest == f"sha256:{item.pin.sha256}"


# --- RECORD -------------------------------------------------------------------------------------


def with_record(change):
    made = WheelFile()
    lines = made.record_of(made.contents()).decode().splitlines()
    made.record = ("\n".join(change(lines)) + "\n").encode()
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1:],
        lambda lines: [*lines, f"demo/ghost.py,{digest_of(b'')},0"],
        lambda lines: [lines[0], *lines],
        lambda lines: [lines[0].replace("sha256=", "sha256=A"), *lines[1:]],
        lambda lines: [lines[0].rpartition(",")[0] + ",7", *lines[1:]],
        lambda lines: ["demo/__init__.py,,", *lines[1:]],
        lambda lines: [
            f"demo/__init__.py,{digest_of(b'x = 1' + bytes([10]), 'md5')},6",
            *lines[1:],
        ],
        lambda lines: [lines[0] + ",more", *lines[1:]],
        lambda lines: ['"unfinished', *lines],
    ],
    ids=["missing", "ghost", "twice", "digest", "size", "none", "weak", "fields", "csv"],
)
def test_a_record_that_does_not_match_is_refused(tmp_path, change):
    error = refusal(wheel, tmp_path, with_record(change))
    assert error.error_id == "wheel-record-mismatch"


def test_a_file_that_record_does_not_list_is_refused(tmp_path):
    error = refusal(wheel, tmp_path, extra={"demo/backdoor.py": b"evil"})
    assert (error.error_id, error.got) == ("wheel-record-mismatch", "demo/backdoor.py")


def test_signatures_beside_record_need_no_row(tmp_path):
    files = installed(wheel(tmp_path, extra={"demo-1.0.dist-info/RECORD.jws": b"{}"}))
    assert f"{LIBRARY}/demo-1.0.dist-info/RECORD.jws" not in files


def test_a_stronger_digest_and_an_absent_size_are_accepted(tmp_path):
    def change(lines):
        return [f"demo/__init__.py,{digest_of(b'x = 1' + bytes([10]), 'sha512')},", *lines[1:]]

    item = wheel(tmp_path, with_record(change))
    assert item.examined["demo/__init__.py"].sha256 == hashlib.sha256(b"x = 1\n").digest()


def test_a_wheel_without_record_is_refused(tmp_path):
    made = WheelFile(record=b"")
    raw = made.raw().replace(b"dist-info/RECORD", b"dist-info/record")
    path = tmp_path / made.file
    path.write_bytes(raw)
    assert refusal(read_wheel, path, pin_of(path)).error_id == "wheel-record-mismatch"


# --- identity and metadata ----------------------------------------------------------------------


def test_a_wheel_that_is_not_the_pinned_one_is_refused(tmp_path):
    path = WheelFile().write(tmp_path)
    pin = pin_of(path)
    path.write_bytes(WheelFile(files={"demo/__init__.py": b"x = 2\n"}).raw())
    error = refusal(read_wheel, path, pin)
    assert error.error_id == "wheel-digest-mismatch"
    assert pin.sha256 in error.expected


@pytest.mark.parametrize(
    "options",
    [
        {"extra": {"other-1.0.dist-info/METADATA": b""}},
        {"extra": {"Demo-1.0.DIST-INFO/METADATA": b""}},
        {"extra": {"demo-1.0.dist-info/metadata": b""}},
        {"wheel_version": "2.0"},
        {"files": {"demo-1.0.dist-info/METADATA": b"Name: other\nVersion: 1.0\n"}},
        {"files": {"demo-1.0.dist-info/METADATA": b"Name: demo\nVersion: 2.0\n"}},
        {"files": {"demo-1.0.dist-info/METADATA": b"Name: demo\nName: demo\nVersion: 1.0\n"}},
        {"metadata": "Requires-Dist: ???\n"},
    ],
    ids=["two", "two by case", "case", "format", "name", "version", "names", "requires"],
)
def test_ambiguous_or_wrong_metadata_is_refused(tmp_path, options):
    assert refusal(wheel, tmp_path, **options).error_id == "wheel-metadata-invalid"


@pytest.mark.parametrize(
    "entry_points",
    [
        "[console_scripts]\ndemo = demo\n",
        "[console_scripts]\ndemo = demo:main; import os\n",
        "[console_scripts]\ndemo = demo:main()\n",
        "[console_scripts]\ndemo = de-mo:main\n",
        "no section\n",
        "[console_scripts]\na = b:c\na = b:d\n",
    ],
)
def test_a_malformed_entry_point_is_refused(tmp_path, entry_points):
    item = wheel(tmp_path, entry_points=entry_points)
    assert refusal(installed, item).error_id == "wheel-metadata-invalid"


def test_a_launcher_can_not_be_written_outside_bin(tmp_path):
    item = wheel(tmp_path, entry_points="[console_scripts]\n../../evil = demo:main\n")
    assert refusal(installed, item).error_id == "path-invalid"


def test_a_section_of_defaults_makes_no_launcher(tmp_path):
    item = wheel(tmp_path, entry_points="[DEFAULT]\nx = y:z\n[console_scripts]\na = b:c\n")
    assert {path for path in installed(item) if path.startswith("bin/")} == {"bin/a"}


def test_metadata_that_is_not_ascii_is_read(tmp_path):
    metadata = "Author: Zoë\nRequires-Python: >=3.8\n"
    assert wheel(tmp_path, metadata=metadata).requires_python == ">=3.8"
    odd = {"demo-1.0.dist-info/WHEEL": "Wheel-Version: Zoë\n".encode()}
    assert refusal(wheel, tmp_path, files=odd).error_id == "wheel-metadata-invalid"


def test_names_of_launchers_keep_their_case(tmp_path):
    item = wheel(tmp_path, entry_points="[console_scripts]\nDemo = demo:main\n")
    assert "bin/Demo" in installed(item)


# --- layout -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "demo-1.0.data/data/pyvenv.cfg",
        "demo-1.0.data/scripts/python",
        "demo-1.0.data/scripts/python3",
        "demo-1.0.data/data/bin/python3.11",
        "demo-1.0.data/strange/x",
        "demo-1.0.data/x",
        "demo-2.0.data/scripts/x",
        "other-1.0.data/scripts/x",
    ],
)
def test_a_place_that_no_wheel_may_write_is_refused(tmp_path, name):
    item = wheel(tmp_path, files={name: b"x"})
    assert refusal(installed, item).error_id == "wheel-layout-invalid"


@pytest.mark.parametrize("name", ["__editable__.demo.pth", "__editable___demo_finder.py"])
def test_an_editable_install_inside_the_environment_is_refused_with_its_path(tmp_path, name):
    error = refusal(installed, wheel(tmp_path, files={name: b"/home/me/src\n"}))
    assert (error.error_id, error.got) == ("requirement-editable", name)


def test_two_wheels_that_write_one_path_with_other_bytes_are_refused(tmp_path):
    one = wheel(tmp_path, name="one", files={"shared/a.py": b"1"})
    two = wheel(tmp_path, name="two", files={"shared/a.py": b"2"})
    error = refusal(installed, one, two)
    assert error.error_id == "wheel-conflict"
    assert {error.expected, error.got} == {one.pin.file, two.pin.file}


def test_two_wheels_may_write_the_same_bytes(tmp_path):
    one = wheel(tmp_path, name="one", files={"shared/__init__.py": b""})
    two = wheel(tmp_path, name="two", files={"shared/__init__.py": b""})
    assert f"{LIBRARY}/shared/__init__.py" in installed(one, two)


def test_a_file_of_one_wheel_in_the_place_of_anothers_folder_is_refused(tmp_path):
    one = wheel(tmp_path, name="one", files={"shared": b"1"})
    two = wheel(tmp_path, name="two", files={"shared/a.py": b"2"})
    assert refusal(installed, one, two).error_id == "wheel-conflict"


# --- dependencies -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requires", "is_complete"),
    [
        ("other", True),
        ("Other>=1", True),
        ("other>=2", False),
        ("missing", False),
        ('missing ; extra == "test"', True),
        ('missing ; sys_platform == "win32"', True),
        ('missing ; python_version < "3.11"', True),
        ('missing ; python_full_version < "3.11.3"', True),
        ('missing ; sys_platform == "linux"', False),
    ],
)
def test_a_dependency_that_is_not_locked_is_found_before_any_host(tmp_path, requires, is_complete):
    one = wheel(tmp_path, metadata=f"Requires-Dist: {requires}\n")
    two = wheel(tmp_path, name="other", files={"other.py": b""})
    if is_complete:
        assert installed(one, two)
    else:
        error = refusal(installed, one, two)
        assert error.error_id == "wheel-dependency-missing"
        assert "bookworm" in error.where


def test_a_wheel_for_another_python_is_refused(tmp_path):
    item = wheel(tmp_path, metadata="Requires-Python: >=3.12\n")
    assert refusal(installed, item).error_id == "wheel-python-unfit"


# --- tools --------------------------------------------------------------------------------------


def test_members_of_a_wheel_become_programs(tmp_path):
    item = wheel(tmp_path, files={"demo-1.0.data/scripts/tool": b"\x7fELF", "demo/x.py": b""})
    (entry,) = picked_members(item, "demo-*.data/scripts/*")
    assert (entry.path, entry.mode) == ("bin/tool", 0o755)


def test_a_pattern_that_matches_nothing_is_refused_with_what_there_is(tmp_path):
    error = refusal(picked_members, wheel(tmp_path), "bin/none")
    assert error.error_id == "tool-member-missing"
    assert "demo/__init__.py" in error.got


# --- launchers ----------------------------------------------------------------------------------

MAIN = (
    b"import os, sys\ndef main():\n    print(sys.argv[1:], sys.prefix, os.getcwd() in sys.path)\n"
)


@pytest.fixture
def environment(tmp_path):
    """Lay out an environment at a place with a space in its name, as a host would."""
    item = wheel(
        tmp_path,
        files={"demo/__init__.py": MAIN, "demo-1.0.data/scripts/old": b"#!python\n" + MAIN},
        entry_points="[console_scripts]\ndemo = demo:main\n",
    )
    folder = tmp_path / ("a folder" + "-long" * 30)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path, (mode, content) in installed(item, python=version).items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(mode)
    builder = venv.EnvBuilder(symlinks=True, with_pip=False)
    context = builder.ensure_directories(str(folder))
    builder.create_configuration(context)
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    return folder


def run(argv, folder, **variables):
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, check=False)
    return done.stdout.decode().strip(), done.stderr.decode()


def test_a_launcher_runs_the_python_beside_it_wherever_it_lies(environment, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(environment / "bin" / "demo")
    moved = tmp_path / "current"
    moved.symlink_to(environment)
    expected = f"['a b', '*'] {environment} False"
    program = str(environment / "bin" / "demo")
    hostile = {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere"}
    calls = {
        "path": ([program], {}),
        "link": ([str(link)], {}),
        "PATH": (["demo"], {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}),
        "hostile": ([program], hostile),
        "shell": (["sh", "demo"], {}),
    }
    for name, (argv, variables) in calls.items():
        out, errors = run([*argv, "a b", "*"], environment / "bin", **variables)
        assert out == expected, f"{name}: {errors}"
    # A generation is reached through `current`; both names of its folder are right.
    out, errors = run([str(moved / "bin" / "demo")], tmp_path)
    assert out.startswith("[]"), errors


def test_a_script_of_old_style_runs_too(environment):
    out, errors = run([str(environment / "bin" / "old"), "1"], environment)
    assert (out, errors) == ("", "")


def test_installing_is_the_same_every_time(tmp_path):
    made = WheelFile(entry_points="[console_scripts]\nb = b:b\na = a:a\n")
    first, second = (installed(wheel(tmp_path, made)) for _ in range(2))
    assert list(first.items()) == list(second.items())


def test_a_digest_in_record_is_compared_exactly(tmp_path):
    # Padding is no part of the form; a digest that only decodes to the same is another text.
    def change(lines):
        padded = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).decode()
        return [f"demo/__init__.py,sha256={padded},6", *lines[1:]]

    assert refusal(wheel, tmp_path, with_record(change)).error_id == "wheel-record-mismatch"
