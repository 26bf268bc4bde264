"""Fetch an image from a registry, with skopeo: its credentials, mirrors and retries are the user's.

A name is resolved to a digest once, when the release is locked. After that only the digest counts,
and whatever skopeo brings is checked like a layout from a disk.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from capsule.builder.images.documents import DOCUMENT_BYTES_MAX
from capsule_manifest.errors import Failed
from capsule_manifest.paths import escape

__all__ = ["ImageFetcher", "Skopeo"]

_RESOLVE_TIMEOUT_S: Final = 120
_COPY_TIMEOUT_S: Final = 3600
_RETRIES: Final = 3
_MESSAGE_CHARACTERS: Final = 300
# Where credentials and mirrors are kept, and how to get out; nothing that changes what is fetched.
_ENVIRONMENT: Final = (
    "HOME", "PATH", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "REGISTRY_AUTH_FILE",
    "DOCKER_CONFIG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "CONTAINERS_REGISTRIES_CONF",
)  # fmt: skip


class ImageFetcher(Protocol):
    """Get images by their name from wherever they are kept."""

    def describe(self, name: str) -> bytes:
        """Return the document that a name stands for now: a manifest or an index.

        Raises:
            Failed: `image-fetch-failed`.
        """

    def fetch(self, name: str, digest: str, folder: Path) -> None:
        """Put the image whose manifest is `digest` into `folder`, an OCI layout.

        Raises:
            Failed: `image-fetch-failed`.
        """


class Skopeo:
    """The program of the containers project. `environment` is cut down to what it may know."""

    def __init__(self, environment: Mapping[str, str], *, is_tls: bool = True) -> None:
        self._environment = {
            name: environment[name] for name in _ENVIRONMENT if name in environment
        } | {"LC_ALL": "C.UTF-8"}
        self._tls = str(is_tls).lower()

    def describe(self, name: str) -> bytes:
        """Return the document behind a name. See `ImageFetcher`."""
        raw = self._run(
            ["inspect", "--raw", f"--tls-verify={self._tls}", f"docker://{name}"],
            name, _RESOLVE_TIMEOUT_S,
        )  # fmt: skip
        if len(raw) > DOCUMENT_BYTES_MAX:
            raise _failed("an image's document is too large", len(raw), name)
        return raw

    def fetch(self, name: str, digest: str, folder: Path) -> None:
        """Copy an image into a layout. See `ImageFetcher`."""
        self._run(
            [
                "copy", "--quiet", "--preserve-digests", f"--src-tls-verify={self._tls}",
                f"docker://{_without_tag(name)}@{digest}", f"oci:{folder}",
            ],
            name, _COPY_TIMEOUT_S,
        )  # fmt: skip

    def _run(self, arguments: Sequence[str], name: str, timeout_s: int) -> bytes:
        command = ["skopeo", arguments[0], f"--retry-times={_RETRIES}", *arguments[1:]]
        try:
            done = subprocess.run(
                command, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except FileNotFoundError:
            raise Failed(
                "image-fetch-failed", "there is no skopeo, which fetches images",
                expected="skopeo on PATH, or the image as a layout beside release.toml", where=name,
            ) from None  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise _failed(f"skopeo took longer than {timeout_s} s", "nothing", name) from error
        if done.returncode:
            text = done.stderr.decode(errors="replace").strip() or "no message"
            raise _failed("skopeo failed", escape(text[-_MESSAGE_CHARACTERS:]), name)
        return done.stdout


def _without_tag(name: str) -> str:
    base = name.partition("@")[0]
    host, _, last = base.rpartition("/")
    return f"{host}/{last.partition(':')[0]}" if host else last.partition(":")[0]


def _failed(what: str, got: object, where: str) -> Failed:
    return Failed("image-fetch-failed", what, got=got, where=where, retryable=True)
