"""What a hostile package index, requirement or folder does to `lock`.

As an operator sees it: an id, an exit code, a next step; no lock, no capsule, and nothing written
beside the release and the cache.
"""

import hashlib
import json
import os
import tarfile

import pytest

from capsule.__main__ import main
from capsule_manifest.error_table import ROWS
from support.indexes import pip_environment
from support.releases import ReleaseFolder
from support.runtimes import runtime_index
from support.wheels import WheelFile

ANY = hashlib.sha256(b"anything").hexdigest()


class Desk:
    """A release with one dependency, an index that is not to be trusted, and what lies around."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder = folder
        self._capsys = capsys
        self.release = ReleaseFolder(folder / "release")
        runtime_index(self.release.index, monkeypatch)
        self._only_dependencies()
        for name in ("home", "temporary", "elsewhere"):
            (folder / name).mkdir()
        (folder / "evil").write_bytes(b"as it was\n")
        environment = pip_environment(self.release.index, folder / "home") | {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(folder / "temporary"),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder / "elsewhere")

    def _only_dependencies(self):
        path = self.release.work / "release.toml"
        text = path.read_text()
        start = text.index("[components.linter]")
        text = text[:start] + text[text.index("[roles.web]") :]
        text = text.replace('"app", "deps", "linter", "fetched", "script"', '"app", "deps"')
        text = text.replace(
            text[text.index("[platforms.trixie]") : text.index("[components.app]")], ""
        )
        self.release.repository.commit({"release.toml": text.encode()})

    def requires(self, line):
        self.release.repository.commit({"requirements.lock": line.encode()})

    def requires_wheel(self, wheel):
        path = self.release.put(wheel)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.requires(f"demo==1.0 --hash=sha256:{digest}\n")

    def run(self, verb, *arguments):
        release = str(self.release.work / "release.toml")
        code = main([verb, "--release", release, "--json", *arguments])
        return code, self._capsys.readouterr()

    def is_refused(self, error_id, *, verb="lock", shown=""):
        before = self._around()
        code, said = self.run(verb)
        answer = json.loads(said.out)
        assert answer["error"] == error_id, said.err
        assert code == answer["exit_code"] == int(ROWS[error_id][0])
        assert f"\n  next: {ROWS[error_id][1]}" in said.err
        assert shown in said.err
        assert "Traceback" not in said.err
        assert self._around() == before, "something was written outside of release and cache"
        assert list(self.release.work.glob("dist/*.capsule")) == []

    def _around(self):
        # pip asks rustc for its version, and where that is rustup's, it writes settings first.
        inside = self.folder / "cache", self.release.work / ".git", self.folder / "home/.rustup"
        return {
            path.relative_to(self.folder): path.read_bytes() if is_small_file(path) else b""
            for path in self.folder.rglob("*")
            if not any(path.is_relative_to(folder) for folder in inside)
        }


def is_small_file(path):
    return path.is_file() and path.stat().st_size < 1024**2


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)


def test_a_release_without_anything_wrong_is_locked(desk):
    desk.requires_wheel(WheelFile())
    code, said = desk.run("lock")
    assert code == 0, said.err
    assert (desk.release.work / "release.lock").exists()


# --- requirements -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "error_id"),
    [
        pytest.param("demo==1.0\n", "requirement-without-hash", id="missing-hash"),
        pytest.param(f"demo==1.0 --hash=md5:{'a' * 32}\n", "requirement-without-hash", id="weak"),
        pytest.param(f"./demo-1.0.tar.gz --hash=sha256:{ANY}\n", "wheel-is-sdist", id="sdist"),
        pytest.param("-e ./demo\n", "requirement-editable", id="editable"),
    ],
)
def test_a_requirement_that_pins_no_wheel_is_refused(desk, line, error_id):
    desk.requires(line)
    desk.is_refused(error_id)


# --- the index ----------------------------------------------------------------------------------
def test_an_index_that_has_only_an_sdist_is_refused(desk):
    sdist = desk.release.index / "demo-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("demo-1.0/setup.py"))
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    desk.requires(f"demo==1.0 --hash=sha256:{digest}\n")
    desk.is_refused("wheel-is-sdist", shown="demo-1.0.tar.gz")


@pytest.mark.parametrize(
    ("tag", "shown"),
    [
        pytest.param("cp311-cp311-win_amd64", "win_amd64", id="another-platform"),
        pytest.param("cp311-cp311-manylinux_2_17_aarch64", "aarch64", id="another-machine"),
        pytest.param("cp311-cp311-manylinux_2_40_x86_64", "2.40", id="newer-glibc"),
        pytest.param("cp312-cp312-manylinux_2_17_x86_64", "cp312", id="another-python"),
    ],
)
def test_a_wheel_that_does_not_fit_the_target_is_refused(desk, tag, shown):
    desk.requires_wheel(WheelFile(tag=tag))
    desk.is_refused("wheel-unfit", shown=shown)


def test_a_wheel_with_another_digest_than_pinned_is_refused(desk):
    desk.requires_wheel(WheelFile())
    desk.release.put(WheelFile(files={"demo/__init__.py": b"import os\n"}))
    desk.is_refused("wheel-digest-mismatch")


# --- inside a wheel -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wheel", "error_id"),
    [
        pytest.param(
            WheelFile(record=b"demo/__init__.py,sha256=" + b"A" * 43 + b",6\n"),
            "wheel-record-mismatch",
            id="bad-record",
        ),
        pytest.param(
            WheelFile(extra={"demo/x.py": b"x"}), "wheel-record-mismatch", id="not-in-record"
        ),
        pytest.param(WheelFile(files={"../evil": b"x"}), "path-invalid", id="parent"),
        pytest.param(WheelFile(files={"/etc/evil": b"x"}), "path-invalid", id="absolute"),
        pytest.param(
            WheelFile(files={"demo/link": b"../../../evil"}, modes={"demo/link": 0o120777}),
            "zip-refused",
            id="link",
        ),
        pytest.param(
            WheelFile(files={"demo/zeros": bytes(80 * 1024 * 1024)}), "zip-refused", id="bomb"
        ),
    ],
)
def test_a_wheel_that_is_pinned_and_wrong_is_refused(desk, wheel, error_id):
    desk.requires_wheel(wheel)
    desk.is_refused(error_id)


# --- files of the release itself ----------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "error_id"),
    [
        ("device", "archive-refused"),
        ("pipe", "archive-refused"),
        ("sparse", "input-hollow"),
        ("link", "link-escapes"),
    ],
)
def test_a_folder_that_can_not_be_shipped_is_refused(desk, kind, error_id):
    added = '[components.tool]\nkind = "helper"\npath = "tool"\n'
    desk.release.edit("[roles.web]", f"{added}[roles.web]")
    desk.requires_wheel(WheelFile())
    tool = desk.release.work / "tool"
    tool.mkdir()
    match kind:
        case "device":
            if os.geteuid() != 0:
                pytest.skip("only root makes devices")
            os.mknod(tool / "x", 0o020600, os.makedev(1, 3))
        case "pipe":
            os.mkfifo(tool / "x")
        case "sparse":
            with (tool / "x").open("wb") as file:
                file.truncate(1024**4)
        case "link":
            (tool / "x").symlink_to("../../../evil")
    desk.is_refused(error_id)
