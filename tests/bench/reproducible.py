"""Whether another version of zstandard changes the id of a capsule; it must not.

    reproducible.py [--zstandard VERSION]

Needs pip's index. Makes the release of `capsule init`, builds it as it is, and again from a clone,
in another folder, under another umask, time zone, locale and HOME, with another zstandard before
the installed one. Ends with 1 if the ids differ; says whether the packs do.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_GIT = ("git", "-c", "user.name=A. Writer", "-c", "user.email=writer@example.org")


def run(*arguments: str, cwd: Path, umask: int = -1, **variables: str) -> str:
    """Run a program and return what it prints."""
    return subprocess.run(
        arguments,
        cwd=cwd,
        env={**os.environ, **variables},
        umask=umask,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def commit(folder: Path) -> None:
    """Commit everything."""
    run(*_GIT, "add", "--all", cwd=folder)
    run(*_GIT, "commit", "--quiet", "--message", "a commit", cwd=folder)


def build(folder: Path, umask: int, **variables: str) -> tuple[str, Path]:
    """Build a capsule and return its id and folder."""
    arguments = (sys.executable, "-m", "capsule", "build", "--json")
    built = json.loads(run(*arguments, cwd=folder, umask=umask, **variables))
    return built["capsule"], folder / built["folder"]


def main() -> int:
    """Build twice, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zstandard", default="0.23.0", help="the version of the second build")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        first, second = Path(temporary, "first"), Path(temporary, "a", "second")
        other = Path(temporary, "other")
        first.mkdir()
        run(*_GIT, "init", "--quiet", cwd=first)
        run(sys.executable, "-m", "capsule", "init", "--product", "example/same", cwd=first)
        commit(first)
        run(sys.executable, "-m", "capsule", "lock", cwd=first)
        commit(first)
        run(*_GIT, "clone", "--quiet", str(first), str(second), cwd=first)
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:")
        run(*pip, "--target", str(other), f"zstandard=={options.zstandard}", cwd=first)
        version = "import zstandard; print(zstandard.__version__, zstandard.ZSTD_VERSION)"
        one = build(first, 0o022, TZ="UTC", LC_ALL="C.UTF-8")
        # The cache of wheels is kept: HOME is where else a build could look.
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        strange = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "HOME": str(second)}
        two = build(second, 0o077, PYTHONPATH=str(other), XDG_CACHE_HOME=cache, **strange)
        used = [
            run(sys.executable, "-c", version, cwd=first, PYTHONPATH=path).strip()
            for path in ("", str(other))
        ]
        packs = [{path.name for path in (item / "packs").iterdir()} for _, item in (one, two)]
    print(f"zstandard {used[0]}: {one[0]}")
    print(f"zstandard {used[1]}: {two[0]}")
    print(f"{len(packs[0] & packs[1])} of {len(packs[0])} packs are the same bytes")
    return 0 if one[0] == two[0] else 1


if __name__ == "__main__":
    sys.exit(main())
