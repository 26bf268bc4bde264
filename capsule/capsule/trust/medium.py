"""A medium: a folder that carries trust to where no network is.

    metadata/N.root.json timestamp.json snapshot.json targets.json      TUF 1.0
    targets/policy.json targets/trusted_root.json                       what the metadata vouch for
    policies/VERSION-KEY8.json                                          each policy, once per signer

The metadata tell a controller that what it got is whole, newest and fresh; the signed policies are
what it hands on to hosts, which take nothing on its word. Both are signed by the same keys: those
with the trust authority.

Writing continues from what the folder holds. A root is written anew when the trust keys change or
when the last one ends soon; each root is signed for itself and for the one before.

Source: TUF 1.0, sections 4 and 5; design, section 10.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.api.serialization.json import JSONSerializer

from capsule.durable import make_folder, read_bounded, replace_file
from capsule.trust.roles import role_set, root_of, trust_of
from capsule.trust.tuf_keys import MetadataSigner, tuf_key
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import RECORD_LIMITS, Envelope, decode_record, encode_record, sign
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.keys import Signer
from capsule_manifest.policy import POLICY_TYPE, Policy, decode_policy, encode_policy

__all__ = ["Medium", "Written", "read_regular"]

METADATA_BYTES_MAX: Final = 5_000_000
TRUSTED_ROOT_BYTES_MAX: Final = 4 * 1024 * 1024
_ROOT_BYTES_MAX: Final = 512_000
_ROOTS_MAX: Final = 256
_RECORD_BYTES_MAX: Final = 2 * 1024 * 1024
# What a policy update can carry: its values, and its bytes before they become base64.
_RECORDS_MAX: Final = 1000
_RECORDS_BYTES_MAX: Final = 12_000_000
_RECORDS_MANY: Final = 500
_VERSIONS_KEPT: Final = 50
_ROOT_LIFETIMES: Final = 4
_SERIALIZER: Final = JSONSerializer(compact=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an export wrote: versions, and until when it is fresh."""

    policy: int
    metadata: int
    root: int
    expires: datetime


class Medium:
    """One folder in the layout above."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = folder / "metadata"
        self.targets = folder / "targets"
        self.policies = folder / "policies"

    # --- reading ---------------------------------------------------------------------------------

    def records(self) -> tuple[Envelope, ...]:
        """Return every signed policy on the medium, none of them trusted yet.

        Raises:
            Refused: `trust-malformed`, `json-*`, `document-invalid`, `signature-malformed`.
            Failed: `controller-disk`.
        """
        names = self._record_files()
        if len(names) > _RECORDS_MAX:
            raise _too_much("signed policies", _RECORDS_MAX, len(names), self.policies)
        found = []
        size_bytes = 0
        for path in names:
            raw = read_regular(path, _RECORD_BYTES_MAX) or b""
            size_bytes += len(raw)
            if size_bytes > _RECORDS_BYTES_MAX:
                limit = f"{_RECORDS_BYTES_MAX} bytes"
                raise _too_much("signed policies", limit, "more", self.policies)
            found.append(decode_record(raw, where=str(path)))
        return tuple(found)

    def roots(self) -> list[Metadata[Root]]:
        """Return the medium's roots from the first number on without a gap, none verified.

        Raises:
            Refused: `trust-malformed`.
            Failed: `controller-disk`.
        """
        numbers = sorted(
            int(path.name.partition(".")[0])
            for path in self.metadata.glob("*.root.json")
            if path.name.partition(".")[0].isdecimal()
        )
        if len(numbers) > _ROOTS_MAX:
            raise _too_much("roots", _ROOTS_MAX, len(numbers), self.metadata)
        return [self._load(Root, f"{number}.root.json") for number in numbers]

    def role(self, kind: type[Targets] | type[Snapshot] | type[Timestamp]) -> object | None:
        """Return the signed part of a role's metadata, None when the file is not there."""
        path = self.metadata / f"{kind.type}.json"
        return self._load(kind, path.name).signed if path.exists() else None

    # --- writing ---------------------------------------------------------------------------------

    def write(
        self,
        policy: Policy,
        signers: Sequence[Signer],
        *,
        now: datetime,
        days: int,
        trusted_root: bytes | None,
    ) -> Written:
        """Put `policy` on the medium, signed by `signers`; the folder may hold an older one.

        `days` is how long the medium stays fresh.

        Raises:
            Refused: `policy-older`, `trust-mixed` when the trusted root is not the policy's,
                `authority-denied` for a signer without the trust authority, `trust-malformed`.
            Failed: `controller-disk`.
        """
        self._check_export(policy, signers, trusted_root)
        expires = (now + timedelta(days=days)).replace(microsecond=0)
        for folder in (self.metadata, self.targets, self.policies):
            make_folder(folder)
        raw = encode_policy(policy)
        files = {"policy.json": raw}
        if trusted_root is not None:
            files["trusted_root.json"] = trusted_root
        for name, data in files.items():
            replace_file(self.targets / name, data, mode=0o644)
        root = self._write_root(policy, signers, now=now, expires=expires, days=days)
        last = self.role(Timestamp)
        version = (last.version if isinstance(last, Timestamp) else 0) + 1
        targets = {
            name: TargetFile.from_data(name, data, ["sha256"]) for name, data in files.items()
        }
        self._save(Metadata(Targets(version=version, expires=expires, targets=targets)), signers)
        meta = {"targets.json": MetaFile(version)}
        self._save(Metadata(Snapshot(version=version, expires=expires, meta=meta)), signers)
        newest = MetaFile(version)
        self._save(
            Metadata(Timestamp(version=version, expires=expires, snapshot_meta=newest)), signers
        )
        for signer in signers:
            self._save_record(policy, raw, signer)
        self._prune()
        return Written(policy=policy.version, metadata=version, root=root, expires=expires)

    def add_signature(self, signer: Signer, *, digest: str | None = None) -> Written:
        """Sign what the medium holds: its newest root, its targets, and its newest policy.

        Nobody signs more than the policy that he has seen, whose `digest` he may give: root and
        targets must say what it says, or they would hand over trust to whom it doesn't name.

        Raises:
            Refused: `authority-denied` when neither the newest root nor the one before names the
                key; `trust-mixed`, `trust-malformed`.
            Failed: `trust-medium-incomplete`, `controller-disk`.
        """
        roots = self.roots()
        raw = read_regular(self.targets / "policy.json", RECORD_LIMITS.size_bytes_max)
        if not roots or raw is None:
            raise Failed("trust-medium-incomplete", "a medium is not whole", where=self.folder)
        policy = decode_policy(raw, where=str(self.targets / "policy.json"))
        targets = self._load(Targets, "targets.json")
        self._check_signed(policy, sha256_text(raw), roots[-1].signed, targets.signed, digest)
        ours = tuf_key(signer.public).keyid
        named = [ours in root.signed.roles[Root.type].keyids for root in roots[-2:]]
        if not any(named):
            raise _not_trust(signer, str(self.folder))
        newest = roots[-1]
        newest.sign(MetadataSigner(signer), append=True)
        self._put(newest, f"{newest.signed.version}.root.json")
        if named[-1]:
            targets.sign(MetadataSigner(signer), append=True)
            self._put(targets, "targets.json")
        self._save_record(policy, raw, signer)
        return Written(
            policy=policy.version,
            metadata=targets.signed.version,
            root=newest.signed.version,
            expires=targets.signed.expires,
        )

    # --- inside ----------------------------------------------------------------------------------

    def _check_signed(
        self, policy: Policy, held: str, root: Root, targets: Targets, digest: str | None
    ) -> None:
        if digest is not None and digest != held:
            raise Refused(
                "trust-mixed", "the medium holds another policy than the one to be signed",
                expected=digest, got=held, where=self.folder,
            )  # fmt: skip
        wanted = {"policy.json": held}
        if policy.trusted_root is not None:
            wanted["trusted_root.json"] = policy.trusted_root
        named = {
            name: f"sha256:{target.hashes.get('sha256')}"
            for name, target in targets.targets.items()
        }
        if named != wanted or targets.delegations is not None:
            raise Refused(
                "trust-mixed", "the targets on the medium are not those of its policy",
                expected=wanted, got=named, where=self.metadata / "targets.json",
            )  # fmt: skip
        if role_set(root) != role_set(root_of(policy, root.version, root.expires)):
            raise Refused(
                "trust-mixed", "the newest root names other keys than the policy",
                expected=f"the {len(policy.trust.keys)} trust keys of version {policy.version}",
                where=self.metadata,
            )  # fmt: skip

    def _check_export(
        self, policy: Policy, signers: Sequence[Signer], trusted_root: bytes | None
    ) -> None:
        digest = None if trusted_root is None else sha256_text(trusted_root)
        if digest != policy.trusted_root:
            raise Refused(
                "trust-mixed",
                "the trusted root is not the one that the policy pins",
                expected=policy.trusted_root or "none",
                got=digest or "none",
                where="trusted root",
            )
        for record in self.records():
            held = decode_policy(record.payload)
            if held.version > policy.version:
                raise Refused(
                    "policy-older", "the medium holds a newer policy",
                    expected=f"version {held.version} or higher", got=policy.version,
                    where=self.folder,
                )  # fmt: skip
            if held.version == policy.version and record.payload != encode_policy(policy):
                raise Refused(
                    "policy-forked", "the medium holds another policy under this version",
                    got=f"version {policy.version}", where=self.folder,
                )  # fmt: skip
        # Who holds trust now signs the handing over, so the last root's keys may sign too.
        allowed = {tuf_key(policy.keys[keyid].key).keyid for keyid in policy.trust.keys}
        for root in self.roots()[-1:]:
            allowed |= set(root.signed.roles[Root.type].keyids)
        for signer in signers:
            if tuf_key(signer.public).keyid not in allowed:
                raise _not_trust(signer, str(self.folder))

    def _write_root(
        self,
        policy: Policy,
        signers: Sequence[Signer],
        *,
        now: datetime,
        expires: datetime,
        days: int,
    ) -> int:
        roots = self.roots()
        last = roots[-1].signed if roots else None
        lifetime = timedelta(days=days * _ROOT_LIFETIMES)
        ends = (now + lifetime).replace(microsecond=0)
        wanted = root_of(policy, (last.version if last else 0) + 1, ends)
        if last is not None and role_set(last) == role_set(wanted) and last.expires >= expires:
            return last.version
        metadata = Metadata(wanted)
        for signer in signers:
            metadata.sign(MetadataSigner(signer), append=True)
        self._put(metadata, f"{wanted.version}.root.json")
        return wanted.version

    def _save(
        self,
        metadata: Metadata[Targets] | Metadata[Snapshot] | Metadata[Timestamp],
        signers: Sequence[Signer],
    ) -> None:
        for signer in signers:
            metadata.sign(MetadataSigner(signer), append=True)
        self._put(metadata, f"{metadata.signed.type}.json")

    def _save_record(self, policy: Policy, raw: bytes, signer: Signer) -> None:
        record = sign(raw, payload_type=POLICY_TYPE, signer=signer)
        name = f"{policy.version}-{signer.public.short}.json"
        replace_file(self.policies / name, encode_record(record), mode=0o644)

    def _prune(self) -> None:
        """Drop signed policies that nobody needs, once there are many.

        Who missed a version takes a later one on the word of the same owners. So one is needed only
        if its trust owners are not those of the version before or after it, or if it is recent.
        """
        files: dict[int, list[Path]] = {}
        trust: dict[int, object] = {}
        for path, record in zip(self._record_files(), self.records(), strict=True):
            policy = decode_policy(record.payload, where=str(path))
            files.setdefault(policy.version, []).append(path)
            trust[policy.version] = trust_of(policy)
        if sum(map(len, files.values())) <= _RECORDS_MANY:
            return
        versions = sorted(files)
        for before, version, after in zip(
            versions, versions[1:-_VERSIONS_KEPT], versions[2:], strict=False
        ):
            if trust[before] == trust[version] == trust[after]:
                for path in files[version]:
                    _remove(path)

    def _record_files(self) -> list[Path]:
        return sorted(self.policies.glob("*.json")) if self.policies.is_dir() else []

    def _put(self, metadata: Metadata, name: str) -> None:  # type: ignore[type-arg]
        replace_file(self.metadata / name, metadata.to_bytes(_SERIALIZER) + b"\n", mode=0o644)

    def _load(self, kind: type, name: str) -> Metadata:  # type: ignore[type-arg]
        path = self.metadata / name
        raw = read_regular(path, _ROOT_BYTES_MAX if kind is Root else METADATA_BYTES_MAX)
        if raw is None:
            raise Failed("trust-medium-incomplete", "a medium lacks a file", where=path)
        try:
            metadata: Metadata = Metadata.from_bytes(raw)  # type: ignore[type-arg]
        except (RepositoryError, ValueError, RecursionError) as error:
            raise Refused(
                "trust-malformed", "trust metadata can't be read", got=error, where=path
            ) from None
        if not isinstance(metadata.signed, kind):
            raise Refused(
                "trust-malformed", "trust metadata are of another role",
                expected=name, got=metadata.signed.type, where=path,
            )  # fmt: skip
        return metadata


def _remove(path: Path) -> None:
    # Not made durable: what comes back after a power loss is removed by the next export.
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise Failed(
            "controller-disk", "a medium does not let go of a file", got=error, where=path
        ) from None


def read_regular(path: Path, size_bytes_max: int) -> bytes | None:
    """Return a file's bytes, None when it is not there; a medium may hold links and pipes.

    Raises:
        Refused: `trust-malformed` for what is no plain file, `document-invalid` for a large one.
        Failed: `controller-disk`.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Refused("trust-malformed", "a medium holds something else than a file", where=path)
    return read_bounded(path, size_bytes_max)


def _too_much(what: str, limit: object, got: object, where: Path) -> Refused:
    return Refused(
        "trust-malformed", f"a medium has too many {what}", expected=f"at most {limit}", got=got,
        where=where,
    )  # fmt: skip


def _not_trust(signer: Signer, where: str) -> Refused:
    return Refused(
        "authority-denied",
        "a key signed what it may not sign",
        expected="a key with the trust authority",
        got=f"key {signer.public.short}",
        where=where,
    )
