"""`capsule verify` on hostile capsules: a stable id, an exit code, advice, and nothing written.

Every byte that a capsule has is somebody's input. What is refused here is refused at the edge of
the process, as an operator and a script see it.
"""

import json
import struct
from dataclasses import replace
from shutil import copytree

import pytest
import zstandard

from capsule.__main__ import main
from capsule.builder.single_file import write_single_file
from capsule_manifest.digest import CapsuleId, sha256_text
from capsule_manifest.envelope import IN_TOTO, encode_bundle, sign
from capsule_manifest.error_table import ROWS
from capsule_manifest.policy import encode_policy
from capsule_manifest.release import encode_release
from capsule_manifest.statements import ReleaseClaim
from support import documents
from support.capsules import write_capsule
from support.forgery import Forgery, raw_directory, raw_entry, raw_file, record

MIB = 1024 * 1024
FLIPS = 0x01, 0x80
REFUSALS = {10, 12, 21, 30}
"""Integrity, denied by the policy, a format that is not known, cut off. Never 0, never 1."""


class Desk:
    """A folder with a capsule, a policy, and somebody who runs `capsule verify`."""

    def __init__(self, folder, capsys):
        self.folder = folder
        self.capsule = folder / "web.capsule"
        self.policy = folder / "trust.json"
        self._capsys = capsys
        self.made = write_capsule(self.capsule, runtime={"VERSION": b"0.1.0\n"})
        self.policy.write_bytes(encode_policy(documents.make_policy()))

    def verify(self, path=None):
        """Return the exit code and the id of the error, if there was one."""
        before = self._listing()
        code = main(["verify", str(path or self.capsule), "--policy", str(self.policy), "--json"])
        shown = self._capsys.readouterr()
        assert self._listing() == before, "something was written"
        answer = json.loads(shown.out)
        if code == 0:
            return code, ""
        assert "Traceback" not in shown.err
        assert f"error: {answer['error']}: " in shown.err
        assert f"\n  next: {ROWS[answer['error']][1]}" in shown.err
        assert code == answer["exit_code"] == int(ROWS[answer["error"]][0])
        return code, answer["error"]

    def _listing(self):
        return {
            path.relative_to(self.folder): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in self.folder.rglob("*")
        }

    def members(self):
        return sorted(path for path in self.capsule.rglob("*") if path.is_file())


@pytest.fixture
def desk(tmp_path, capsys):
    return Desk(tmp_path, capsys)


def positions(size, count):
    """Return about so many positions: the first, the last, and a spread between."""
    return sorted({0, size - 1, *range(0, size, max(1, size // count))})


def test_a_whole_capsule_is_accepted_in_both_forms(desk):
    archive = write_single_file(desk.capsule)
    assert desk.verify() == (0, "")
    assert desk.verify(archive) == (0, "")


def test_the_answer_counts_what_was_checked_and_names_the_owners(desk, capsys):
    assert main(["verify", str(desk.capsule), "--policy", str(desk.policy)]) == 0
    shown = capsys.readouterr().out
    assert desk.made.capsule in shown
    assert "signed by ci" in shown
    assert "3 trees, 3 frames, 3 objects" in shown


# --- damage -------------------------------------------------------------------------------------
def test_a_flipped_bit_in_any_member_is_refused(desk):
    for path in desk.members():
        raw = path.read_bytes()
        for position in positions(len(raw), 12):
            for flip in FLIPS:
                changed = bytearray(raw)
                changed[position] ^= flip
                path.write_bytes(changed)
                code, _ = desk.verify()
                assert code in REFUSALS, (path.name, position, flip)
        path.write_bytes(raw)
    assert desk.verify() == (0, "")


@pytest.mark.parametrize("name", ["capsule.json", "packing.json", "trees"])
def test_a_changed_byte_anywhere_in_a_document_is_refused(desk, name):
    path = next(item for item in desk.members() if name in item.parts)
    raw = path.read_bytes()
    for position in range(0, len(raw), max(1, len(raw) // 150)):
        changed = bytearray(raw)
        changed[position] ^= 0x04
        path.write_bytes(changed)
        assert desk.verify()[0] in REFUSALS, position


def test_a_member_that_is_cut_off_or_longer_is_refused(desk):
    for path in desk.members():
        raw = path.read_bytes()
        for size in positions(len(raw), 5):
            path.write_bytes(raw[:size])
            assert desk.verify()[0] in REFUSALS, (path.name, size)
        path.write_bytes(raw + b"\n")
        # Space after a signature's JSON means nothing and is let be, as other Sigstore readers do.
        is_signature = path.parent.name == "signatures"
        assert desk.verify()[0] in (REFUSALS | {0} if is_signature else REFUSALS), path.name
        path.write_bytes(raw)


def test_a_member_that_is_missing_is_refused(desk):
    for path in desk.members():
        raw = path.read_bytes()
        path.unlink()
        assert desk.verify()[0] in REFUSALS, path.name
        path.write_bytes(raw)


def test_a_flipped_bit_anywhere_in_the_single_file_is_refused(desk):
    archive = write_single_file(desk.capsule)
    raw = archive.read_bytes()
    accepted = []
    for position in range(0, len(raw), 61):
        changed = bytearray(raw)
        changed[position] ^= 0x01
        archive.write_bytes(changed)
        code, _ = desk.verify(archive)
        if code not in REFUSALS:
            accepted.append((position, code))
    assert accepted == []


def test_a_single_file_that_is_cut_off_anywhere_is_refused(desk):
    archive = write_single_file(desk.capsule)
    raw = archive.read_bytes()
    # Whole blocks too: an archive that ends between members looks well-formed to many readers.
    for size in {*range(0, len(raw), 512), *range(1, len(raw), 1009)}:
        archive.write_bytes(raw[:size])
        assert desk.verify(archive)[0] in REFUSALS, size


# --- trust --------------------------------------------------------------------------------------
def test_a_wrong_signature_is_refused(desk):
    for path in (desk.capsule / "signatures").iterdir():
        bundle = json.loads(path.read_bytes())
        other = sign(b"{}", payload_type=IN_TOTO, signer=documents.RELEASE_KEY)
        signature = json.loads(encode_bundle(other))["dsseEnvelope"]["signatures"]
        bundle["dsseEnvelope"]["signatures"] = signature
        path.write_bytes(json.dumps(bundle).encode())
    assert desk.verify() == (10, "signature-invalid")


def test_a_capsule_that_nobody_signed_is_refused(desk):
    for path in (desk.capsule / "signatures").iterdir():
        path.unlink()
    assert desk.verify() == (10, "signature-missing")


@pytest.mark.parametrize(
    ("signer", "code", "error_id"),
    [
        (documents.STRANGER_KEY, 10, "key-unknown"),
        (documents.ROUTE_KEY, 12, "authority-denied"),
        (documents.TRUST_KEY, 12, "authority-denied"),
    ],
)
def test_a_key_without_the_release_authority_is_refused(desk, signer, code, error_id):
    Forgery(desk.capsule).sign(signer)
    assert desk.verify() == (code, error_id)


def test_the_signatures_of_another_capsule_are_refused(desk):
    other = desk.folder / "other.capsule"
    write_capsule(other, counter=2)
    for path in (other / "signatures").iterdir():
        (desk.capsule / "signatures" / path.name).write_bytes(path.read_bytes())
    assert desk.verify() == (10, "signature-wrong-subject")


def test_the_packing_of_another_capsule_is_refused(desk):
    other = desk.folder / "other.capsule"
    write_capsule(other, counter=2, runtime={"VERSION": b"0.1.0\n"})
    for path in (
        "packing.json",
        *(f"signatures/{p.name}" for p in (other / "signatures").iterdir()),
    ):
        if "release" not in path:
            (desk.capsule / path).write_bytes((other / path).read_bytes())
    assert desk.verify() == (10, "signature-wrong-subject")


def test_an_older_release_than_the_floor_of_the_policy_is_refused(desk):
    policy = replace(documents.make_policy(), release_counter_floor=2)
    desk.policy.write_bytes(encode_policy(policy))
    assert desk.verify() == (12, "release-counter-too-low")


def test_a_revoked_capsule_is_refused(desk):
    policy = replace(documents.make_policy(), revoked_capsules=frozenset({desk.made.capsule}))
    desk.policy.write_bytes(encode_policy(policy))
    assert desk.verify() == (12, "capsule-revoked")


def test_one_owner_where_two_must_sign_is_refused(desk):
    policy = documents.make_policy()
    desk.policy.write_bytes(
        encode_policy(replace(policy, release=replace(policy.release, threshold=2)))
    )
    assert desk.verify() == (10, "threshold-not-met")
    Forgery(desk.capsule).sign(documents.RELEASE_KEY, documents.SECOND_RELEASE_KEY)
    assert desk.verify() == (0, "")


def test_a_signer_who_claims_another_counter_is_refused(desk):
    forgery = Forgery(desk.capsule)
    claim = ReleaseClaim(
        capsule=CapsuleId(sha256_text(encode_release(forgery.release))),
        product=forgery.release.product,
        version=forgery.release.version,
        release_counter=99,
    )
    forgery.sign(claim=claim)
    assert desk.verify()[0] in REFUSALS


def test_a_policy_that_is_not_there_or_damaged_is_refused(desk):
    desk.policy.write_bytes(b"{")
    assert desk.verify()[0] == 10
    desk.policy.unlink()
    assert desk.verify() == (10, "policy-invalid")


# --- signed, and wrong --------------------------------------------------------------------------
def test_a_manifest_of_100_mb_is_refused_without_being_read(desk):
    with (desk.capsule / "capsule.json").open("r+b") as file:
        file.truncate(100 * MIB)
    assert desk.verify() == (10, "document-invalid")


@pytest.mark.parametrize("document", ["manifest", "packing"])
def test_a_document_that_nests_too_deep_is_refused(desk, document):
    Forgery(desk.capsule).sign(**{document: b"[" * 100_000 + b"]" * 100_000})
    assert desk.verify() == (10, "json-too-deep")


@pytest.mark.parametrize(
    ("entries", "error_id"),
    [
        pytest.param([raw_file(b"a"), raw_file(b"a")], "tree-malformed", id="duplicate"),
        pytest.param([raw_entry(4, 0o644, b"a", bytes(8))], "tree-malformed", id="device"),
        pytest.param([raw_file(b"/etc/passwd")], "path-invalid", id="absolute"),
        pytest.param([raw_file(b"..")], "path-invalid", id="parent"),
        pytest.param([raw_file(b"a/../../b")], "path-invalid", id="slash"),
        pytest.param([raw_file(b"\xff")], "path-invalid", id="not-utf-8"),
        pytest.param([raw_file(b"a\x00b")], "path-invalid", id="nul"),
        pytest.param([raw_entry(3, 0o777, b"a", b"/etc")], "link-escapes", id="absolute-link"),
        pytest.param([raw_entry(3, 0o777, b"a", b"../b")], "link-escapes", id="escaping-link"),
        pytest.param([raw_file(b"a", mode=0o4755)], "tree-entry-invalid", id="set-user-id"),
        pytest.param([raw_file(b"a", mode=0o666)], "tree-entry-invalid", id="world-writable"),
    ],
)
def test_a_signed_listing_with_a_forbidden_entry_is_refused(desk, entries, error_id):
    forgery = Forgery(desk.capsule)
    forgery.replace_tree("app", record(*entries))
    forgery.sign()
    assert desk.verify() == (10, error_id)


def test_a_signed_listing_that_nests_too_deep_is_refused(desk):
    records = [record(raw_file(b"main.py"))]
    for _ in range(200):
        records.insert(0, record(raw_directory(b"d", records[0])))
    forgery = Forgery(desk.capsule)
    forgery.replace_tree("app", *records)
    forgery.sign()
    assert desk.verify() == (10, "tree-malformed")


def test_a_frame_that_holds_more_than_it_declares_is_refused(desk):
    small = zstandard.ZstdCompressor().compress(bytes(1000))
    large = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(MIB))
    # The small frame's header (magic, descriptor, two size bytes) before the large one's blocks.
    bomb = small[: small.index(b"\xe8\x02") + 2] + large[6:]
    forgery = Forgery(desk.capsule)
    forgery.replace_tree("app", record(raw_file(b"main.py", bytes(1000))))
    forgery.replace_frame("app", bomb, bytes(1000))
    forgery.sign()
    assert desk.verify() == (10, "frame-malformed")


def test_a_frame_with_a_window_that_is_too_large_is_refused(desk):
    content = b"text " * 1000
    blocks = zstandard.ZstdCompressor(write_content_size=False).compress(content)[6:]
    for log, answer in ((27, (0, "")), (28, (10, "frame-malformed"))):
        header = b"\x28\xb5\x2f\xfd" + bytes([0b1000_0000, (log - 10) << 3])
        stored = header + struct.pack("<I", len(content)) + blocks
        copy = desk.folder / f"{log}.capsule"
        copytree(desk.capsule, copy)
        forgery = Forgery(copy)
        forgery.replace_tree("app", record(raw_file(b"main.py", content)))
        forgery.replace_frame("app", stored, content)
        forgery.sign()
        assert desk.verify(copy) == answer


def test_content_other_than_the_listing_names_is_refused(desk):
    content = b"other " * 1000
    forgery = Forgery(desk.capsule)
    forgery.replace_tree("app", record(raw_file(b"main.py", b"right " * 1000)))
    forgery.replace_frame("app", zstandard.ZstdCompressor().compress(content), content)
    forgery.sign()
    assert desk.verify() == (10, "object-mismatch")


# --- what lies in the folder --------------------------------------------------------------------
@pytest.mark.parametrize("name", ["trees/" + "0" * 64, "packs/" + "0" * 64 + ".pack"])
def test_a_member_that_nothing_names_is_refused(desk, name):
    (desk.capsule / name).write_bytes(b"stowaway")
    assert desk.verify() == (10, "container-member-refused")


@pytest.mark.parametrize("name", ["run.sh", "trees/a b", "packs/\udcff", "signatures/x/y/z"])
def test_a_name_that_no_capsule_has_is_refused(desk, name):
    path = desk.capsule / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    assert desk.verify() == (10, "container-member-refused")


def test_a_link_in_the_place_of_a_member_is_refused(desk):
    path = desk.capsule / "packing.json"
    aside = desk.folder / "aside.json"
    path.rename(aside)
    path.symlink_to(aside)
    assert desk.verify() == (10, "container-member-refused")


def test_a_path_without_a_capsule_is_refused(desk):
    assert desk.verify(desk.folder / "nothing")[1] == "capsule-incomplete"
    (desk.folder / "empty").mkdir()
    assert desk.verify(desk.folder / "empty")[1] == "capsule-incomplete"
    (desk.folder / "text.tar").write_bytes(b"no archive" * 200)
    assert desk.verify(desk.folder / "text.tar")[1] == "container-malformed"
