"""Wheels made by hand: right ones, and wrong ones in exactly one way.

`WheelFile` builds a wheel from files; `record` can be replaced and members be added that it does
not list, so that each hostile case is one line in its test.
"""

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from capsule.builder.lockfile import WheelPin
from capsule.builder.target import Target
from capsule_manifest.release import Platform

__all__ = ["BOOKWORM", "WheelFile", "pin_of", "target", "write_zip"]

BOOKWORM = Platform(machine="x86_64", glibc="2.36", python="3.11", interpreter=None)
_EPOCH = (1980, 1, 1, 0, 0, 0)


def target(**changes: str) -> Target:
    """Return a target: Debian 12 on x86_64, or what differs from it."""
    values = {"machine": "x86_64", "glibc": "2.36", "python": "3.11", "name": "bookworm"}
    values |= changes
    name = values.pop("name")
    return Target(name=name, platform=Platform(interpreter=None, **values))


@dataclass(kw_only=True)
class WheelFile:
    """A wheel to be written. `files` are by path; `modes` are Unix modes where not 0o644."""

    name: str = "demo"
    version: str = "1.0"
    tag: str = "py3-none-any"
    files: dict[str, bytes] = field(default_factory=lambda: {"demo/__init__.py": b"x = 1\n"})
    modes: dict[str, int] = field(default_factory=dict)
    metadata: str = ""
    entry_points: str | None = None
    wheel_version: str = "1.0"
    record: bytes | None = None
    extra: dict[str, bytes] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Return the file name."""
        return f"{self.stem}-{self.tag}.whl"

    @property
    def stem(self) -> str:
        """Return name and version as folders and file names have them."""
        return f"{self.name.replace('-', '_')}-{self.version}"

    def contents(self) -> dict[str, bytes]:
        """Return all members but RECORD and `extra`."""
        info = f"{self.stem}.dist-info"
        contents = dict(self.files)
        contents.setdefault(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"
            f"{self.metadata}".encode(),
        )
        contents.setdefault(
            f"{info}/WHEEL",
            f"Wheel-Version: {self.wheel_version}\nGenerator: test\nRoot-Is-Purelib: true\n"
            f"Tag: {self.tag}\n".encode(),
        )
        if self.entry_points is not None:
            contents[f"{info}/entry_points.txt"] = self.entry_points.encode()
        return contents

    def record_of(self, contents: dict[str, bytes]) -> bytes:
        """Return a RECORD that is right."""
        lines = [f"{name},{digest_of(data)},{len(data)}" for name, data in contents.items()]
        return "\n".join([*lines, f"{self.stem}.dist-info/RECORD,,", ""]).encode()

    def raw(self) -> bytes:
        """Return the bytes of the wheel."""
        contents = self.contents()
        record = self.record_of(contents) if self.record is None else self.record
        members = {**contents, f"{self.stem}.dist-info/RECORD": record, **self.extra}
        return zip_bytes(members, self.modes)

    def write(self, folder: Path) -> Path:
        """Write the wheel into `folder` under its own name."""
        path = folder / self.file
        path.write_bytes(self.raw())
        return path


def digest_of(data: bytes, algorithm: str = "sha256") -> str:
    """Return a digest as RECORD writes it."""
    raw = hashlib.new(algorithm, data).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(raw).decode().rstrip('=')}"


def pin_of(path: Path, *, name: str = "demo", version: str = "1.0") -> WheelPin:
    """Return the pin of a file as it is now."""
    data = path.read_bytes()
    return WheelPin(
        name=name,
        version=version,
        file=path.name,
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
    )


def zip_bytes(members: dict[str, bytes], modes: dict[str, int] | None = None) -> bytes:
    """Return a deflated zip of these members, in this order."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = (modes or {}).get(name, 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return stream.getvalue()


def write_zip(path: Path, members: dict[str, bytes], modes: dict[str, int] | None = None) -> Path:
    """Write such a zip."""
    path.write_bytes(zip_bytes(members, modes))
    return path
