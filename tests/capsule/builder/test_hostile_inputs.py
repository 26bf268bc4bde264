"""Whatever bytes an input has: it is read or refused, and nothing else happens."""

import io
import tarfile
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from capsule.builder.archive import archive_entries
from capsule.builder.config import parse_release
from capsule.builder.lockfile import decode_lock
from capsule.builder.pylock import parse_pylock
from capsule.builder.wheel_file import read_wheel
from capsule.builder.wheel_install import install_wheels
from capsule.builder.wheels import parse_requirements
from capsule_manifest.errors import Refused
from support.wheels import WheelFile, pin_of, target, zip_bytes

SHA = "a" * 64
WORDS = st.sampled_from(
    [
        "demo", "==", "1.0", ">=", "~=", "===", ";", " ", "\n", "\\\n", "#", "--hash=sha256:", SHA,
        "--hash", "-e", "-r", "@", "https://x.example/", "[extra]", "python_version", "<", "'3.12'",
        "(", ")", "and", "sys_platform", '"linux"', "\x00", "é", "\ufeff", "extra", "in", "1.0+x",
    ]
)  # fmt: skip
TOML_WORDS = st.sampled_from(
    [
        'lock-version = "1.0"\n', 'created-by = "x"\n', "[[packages]]\n", 'name = "demo"\n',
        'version = "1.0"\n', "[[packages.wheels]]\n", f'hashes = {{ sha256 = "{SHA}" }}\n',
        'url = "https://x.example/demo-1.0-py3-none-any.whl"\n', "marker = ", "'1'", "\n", "1",
        'name = "demo-1.0-py3-none-any.whl"\n', "[packages.sdist]\n", "[packages.vcs]\n", "{}",
        'requires-python = ">=3"\n', "format = 1\n", "[wheels]\n", "[platforms]\n", "[]\n",
        "environments = ", "default-groups = ", '["x"]\n', "[components.a]\n", 'kind = "source"\n',
    ]
)  # fmt: skip


@given(st.lists(WORDS, max_size=25).map("".join))
def test_any_requirements_are_read_or_refused(text):
    with suppress(Refused):
        found = parse_requirements(text.encode(), target(), where="x")
        assert all(item.sha256 for item in found)


@given(st.lists(TOML_WORDS, max_size=25).map("".join))
def test_any_toml_is_read_or_refused(text):
    raw = text.encode()
    for read in (
        lambda: parse_pylock(raw, target(), where="x"),
        lambda: decode_lock(raw),
        lambda: parse_release(raw, folder=None),
    ):
        with suppress(Refused):
            assert read() is not None


def mutated(raw, edits):
    damaged = bytearray(raw)
    for at, value in edits:
        damaged[at % len(damaged)] = value
    return bytes(damaged)


EDITS = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=6)
METADATA = st.lists(
    st.sampled_from(
        [
            "Requires-Dist: a>=1\n", "Requires-Dist: ;\n", "Requires-Python: >=3\n", "\n",
            "Requires-Python: x\n", "Name: demo\n", " folded\n", "é: ü\n", "Requires-Dist: é\n",
        ]
    )
).map("".join)  # fmt: skip
ENTRY_POINTS = st.lists(
    st.sampled_from(
        [
            "[console_scripts]\n", "[gui_scripts]\n", "a = b:c\n", "a = b\n", " more\n", "%(x)s\n",
            "../x = b:c\n", "[DEFAULT]\n", "é = é:é\n", "= b:c\n", "[", "a = b:c [x]\n", "\x00",
        ]
    )
).map("".join)  # fmt: skip


@given(METADATA, ENTRY_POINTS, EDITS)
def test_any_wheel_is_installed_or_refused(tmp_path_factory, metadata, entry_points, edits):
    made = WheelFile(metadata=metadata, entry_points=entry_points)
    path = tmp_path_factory.mktemp("wheel") / made.file
    path.write_bytes(mutated(made.raw(), edits))
    with suppress(Refused):
        entries = install_wheels([read_wheel(path, pin_of(path))], target())
        assert all(not entry.path.startswith(("/", "..")) for entry in entries)


def plain_tar():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a", "é" * 60, "b/c"):
            info = tarfile.TarInfo(name)
            info.size = 3
            info.mtime = 1.5
            archive.addfile(info, io.BytesIO(b"abc"))
    return stream.getvalue()


TAR = plain_tar()
ZIP = zip_bytes({"a": b"abc" * 50, "b/c": b""})


@given(st.sampled_from(["x.tar", "x.zip"]), EDITS, st.integers(0, 4000))
def test_any_archive_is_read_or_refused(tmp_path_factory, name, edits, cut):
    raw = mutated(TAR if name == "x.tar" else ZIP, edits)
    path = tmp_path_factory.mktemp("archive") / name
    path.write_bytes(raw[: len(raw) - cut])
    with suppress(Refused):
        for entry in archive_entries(path, name, None):
            if entry.open is not None:
                with entry.open() as stream:
                    assert len(stream.read()) == entry.size_bytes
