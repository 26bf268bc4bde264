"""The script that unpacks the host program where nothing but Python is."""

import hashlib
import json
import subprocess
import sys
from importlib.resources import files

import pytest

from capsule.first_contact import read_runtime, send_runtime
from capsule.payload import open_payload
from capsule.transport.local import LocalTransport
from capsule_manifest.wire import RecordReader
from support import documents
from support.capsules import fake_runtime, write_capsule
from support.failures import fails_with

SCRIPT = files("capsule").joinpath("first_contact_host.py").read_text()
LAUNCHER = "site/capsule_installer/bin_capsule.sh"


@pytest.fixture
def host(tmp_path):
    folder = tmp_path / "host"
    folder.mkdir(mode=0o755)
    return folder


def stream(entries, contents=(), runtime="0123abcd"):
    index = json.dumps({"runtime": runtime, "entries": entries}).encode()
    return len(index).to_bytes(8, "big") + index + b"".join(contents)


def unpack(root, data, *, runtime="0123abcd", digest=None, size=None):
    """Run the script as a host would; return its record and exit code."""
    digest = digest or hashlib.sha256(data).hexdigest()
    argv = [sys.executable, "-I", "-S", "-c", SCRIPT]
    argv += [str(root), runtime, digest, str(len(data) if size is None else size)]
    done = subprocess.run(argv, input=data, capture_output=True, check=False, env={})
    assert done.stderr == b""
    (record,) = RecordReader().feed(done.stdout)
    return record, done.returncode


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


SMALL = stream(
    [["directory", "site", 0o755, 0], ["directory", "site/capsule_installer", 0o755, 0],
     ["file", LAUNCHER, 0o644, 21], ["file", "tool", 0o755, 2]],
    [b"# @RUNTIME@ @PYTHON@\n", b"go"],
)  # fmt: skip


def test_a_runtime_is_unpacked_with_its_launcher(host):
    record, code = unpack(host, SMALL)
    assert (record["record"], record["runtime"], code) == ("runtime", "0123abcd", 0)
    runtime = host / "opt/capsule/runtime/0123abcd"
    assert (runtime / "tool").read_bytes() == b"go"
    assert (runtime / "tool").stat().st_mode & 0o777 == 0o755
    launcher = host / "opt/capsule/bin/capsule"
    assert launcher.read_text() == f"# 0123abcd {sys.executable}\n"
    assert launcher.stat().st_mode & 0o777 == 0o755
    assert names(host / "opt/capsule/runtime") == [
        "0123abcd", "0123abcd/site", "0123abcd/site/capsule_installer", f"0123abcd/{LAUNCHER}",
        "0123abcd/tool",
    ]  # fmt: skip


def test_unpacking_again_changes_no_file(host):
    unpack(host, SMALL)
    tool = host / "opt/capsule/runtime/0123abcd/tool"
    before = tool.stat()
    assert unpack(host, SMALL)[1] == 0
    assert tool.stat().st_ino == before.st_ino


@pytest.mark.parametrize("damage", ["changed", "longer", "gone", "a link", "a folder"])
def test_a_damaged_runtime_is_replaced(host, damage):
    unpack(host, SMALL)
    tool = host / "opt/capsule/runtime/0123abcd/tool"
    if damage in {"changed", "longer"}:
        tool.write_bytes(b"no" if damage == "changed" else b"gone")
    else:
        tool.unlink()
    if damage == "a link":
        tool.symlink_to("/bin/true")
    if damage == "a folder":
        tool.mkdir()
    assert unpack(host, SMALL)[1] == 0
    assert not tool.is_symlink()
    assert tool.read_bytes() == b"go"


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "0" * 64},
        {"size": len(SMALL) - 1},
        {"size": len(SMALL) + 1},
        {"runtime": "ffffffff"},
        {"runtime": "../../etc"},
    ],
)
def test_a_stream_that_is_not_what_was_announced_unpacks_nothing(host, changes):
    record, code = unpack(host, SMALL, **changes)
    assert (record["error"], code) == ("first-contact-refused", 21)
    assert names(host / "opt/capsule/runtime") == []
    assert not (host / "opt/capsule/bin").exists()


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", ".", ""])
def test_a_path_out_of_the_folder_is_refused_before_anything_is_written(host, path):
    record, _ = unpack(host, stream([["file", path, 0o644, 1]], [b"x"]))
    assert record["error"] == "first-contact-refused"
    assert names(host / "opt/capsule/runtime") == []


@pytest.mark.parametrize("entry", [["link", "x", 0o777, 0], ["file", "x", 0o4755, 0]])
def test_a_link_and_a_set_user_bit_are_refused(host, entry):
    record, _ = unpack(host, stream([entry]))
    assert record["error"] == "first-contact-refused"


def test_a_stream_shorter_than_its_index_says_is_refused(host):
    record, _ = unpack(host, stream([["file", "x", 0o644, 10]], [b"x"]))
    assert record["error"] == "first-contact-refused"
    assert names(host / "opt/capsule/runtime") == []


def test_what_a_killed_attempt_left_is_removed(host):
    unpack(host, SMALL)
    base = host / "opt/capsule/runtime"
    (base / ".incoming").write_bytes(b"half")
    (base / ".new").mkdir()
    (base / ".new" / "half").write_bytes(b"half")
    (base / "0123abcd" / "tool").write_bytes(b"no")
    assert unpack(host, SMALL)[1] == 0
    assert sorted(path.name for path in base.iterdir()) == ["0123abcd"]


@pytest.mark.parametrize("place", ["opt", "opt/capsule", "opt/capsule/runtime"])
def test_a_link_in_the_way_is_refused(host, tmp_path, place):
    (tmp_path / "elsewhere").mkdir()
    (host / place).parent.mkdir(parents=True, exist_ok=True)
    (host / place).symlink_to(tmp_path / "elsewhere")
    record, _ = unpack(host, SMALL)
    assert record["error"] == "first-contact-refused"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_root_that_everybody_can_change_is_refused(host):
    host.chmod(0o777)
    assert unpack(host, SMALL)[0]["error"] == "first-contact-refused"


def test_the_runtime_of_a_capsule_arrives_whole(host, tmp_path):
    mini = write_capsule(tmp_path / "c")
    payload = open_payload(mini.folder, documents.make_policy())
    runtime = read_runtime(payload, "bookworm")
    send_runtime(LocalTransport(host), runtime, node="n1")
    unpacked = host / "opt/capsule/runtime" / runtime.id
    assert runtime.id == mini.trees["runtime-bookworm"].hex()[:8]
    for path, content in fake_runtime().items():
        assert (unpacked / path).read_bytes() == content


def test_a_platform_without_a_runtime_is_refused(tmp_path):
    mini = write_capsule(tmp_path / "c")
    with fails_with("runtime-missing"):
        read_runtime(open_payload(mini.folder, documents.make_policy()), "trixie")
