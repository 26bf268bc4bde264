"""A pinned trusted root: what a Sigstore instance's keys were, and when.

The package takes its time from this machine's clock: it refuses everything while the clock is
before a key's first day, and accepts what a log or an authority signed after its last. Both are
wrong here. So a bundle is proved against the part of the root that was valid at the bundle's own
signed time, with the dates taken off; the machine's clock then decides nothing.

Source: Sigstore trusted root v0.1, `validFor`.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capsule.durable import read_bounded
from capsule.keyless.boundary import proving
from capsule_manifest.canonical import JsonValue, Limits, decode_foreign, encode
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.fields import Object

if TYPE_CHECKING:
    from sigstore.models import TrustedRoot

__all__ = ["PinnedRoot", "load_root"]

_LIMITS: Final = Limits(size_bytes_max=1024 * 1024, depth_max=12, values_max=16_384)
_MEDIA_TYPE: Final = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
_FIRST: Final = "1970-01-01T00:00:00Z"
_PARTS: Final = {
    "tlogs": "transparency log",
    "certificateAuthorities": "certificate authority",
    "ctlogs": "certificate log",
    "timestampAuthorities": "time-stamp authority",
}
_NEEDED: Final = ("tlogs", "certificateAuthorities", "ctlogs")


class PinnedRoot:
    """The bytes of a trusted root, read once, and the parts of it that were valid at some time."""

    def __init__(self, raw: bytes, *, where: str) -> None:
        """Read `raw`.

        Raises:
            Refused: `trusted-root-malformed`.
        """
        self.digest = sha256_text(raw)
        self.where = where
        self._document = _read(raw, where)

    def at(self, times: Iterable[datetime]) -> "TrustedRoot":
        """Return what was valid at every one of `times`, valid for ever.

        Raises:
            Refused: `keyless-unproved` naming the part of which nothing was valid then.
        """
        moments = tuple(times)
        document: dict[str, JsonValue] = {"mediaType": _MEDIA_TYPE}
        for part, title in _PARTS.items():
            entries = _entries(self._document, part)
            valid = [_undated(entry) for entry in entries if _covers(entry, moments, self.where)]
            if not valid and part in _NEEDED:
                raise Refused(
                    "keyless-unproved",
                    f"no {title} of the trusted root was valid when this was signed",
                    expected=f"one of {len(entries)} to cover it",
                    got=", ".join(moment.isoformat() for moment in moments) or "no signed time",
                    where=self.where,
                )
            document[part] = valid
        return _load(encode(document), self.where)


def load_root(path: Path) -> PinnedRoot:
    """Read a trusted root from a file.

    Raises:
        Refused: `trusted-root-malformed`.
        Failed: `trusted-root-missing`, `controller-disk`.
    """
    raw = read_bounded(path, _LIMITS.size_bytes_max)
    if raw is None:
        raise Failed("trusted-root-missing", "there is no trusted root", where=path)
    return PinnedRoot(raw, where=str(path))


def _read(raw: bytes, where: str) -> Mapping[str, JsonValue]:
    try:
        value = decode_foreign(raw, limits=_LIMITS, where=where)
        media_type = Object(value, where).text("mediaType")
    except Refused as error:
        raise Refused(
            "trusted-root-malformed", "a trusted root can't be read", got=error, where=where
        ) from None
    assert isinstance(value, dict), "Object refuses anything else"
    if media_type != _MEDIA_TYPE:
        raise Refused(
            "trusted-root-malformed",
            "a file is no trusted root",
            expected=_MEDIA_TYPE,
            got=media_type,
            where=where,
        )
    # Loaded once whole, so that a broken file is told of now and not with the first bundle.
    undated = {part: [_undated(entry) for entry in _entries(value, part)] for part in _PARTS}
    for part, title in _PARTS.items():
        for entry in _entries(value, part):
            _covers(entry, (), where)
        if part in _NEEDED and not undated[part]:
            raise Refused(
                "trusted-root-malformed",
                f"a trusted root names no {title}",
                expected=part,
                where=where,
            )
    try:
        _load(encode({"mediaType": _MEDIA_TYPE, **undated}), where)
    except Refused as error:
        raise Refused(
            "trusted-root-malformed", "a trusted root can't be read", got=error.got, where=where
        ) from None
    return value


def _load(raw: bytes, where: str) -> "TrustedRoot":
    """Give bytes to the package, which takes a path only: a file in memory has one."""
    from sigstore.models import TrustedRoot

    descriptor = os.memfd_create("trusted-root", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(raw)
        with proving(where):
            root = TrustedRoot.from_file(f"/proc/self/fd/{descriptor}")
            root.get_fulcio_certs()
            return root
    finally:
        os.close(descriptor)


def _entries(document: Mapping[str, JsonValue], part: str) -> list[dict[str, JsonValue]]:
    entries = document.get(part, [])
    if not isinstance(entries, list):
        raise Refused("trusted-root-malformed", "a part is no list", where=part)
    return [_object(entry, part) for entry in entries]


def _object(value: JsonValue, where: str) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise Refused("trusted-root-malformed", "an entry is no object", where=where)
    return value


def _covers(entry: Mapping[str, JsonValue], moments: Iterable[datetime], where: str) -> bool:
    """Say whether an entry was valid at all of `moments`. Both ends are included."""
    period = _period(entry)
    start, end = (_moment(period.get(name), where) for name in ("start", "end"))
    return all(
        (start is None or start <= moment) and (end is None or moment <= end) for moment in moments
    )


def _period(entry: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    # A log's dates are those of its key; an authority has its own.
    holder = entry.get("publicKey", entry)
    return _object(_object(holder, "publicKey").get("validFor", {}), "validFor")


def _moment(value: JsonValue, where: str) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Refused(
            "trusted-root-malformed", "a date can't be read", got=value, where=where
        )  # fmt: skip
    return moment


def _undated(entry: dict[str, JsonValue]) -> dict[str, JsonValue]:
    always: JsonValue = {"start": _FIRST}
    if "publicKey" in entry:
        return {
            **entry,
            "publicKey": {**_object(entry["publicKey"], "publicKey"), "validFor": always},
        }
    return {**entry, "validFor": always}
