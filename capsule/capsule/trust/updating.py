"""Take trust from a medium: fresh, whole, newer than what was accepted, or not at all.

`tuf`'s own client decides about the metadata, on a copy; the signed policies are walked by the
rules that hosts use; both must name the same policy. Then everything is written durably, the policy
after the metadata: a stop in between is finished by running the same update again.

Wall time counts here and nowhere else in trust. A medium that has expired by this machine's clock,
or a clock that is behind what was accepted before, is refused; installs go on under the policy that
holds.

Source: TUF 1.0, section 5; design, section 10.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from securesystemslib.exceptions import StorageError
from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    ExpiredMetadataError,
    LengthOrHashMismatchError,
    RepositoryError,
    UnsignedMetadataError,
)
from tuf.api.metadata import Metadata, Root, Signed, Snapshot, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from capsule.durable import exclusive, make_folder, read_bounded, replace_file
from capsule.trust.medium import METADATA_BYTES_MAX, Medium, read_regular
from capsule.trust.tuf_keys import tuf_key
from capsule_manifest.canonical import Limits, decode, encode
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.fields import root_object
from capsule_manifest.policy import Policy, decode_policy, encode_policy
from capsule_manifest.policy_update import encode_policy_update, next_policy

__all__ = ["TrustFolder", "Updated"]

POLICY_BYTES_MAX: Final = 1024 * 1024
_ACCEPTED_SCHEMA: Final = "capsule-trust-accepted/1"
_ACCEPTED_LIMITS: Final = Limits(size_bytes_max=4096, depth_max=2, values_max=8)
_BASE: Final = "medium:///"
# What hostile metadata has been seen to raise out of a parser besides its own errors.
_LEAKS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What an update did. `metadata` is the version of the accepted metadata."""

    before: int
    policy: Policy
    metadata: int
    expires: datetime


class FolderFetcher(FetcherInterface):
    """Give `tuf` files of a medium; the whole network of an update."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium

    def _fetch(self, url: str) -> Iterator[bytes]:
        name = url.removeprefix(_BASE)
        raw = None
        if ".." not in name.split("/"):
            raw = read_regular(self._medium.folder / name, METADATA_BYTES_MAX)
        if raw is None:
            message = f"the medium has no {name}"
            raise DownloadHTTPError(message, 404)
        yield raw


class TrustFolder:
    """A controller's trust: `policy.json`, `trusted_root.json`, and what proves them newest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metadata = folder / "metadata"

    def policy(self) -> Policy | None:
        """Return the policy that holds, None before the first. Raises: as `decode_policy`."""
        raw = read_bounded(self.folder / "policy.json", POLICY_BYTES_MAX)
        return None if raw is None else decode_policy(raw, where=str(self.folder / "policy.json"))

    def accepted(self) -> datetime | None:
        """Return when the last update was accepted. Raises: `json-*`, `document-*`."""
        path = self.folder / "accepted.json"
        raw = read_bounded(path, _ACCEPTED_LIMITS.size_bytes_max)
        if raw is None:
            return None
        document = root_object(
            decode(raw, limits=_ACCEPTED_LIMITS, where=str(path)),
            schema=_ACCEPTED_SCHEMA,
            name=str(path),
        )
        at_s = document.integer("at_s", most=253_402_300_799)
        document.end()
        return datetime.fromtimestamp(at_s, tz=UTC)

    def pin(self, policy: Policy) -> None:
        """Take a first policy on a person's word.

        Raises:
            Refused: `policy-forked` when another one is pinned already.
            Failed: `controller-disk`, `controller-busy`.
        """
        make_folder(self.folder)
        with exclusive(self.folder / "lock"):
            held = self.policy()
            if held is not None and encode_policy(held) != encode_policy(policy):
                raise Refused(
                    "policy-forked",
                    "another trust policy is pinned already",
                    expected=sha256_text(encode_policy(held)),
                    got=sha256_text(encode_policy(policy)),
                    where=self.folder,
                )
            replace_file(self.folder / "policy.json", encode_policy(policy), mode=0o644)

    def update(self, medium: Medium, *, now: datetime, keep: bool = True) -> Updated:
        """Take what the medium brings; with `keep` false only say whether it would be taken.

        Raises:
            Refused: `trust-not-pinned`, `trust-clock-behind`, `trust-expired`, `trust-rollback`,
                `trust-mixed`, `trust-below-threshold`, `trust-root-broken`, `trust-malformed`; what
                `next_policy` raises.
            Failed: `trust-medium-incomplete`, `controller-disk`, `controller-busy`.
        """
        if self.policy() is None:
            raise Refused("trust-not-pinned", "no trust policy holds yet", where=self.folder)
        with exclusive(self.folder / "lock"):
            current = self.policy()
            assert current is not None, "nothing removes a policy"
            self._check_clock(current, now)
            with tempfile.TemporaryDirectory(prefix="capsule-trust-") as name:
                work = Path(name)
                targets = self._refresh(current, medium, work, now)
                policy = self._decide(current, medium, targets, now)
                _, expires = _first_to_end(medium, work)
                newest = Metadata[Timestamp].from_file(str(work / "timestamp.json")).signed
                if keep:
                    self._store(work, medium, policy, targets, now)
        return Updated(
            before=current.version, policy=policy, metadata=newest.version, expires=expires
        )

    # --- inside ----------------------------------------------------------------------------------

    def _check_clock(self, current: Policy, now: datetime) -> None:
        issued = datetime.fromtimestamp(current.issued_s, tz=UTC)
        last = max(self.accepted() or issued, issued)
        if now < last:
            raise _clock_behind("what was accepted before", last, now, self.folder)

    def _refresh(
        self, current: Policy, medium: Medium, work: Path, now: datetime
    ) -> dict[str, bytes]:
        """Run the client on a copy of what was accepted; return the targets by name."""
        if self._metadata.is_dir():
            shutil.copytree(self._metadata, work, symlinks=True, dirs_exist_ok=True)
        (work / "root_history").mkdir(exist_ok=True)
        (work / "targets").mkdir(exist_ok=True)
        pinned = None
        if not (work / "root.json").exists():
            pinned = _first_root(current, medium)
        try:
            updater = Updater(
                str(work),
                f"{_BASE}metadata/",
                str(work / "targets"),
                f"{_BASE}targets/",
                fetcher=FolderFetcher(medium),
                config=UpdaterConfig(prefix_targets_with_hash=False),
                bootstrap=pinned,
            )
            updater.refresh()
            found = {}
            for name in ("policy.json", "trusted_root.json"):
                info = updater.get_targetinfo(name)
                if info is not None:
                    found[name] = Path(updater.download_target(info)).read_bytes()
        except (RepositoryError, DownloadError, *_LEAKS) as error:
            raise self._refusal(error, medium, work, now) from error
        return found

    def _decide(
        self, current: Policy, medium: Medium, targets: dict[str, bytes], now: datetime
    ) -> Policy:
        policy = next_policy(current, medium.records(), where=str(medium.folder))
        if targets.get("policy.json") != encode_policy(policy):
            raise Refused(
                "trust-mixed",
                "the signed policies and the metadata name different policies",
                expected=sha256_text(targets.get("policy.json", b"")),
                got=sha256_text(encode_policy(policy)),
                where=medium.folder,
            )
        root = targets.get("trusted_root.json")
        digest = None if root is None else sha256_text(root)
        if digest != policy.trusted_root:
            raise Refused(
                "trust-mixed",
                "the trusted root is not the one that the policy pins",
                expected=policy.trusted_root or "none",
                got=digest or "none",
                where=medium.folder,
            )
        issued = datetime.fromtimestamp(policy.issued_s, tz=UTC)
        if now < issued:
            # A clock behind what the owners signed can't say whether the medium is fresh.
            raise _clock_behind("the policy that the medium brings", issued, now, medium.folder)
        over_s = policy.stale_s(int(now.timestamp()))
        if over_s is not None:
            ended = datetime.fromtimestamp(now.timestamp() - over_s, tz=UTC)
            raise _expired("the policy", ended, now, str(medium.folder))
        return policy

    def _store(
        self,
        work: Path,
        medium: Medium,
        policy: Policy,
        targets: dict[str, bytes],
        now: datetime,
    ) -> None:
        history = self._metadata / "root_history"
        make_folder(history)
        for path in sorted((work / "root_history").glob("*.root.json")):
            replace_file(history / path.name, path.read_bytes(), mode=0o644)
        for role in ("root", "timestamp", "snapshot", "targets"):
            raw = (work / f"{role}.json").read_bytes()
            replace_file(self._metadata / f"{role}.json", raw, mode=0o644)
        if "trusted_root.json" in targets:
            replace_file(
                self.folder / "trusted_root.json", targets["trusted_root.json"], mode=0o644
            )
        update = encode_policy_update(medium.records())
        replace_file(self.folder / "policy-update.json", update, mode=0o644)
        replace_file(self.folder / "policy.json", encode_policy(policy), mode=0o644)
        accepted = encode({"schema": _ACCEPTED_SCHEMA, "at_s": int(now.timestamp())})
        replace_file(self.folder / "accepted.json", accepted, mode=0o644)

    def _refusal(
        self, error: Exception, medium: Medium, work: Path, now: datetime
    ) -> Refused | Failed:
        where = str(medium.folder)
        if isinstance(error, ExpiredMetadataError):
            name, ended = _first_to_end(medium, work)
            return _expired(name, ended, now, where)
        if isinstance(error, UnsignedMetadataError):
            # tuf says whose signatures are missing in its text only.
            if str(error).startswith(Root.type):
                return Refused(
                    "trust-root-broken", "a root is not signed by the one before and by itself",
                    got=error, where=where,
                )  # fmt: skip
            return Refused(
                "trust-below-threshold", "too few trust keys signed the metadata",
                got=error, where=where,
            )  # fmt: skip
        if isinstance(error, BadVersionNumberError):
            held = _signed(self._metadata / "timestamp.json")
            offered = _signed(medium.metadata / "timestamp.json")
            if held is not None and offered is not None and offered.version < held.version:
                return Refused(
                    "trust-rollback", "the medium is older than what was accepted",
                    expected=f"version {held.version} or higher",
                    got=f"version {offered.version}", where=where,
                )  # fmt: skip
            return Refused(
                "trust-mixed", "files of several exports are mixed", got=error, where=where
            )
        if isinstance(error, LengthOrHashMismatchError):
            return Refused(
                "trust-mixed", "a file is not the one that was signed", got=error, where=where
            )
        if isinstance(error, DownloadHTTPError):
            return Failed(
                "trust-medium-incomplete", "a medium lacks a file", got=error, where=where
            )
        return Refused(
            "trust-malformed", "trust metadata can't be read",
            got=f"{type(error).__name__}: {error}", where=where,
        )  # fmt: skip


def _first_root(policy: Policy, medium: Medium) -> bytes:
    """Return the first root of the medium that the pinned policy's own trust keys made.

    Raises:
        Refused: `trust-root-broken` when there is none.
    """
    wanted = frozenset(
        tuf_key(policy.keys[keyid].key).keyid
        for keyid in policy.trust.keys
        if keyid not in policy.revoked_keys
    )
    for root in medium.roots():
        role = root.signed.roles[Root.type]
        if (frozenset(role.keyids), role.threshold) != (wanted, policy.trust.threshold):
            continue
        try:
            root.signed.verify_delegate(Root.type, root.signed_bytes, root.signatures)
        except (RepositoryError, *_LEAKS):
            continue
        # The bytes that were verified, not the file read a second time.
        return root.to_bytes()
    raise Refused(
        "trust-root-broken",
        "no root on the medium is by the trust keys of the pinned policy",
        expected=f"{policy.trust.threshold} of {len(wanted)} keys",
        where=medium.folder,
    )


def _first_to_end(medium: Medium, work: Path) -> tuple[str, datetime]:
    """Return which of the last root and the medium's other metadata ends first, and when."""
    files = {"root.json": work / "root.json"}
    for kind in (Timestamp, Snapshot, Targets):
        files[f"{kind.type}.json"] = medium.metadata / f"{kind.type}.json"
    found = {name: signed.expires for name, path in files.items() if (signed := _signed(path))}
    return min(found.items(), key=lambda item: item[1])


def _signed(path: Path) -> Signed | None:
    """Return the signed part of metadata whose refusal is being explained, None if unreadable."""
    try:
        return Metadata.from_file(str(path)).signed
    except (RepositoryError, OSError, StorageError, *_LEAKS):
        return None


def _expired(what: str, ended: datetime, now: datetime, where: str) -> Refused:
    return Refused(
        "trust-expired",
        f"trust on the medium has expired: {what}",
        expected=f"a time before {_text(ended)}",
        got=_text(now),
        where=where,
    )


def _clock_behind(what: str, least: datetime, now: datetime, where: Path) -> Refused:
    return Refused(
        "trust-clock-behind",
        f"this machine's clock is behind {what}",
        expected=f"{_text(least)} or later",
        got=_text(now),
        where=where,
    )


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
