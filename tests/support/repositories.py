"""Real git repositories in a folder, made with a fixed author and time."""

import os
import subprocess
from pathlib import Path

__all__ = ["Repository"]

_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A. Writer",
    "GIT_AUTHOR_EMAIL": "writer@example.org",
    "GIT_COMMITTER_NAME": "A. Writer",
    "GIT_COMMITTER_EMAIL": "writer@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}


class Repository:
    """A git repository whose work tree is `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        """Run git here and return what it prints."""
        environment = {"PATH": os.environ["PATH"], **_ENVIRONMENT}
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=environment, check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    def write(self, files: dict[str, bytes]) -> None:
        """Write files into the work tree."""
        for name, data in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def commit(self, files: dict[str, bytes] | None = None) -> str:
        """Write files, add everything, commit, and return the commit."""
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a commit")
        return self.git("rev-parse", "HEAD")
