"""Fetch wheels with pip, the ordinary client, from the index that its user configured.

pip is told what to take, by name, version and digest, for the tags of the target; its own settings
say from where and how. Messages never repeat an address, which may hold a password.
"""

import re
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from capsule.builder.target import Target
from capsule.builder.wheels import Wanted, unfit, without_addresses
from capsule_manifest.errors import Failed, Refused

__all__ = ["PipFetcher"]

_PIP_TIMEOUT_S: Final = 1800
_TRIES_MAX: Final = 3
_ARCHIVE_NAME: Final = re.compile(
    r"(?<![\w.+-])([A-Za-z0-9][\w.+!-]*\.(?:whl|tar\.gz|tar\.bz2|zip))(?![\w.-])", re.ASCII
)
_LINK_LINE: Final = re.compile(r"^\s*(Found link|Skipping link)")
_NOT_FOUND: Final = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)")
# What says from where and how to fetch. What says what to fetch is ours alone.
_PIP_SETTINGS: Final = frozenset(
    {
        "CACHE_DIR", "CERT", "CLIENT_CERT", "CONFIG_FILE", "DEFAULT_TIMEOUT", "EXTRA_INDEX_URL",
        "FIND_LINKS", "INDEX_URL", "KEYRING_PROVIDER", "NO_CACHE_DIR", "NO_INDEX", "PROXY",
        "RETRIES", "TIMEOUT", "TRUSTED_HOST",
    }
)  # fmt: skip
_SETTINGS: Final = frozenset(
    {
        "ALL_PROXY", "CURL_CA_BUNDLE", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "NETRC",
        "NO_PROXY", "PATH", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR",
        "XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME",
    }
)  # fmt: skip


class PipFetcher:
    """Fetch wheels with `pip download`, for the target and by digest."""

    def __init__(self, environment: Mapping[str, str], *, python: str = sys.executable) -> None:
        self._environment = _scrubbed(environment)
        self._python = python

    def fetch(self, wanted: Sequence[Wanted], target: Target, folder: Path) -> None:
        """Put one wheel for each of `wanted` into `folder`. See `WheelFetcher`."""
        # In one call, a requirement without a digest would be refused because of the others.
        for group in (
            [item for item in wanted if item.sha256],
            [item for item in wanted if not item.sha256],
        ):
            if group:
                self._fetch(group, target, folder)

    def _fetch(self, wanted: Sequence[Wanted], target: Target, folder: Path) -> None:
        # pip itself waits for a server that is busy. A file that ended early it fetches not again:
        # to it, that is one with another digest.
        text = ""
        for _ in range(_TRIES_MAX):
            done = self._run(wanted, target, folder)
            text = done.stderr + done.stdout
            if done.returncode == 0:
                return
            if _NOT_FOUND.search(text):
                break
        if "DO NOT MATCH THE HASHES" in text:
            mismatch = text.partition("DO NOT MATCH THE HASHES")[2].splitlines()
            lines = [line.strip() for line in mismatch if "==" in line or "Got" in line]
            raise Refused(
                "wheel-digest-mismatch",
                "the index has other bytes than the lock",
                got=" ".join(without_addresses(line) for line in lines[:2]),
            )
        missing = _NOT_FOUND.search(text)
        for item in wanted:
            if missing and _same_name(missing[1], item.name):
                raise unfit(item, self._files_of(item, target, folder), target)
        errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
        last = errors or text.strip().splitlines() or ["no output"]
        raise Failed(
            "wheel-fetch-failed",
            "pip can't fetch the wheels",
            got=without_addresses(last[-1].removeprefix("ERROR: ")),
            where=f"platform {target.name}",
            retryable=True,
        )

    def _files_of(self, item: Wanted, target: Target, folder: Path) -> list[str]:
        """Return the names of all files that the index lists for one distribution."""
        done = self._run([item], target, folder, "-vv")
        lines = [
            urllib.parse.unquote(line)
            for line in (done.stdout + done.stderr).splitlines()
            if _LINK_LINE.match(line)
        ]
        return [name for line in lines for name in _ARCHIVE_NAME.findall(line)]

    def _run(
        self, wanted: Sequence[Wanted], target: Target, folder: Path, *options: str
    ) -> "subprocess.CompletedProcess[str]":
        lines = [
            " ".join(
                [
                    f"{item.name}=={item.version}",
                    *(f"--hash=sha256:{h}" for h in sorted(item.sha256)),
                ]
            )
            for item in wanted
        ]
        requirements = folder / "requirements.in"
        requirements.write_text("\n".join(lines) + "\n")
        hashes = ["--require-hashes"] if all(item.sha256 for item in wanted) else []
        platforms = [option for tag in target.platform_tags for option in ("--platform", tag)]
        command = [
            # -I: neither PYTHON* variables nor the user's own packages change what pip is.
            self._python, "-I", "-m", "pip", "download", *options,
            "--no-input", "--disable-pip-version-check", "--no-deps", *hashes,
            "--only-binary", ":all:", "--ignore-requires-python", "--progress-bar", "off",
            "--implementation", "cp", "--python-version", target.platform.python,
            "--abi", target.abi, *platforms,
            "--requirement", str(requirements), "--dest", str(folder),
        ]  # fmt: skip
        try:
            return subprocess.run(
                command,
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PIP_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(
                "wheel-fetch-failed", f"pip took longer than {_PIP_TIMEOUT_S} s", retryable=True
            ) from error


def _scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what pip may know: where the index is and how to reach it, not what to take."""
    kept = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "LC_ALL": "C.UTF-8"}
    for name, value in environment.items():
        is_setting = name.upper() in _SETTINGS
        is_pip_setting = name.startswith("PIP_") and name.removeprefix("PIP_") in _PIP_SETTINGS
        if is_setting or is_pip_setting:
            kept[name] = value
    return kept


def _same_name(one: str, other: str) -> bool:
    return re.sub(r"[-_.]+", "-", one).lower() == other
