"""Debian's registry of images on loopback, with TLS and a certificate of its own.

A registry without TLS would need a setting of the product's that no user should have.
"""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["REGISTRY_PACKAGES", "LoopbackRegistry"]

REGISTRY_PACKAGES = {
    "docker-registry": "docker-registry",
    "openssl": "openssl",
    "skopeo": "skopeo",
}
_CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http:
  addr: "127.0.0.1:{port}"
  tls: {{certificate: {folder}/tls.crt, key: {folder}/tls.key}}
"""
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_START_S = 10


class LoopbackRegistry:
    """A registry below `folder` while the context lasts. `certificates` is what trusts it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._port = _free_port()
        self.name = f"127.0.0.1:{self._port}"
        self.certificates = folder / "certificates.crt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._certify()
        config = self._folder / "config.yml"
        config.write_text(_CONFIG.format(folder=self._folder, port=self._port))
        self._process = subprocess.Popen(
            ["docker-registry", "serve", str(config)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while not self._listens():
            assert self._process.poll() is None, "the registry ended"
            assert time.monotonic() < deadline, "the registry does not listen"
            time.sleep(0.05)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=10)

    def push(self, layout: Path, tag: str, name: str) -> str:
        """Push an image of an OCI layout; return its reference, such as `HOST/acme/base:1.2`."""
        reference = f"{self.name}/{name}:{tag}"
        subprocess.run(
            ["skopeo", "copy", "--quiet", "--preserve-digests",
             f"oci:{layout}:{tag}", f"docker://{reference}"],
            check=True, env={**os.environ, "SSL_CERT_FILE": str(self.certificates)},
        )  # fmt: skip
        return reference

    def _certify(self) -> None:
        certificate = self._folder / "tls.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-subj", "/CN=loopback", "-addext", "subjectAltName=IP:127.0.0.1",
             "-days", "2", "-keyout", str(self._folder / "tls.key"), "-out", str(certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        # What this machine trusts already stays trusted: the same settings reach an index.
        known = Path(os.environ.get("SSL_CERT_FILE", _AUTHORITIES))
        with self.certificates.open("wb") as stream:
            for path in (known, certificate):
                if path.is_file():
                    with path.open("rb") as part:
                        shutil.copyfileobj(part, stream)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self._port)) == 0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
