"""One commit, two builders who share nothing else: one id, and the same bytes."""

import json
import shutil
import subprocess
import sys

import pytest

from support.indexes import pip_environment
from support.releases import ReleaseFolder
from support.runtimes import runtime_index

# The runtime's lock of the tests takes the place of the real one, as in `runtime_index`: in every
# process, for a build that is checked starts another.
_CUSTOM = """\
from capsule.builder import runtime_wheels
runtime_wheels._LOCK = {lock!r}
"""
_MORE = """\
[components.web]
kind = "service"
[[components.web.units]]
file = "web.service"
[components.config]
kind = "files"
[[components.config.files]]
source = "app/main.py"
target = "/etc/web.py"
[components.recovery]
kind = "recovery"
paths = ["app"]
[roles.web]
"""
_UNIT = b"[Service]\nExecStart=/bin/true\nTimeoutSec=1\n"

WORLDS = {
    "plain": (0o022, {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "1"}),
    "strange": (0o077, {"LC_ALL": "C", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "2"}),
}


@pytest.fixture
def release(tmp_path, monkeypatch):
    made = ReleaseFolder(tmp_path / "release")
    runtime_index(made.index, monkeypatch)
    text = (made.work / "release.toml").read_text()
    start = text.index("[components.fetched]")
    made.edit(text[start : text.index("[components.script]")], "")
    made.edit('"fetched", "script"', '"script", "web", "config", "recovery"')
    made.repository.write({"web.service": _UNIT, "app/näme/z": b"z", "app/empty": b""})
    (made.work / "app/link").symlink_to("main.py")
    (made.work / "tools/script").chmod(0o755)
    made.edit("[roles.web]\n", _MORE)
    return made


def run(release, folder, world, home, *arguments, within=()):
    umask, variables = WORLDS[world]
    home.mkdir(exist_ok=True)
    custom = release.index.parent / "custom"
    custom.mkdir(exist_ok=True)
    lock = str(release.index.parent / "runtime.lock")
    (custom / "sitecustomize.py").write_text(_CUSTOM.format(lock=lock))
    done = subprocess.run(
        [*within, sys.executable, "-m", "capsule", *arguments],
        cwd=folder,
        umask=umask,
        env={
            **pip_environment(release.index, home),
            **variables,
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join([str(custom), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_two_builders_of_one_commit_get_the_same_capsule(release, tmp_path):
    home = tmp_path / "home"
    run(release, release.work, "plain", home, "lock", "--json")
    other = tmp_path / "another" / "place" / "näher"
    release.repository.git("clone", "--quiet", str(release.work), str(other))
    shutil.copy(release.work / "release.lock", other / "release.lock")
    # Files made anew in the opposite order, so that folders list them in another.
    files = [path for path in other.rglob("*") if path.is_file() and ".git" not in path.parts]
    for path in sorted(files, reverse=True):
        data, mode = path.read_bytes(), path.stat().st_mode
        if not path.is_symlink():
            path.unlink()
            path.write_bytes(data)
            path.chmod(mode)
    found = {}
    for world, folder in (("plain", release.work), ("strange", other)):
        place = home if world == "plain" else tmp_path / "elsewhere"
        dist = tmp_path / world
        built = run(
            release, folder, world, place, "build", "--output", str(dist), "--single-file", "--json"
        )
        found[world] = (built["capsule"], content(dist))
    assert found["plain"][0] == found["strange"][0]
    # With one version of zstd the packs are the same too, so the whole directory is.
    assert found["plain"][1] == found["strange"][1]
    # And a builder proves it by himself, in a folder that has the capsule: nothing is written.
    arguments = ("build", "--check-reproducible", "--output", str(dist), "--json")
    again = run(release, other, "strange", tmp_path / "elsewhere", *arguments)
    assert again["capsule"] == found["plain"][0]
    assert content(dist) == found["plain"][1]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_locked_release_builds_in_a_namespace_without_network(release, tmp_path):
    """`lock` is the only step that needs a network: here the kernel has none to give."""
    home = tmp_path / "home"
    run(release, release.work, "plain", home, "lock", "--json")
    # Neither an index nor a folder of wheels: only what was fetched.
    shutil.rmtree(release.index)
    alone = ("unshare", "--map-root-user", "--net")
    probe = "import socket as s; print(s.if_nameindex(), s.socket().connect_ex(('192.0.2.1', 9)))"
    seen = subprocess.run(
        [*alone, sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )
    if seen.returncode:
        pytest.skip(f"no network namespace here: {seen.stderr}")
    assert seen.stdout.startswith("[(1, 'lo')] "), "the only interface is a loopback that is down"
    assert not seen.stdout.endswith(" 0\n"), "nothing can be reached"
    dist = str(tmp_path / "dist")
    built = run(
        release, release.work, "plain", home, "build", "--output", dist, "--json", within=alone
    )
    assert (tmp_path / "dist" / built["folder"].rpartition("/")[2] / "capsule.json").is_file()
