"""Updates of trust from a medium: what is taken, and a refusal of its own for each way to cheat."""

import json
import shutil
from dataclasses import replace
from datetime import timedelta

import pytest

from capsule.trust.medium import Medium
from capsule.trust.updating import TrustFolder
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import encode_record, sign
from capsule_manifest.errors import ExitCode
from capsule_manifest.policy import POLICY_TYPE, encode_policy
from capsule_manifest.policy_update import (
    decode_policy_update,
    encode_policy_update,
    next_policy,
)
from support.trust_media import ALICE, BOB, CAROL, DAVE, NOW, pinned, policy, refused, write

DAY = timedelta(days=1)


def test_a_newer_policy_is_taken_and_the_same_medium_again_changes_nothing(world):
    world.write(policy(2))
    taken = world.update()
    assert (taken.before, taken.policy) == (1, policy(2))
    assert world.trust.policy() == policy(2)
    again = world.update(NOW + DAY)
    assert (again.before, again.policy) == (2, policy(2))
    assert world.trust.accepted() == NOW + DAY


def test_a_medium_written_anew_keeps_the_policy_and_is_fresh_for_longer(world):
    world.write(policy(2))
    world.update()
    later = NOW + 20 * DAY
    world.write(policy(2), now=later)
    assert world.update(later).expires == later + 30 * DAY


def test_the_trust_keys_change_hands_in_steps_and_one_who_missed_some_walks_them(world):
    world.write(policy(2))
    world.write(policy(3, trust=("bob", "carol")), (ALICE, BOB, CAROL))
    world.write(policy(4, trust=("carol", "dave")), (BOB, CAROL, DAVE))
    assert world.update().policy.version == 4
    assert world.trust.policy().owners_of("trust") == {"carol", "dave"}


def test_signatures_may_be_added_one_machine_at_a_time(world):
    world.write(policy(2), (ALICE,))
    with refused("trust-root-broken", ExitCode.INTEGRITY):
        world.update()
    Medium(world.path).add_signature(BOB)
    assert world.update().policy == policy(2)


def test_the_trusted_root_comes_with_the_policy_that_pins_it(world):
    root = b'{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}'
    wanted = replace(policy(2), trusted_root=sha256_text(root))
    world.write(wanted, trusted_root=root)
    world.update()
    assert (world.trust.folder / "trusted_root.json").read_bytes() == root


def test_a_first_root_that_was_never_signed_whole_is_passed_over_for_a_later_one(world):
    world.write(policy(2), (ALICE,))
    later = NOW + 100 * DAY  # when the first root ends before what it is to vouch for
    world.write(policy(2), now=later)
    assert len(list(world.path.glob("metadata/*.root.json"))) == 2
    assert world.update(later).policy == policy(2)


def test_a_stop_after_the_metadata_is_finished_by_the_same_update(world):
    world.write(policy(2))
    world.update()
    (world.trust.folder / "policy.json").write_bytes(encode_policy(policy(1)))
    (world.trust.folder / "accepted.json").unlink()
    assert world.update().policy == policy(2)


def test_a_medium_that_was_written_for_years_keeps_what_those_who_missed_it_need(world):
    """One hand-over in the middle; a controller of the first day still walks to the last."""
    before, after = ("alice", "bob"), ("bob", "carol")
    folder = world.path / "policies"
    folder.mkdir(parents=True)
    for version in range(2, 260):
        made = replace(policy(version, trust=before if version < 100 else after), version=version)
        for signer in (ALICE, BOB) if version < 100 else (ALICE, BOB, CAROL):
            record = sign(encode_policy(made), payload_type=POLICY_TYPE, signer=signer)
            (folder / f"{version}-{signer.public.short}.json").write_bytes(encode_record(record))
    many = len(list(folder.iterdir()))
    write(world.path, policy(260, trust=after), (BOB, CAROL))
    left = sorted({int(path.name.split("-")[0]) for path in folder.iterdir()})
    assert many > 500
    assert left == [2, 99, 100, *range(211, 261)]
    held = world.trust.policy()
    assert next_policy(held, Medium(world.path).records(), where="x").version == 260
    raw = encode_policy_update(Medium(world.path).records())
    assert next_policy(held, decode_policy_update(raw), where="x").version == 260


# --- refusals ------------------------------------------------------------------------------------


def an_older_medium(world):
    world.write(policy(2))
    world.copy("old")
    world.write(policy(3))
    world.update()
    world.bring("old")


def a_replayed_medium_of_the_same_policy(world):
    world.write(policy(2))
    world.copy("old")
    world.write(policy(2), now=NOW + DAY)
    world.update(NOW + DAY)
    world.bring("old")


def a_policy_rolled_back_under_fresh_metadata(world):
    world.write(policy(3))
    world.update()
    for record in world.path.glob("policies/*"):
        record.unlink()
    world.write(policy(2))


def metadata_of_one_export_and_policies_of_another(world):
    world.write(policy(2))
    world.copy("old")
    world.write(policy(3))
    shutil.copytree(world.folder / "old" / "policies", world.folder / "keep")
    shutil.rmtree(world.path / "policies")
    shutil.copytree(world.folder / "keep", world.path / "policies")


def targets_of_another_export(world):
    world.write(policy(2))
    world.copy("old")
    world.write(policy(3))
    shutil.copy(world.folder / "old/metadata/targets.json", world.path / "metadata/targets.json")


def a_snapshot_of_another_export(world):
    world.write(policy(2))
    world.copy("old")
    world.write(policy(3))
    shutil.copy(world.folder / "old/metadata/snapshot.json", world.path / "metadata")


def a_changed_policy_file(world):
    world.write(policy(2))
    (world.path / "targets/policy.json").write_bytes(encode_policy(policy(9)))


def one_of_two_signatures_on_the_targets(world):
    world.write(policy(2))
    world.update()
    world.write(policy(3), (ALICE,))


def one_of_two_signatures_on_the_policy(world):
    world.write(policy(2))
    for record in world.path.glob(f"policies/2-{BOB.public.short}.json"):
        record.unlink()


def both_of_alice(version):
    shared = policy(version, trust=("alice", "bob", "carol"))
    entry = replace(shared.keys[CAROL.public.keyid], owner="alice")
    return replace(shared, keys={**shared.keys, CAROL.public.keyid: entry})


def two_keys_of_one_owner(world):
    world.write(policy(2))
    world.write(both_of_alice(3), (ALICE, BOB))
    world.update()
    world.write(both_of_alice(4), (ALICE, CAROL))


def a_root_by_strangers(world):
    world.write(policy(2, trust=("carol", "dave")), (CAROL, DAVE))


def a_root_that_the_one_before_did_not_sign(world):
    world.write(policy(2))
    world.update()
    write(world.folder / "evil", policy(3, trust=("carol", "dave")), (CAROL, DAVE))
    for name in ("timestamp.json", "snapshot.json", "targets.json"):
        shutil.copy(world.folder / "evil/metadata" / name, world.path / "metadata" / name)
    text = json.loads((world.folder / "evil/metadata/1.root.json").read_bytes())
    text["signed"]["version"] = 2
    (world.path / "metadata/2.root.json").write_text(json.dumps(text))


def a_retired_trust_key(world):
    world.write(policy(2))
    world.write(policy(3, trust=("bob", "carol")), (ALICE, BOB, CAROL))
    world.update()
    medium = Medium(world.path)
    wanted = policy(4, trust=("bob", "carol"))
    medium.write(wanted, (BOB,), now=NOW, days=30, trusted_root=None)


def a_lowered_floor(world):
    world.write(replace(policy(2), release_counter_floor=0))


def another_product(world):
    world.write(replace(policy(2), product="acme/other"))


def two_policies_under_one_number(world):
    world.write(policy(2))
    write(world.folder / "other", replace(policy(2), release_counter_floor=5))
    for record in (world.folder / "other/policies").iterdir():
        shutil.copy(record, world.path / "policies" / f"x{record.name}")


def another_trusted_root(world):
    world.write(replace(policy(2), trusted_root=sha256_text(b"{}")), trusted_root=b"{}")
    (world.path / "targets/trusted_root.json").write_bytes(b"[]")


class Careless(Medium):
    """A program that signs metadata about whatever it is given."""

    def _check_export(self, *_):
        pass


def a_trusted_root_that_the_policy_does_not_pin(world):
    pinning = replace(policy(2), trusted_root=sha256_text(b"{}"))
    how = {"now": NOW, "days": 30}
    Careless(world.path).write(pinning, (ALICE, BOB), trusted_root=b"[]", **how)


def no_trusted_root_where_the_policy_pins_one(world):
    pinning = replace(policy(2), trusted_root=sha256_text(b"{}"))
    Careless(world.path).write(pinning, (ALICE, BOB), now=NOW, days=30, trusted_root=None)


def no_timestamp(world):
    world.write(policy(2))
    (world.path / "metadata/timestamp.json").unlink()


def no_target(world):
    world.write(policy(2))
    (world.path / "targets/policy.json").unlink()


def an_empty_medium(world):
    world.path.mkdir()


def a_timestamp_that_is_no_json(world):
    world.write(policy(2))
    (world.path / "metadata/timestamp.json").write_bytes(b"\xff{")


def a_deep_timestamp(world):
    world.write(policy(2))
    (world.path / "metadata/timestamp.json").write_bytes(b"[" * 10_000)


def a_huge_timestamp(world):
    world.write(policy(2))
    (world.path / "metadata/timestamp.json").write_bytes(b" " * 20_000)


def a_link_out_of_the_medium(world):
    world.write(policy(2))
    (world.path / "metadata/timestamp.json").unlink()
    (world.path / "metadata/timestamp.json").symlink_to("/etc/hostname")


def a_root_that_is_a_snapshot(world):
    world.write(policy(2))
    shutil.copy(world.path / "metadata/snapshot.json", world.path / "metadata/1.root.json")


def too_many_records(world):
    world.write(policy(2))
    for number in range(1000):
        (world.path / f"policies/3-{number}.json").write_bytes(b"{}")


def a_huge_record(world):
    world.write(policy(2))
    (world.path / "policies/1-x.json").write_bytes(b" " * (3 << 20))


def too_many_roots(world):
    world.write(policy(2))
    for number in range(2, 300):
        shutil.copy(
            world.path / "metadata/1.root.json", world.path / f"metadata/{number}.root.json"
        )


def a_huge_root(world):
    world.write(policy(2))
    (world.path / "metadata/1.root.json").write_bytes(b" " * 600_000)


def a_record_that_is_no_record(world):
    world.write(policy(2))
    (world.path / "policies/2-ffffffff.json").write_bytes(b"{}")


def a_release_key_among_the_signers(world):
    from support.documents import RELEASE_KEY

    world.write(policy(2))
    record = sign(encode_policy(policy(2)), payload_type=POLICY_TYPE, signer=RELEASE_KEY)
    for path in world.path.glob("policies/2-*"):
        path.unlink()
    (world.path / "policies/2-x.json").write_bytes(encode_record(record))


INTEGRITY, DENIED = ExitCode.INTEGRITY, ExitCode.DENIED
PARTIAL = ExitCode.TRANSFER_INCOMPLETE
ROWS = [
    (an_older_medium, "trust-rollback", DENIED, "older than what was accepted"),
    (a_replayed_medium_of_the_same_policy, "trust-rollback", DENIED, "version 2 or higher"),
    (a_policy_rolled_back_under_fresh_metadata, "policy-older", DENIED, "version 3 or higher"),
    (metadata_of_one_export_and_policies_of_another, "trust-mixed", INTEGRITY, "name different"),
    (targets_of_another_export, "trust-mixed", INTEGRITY, "several exports"),
    (a_snapshot_of_another_export, "trust-mixed", INTEGRITY, "several exports"),
    (a_changed_policy_file, "trust-mixed", INTEGRITY, "not the one that was signed"),
    (one_of_two_signatures_on_the_targets, "trust-below-threshold", INTEGRITY, "too few"),
    (one_of_two_signatures_on_the_policy, "policy-threshold-not-met", INTEGRITY, "1: alice"),
    (two_keys_of_one_owner, "owner-counted-once", INTEGRITY, "1: alice"),
    (a_root_by_strangers, "trust-root-broken", INTEGRITY, "pinned policy"),
    (a_root_that_the_one_before_did_not_sign, "trust-root-broken", INTEGRITY, "the one before"),
    (a_retired_trust_key, "trust-below-threshold", INTEGRITY, "too few"),
    (a_lowered_floor, "policy-floor-lowered", DENIED, "lowers the floor"),
    (another_product, "product-mismatch", DENIED, "another product"),
    (two_policies_under_one_number, "policy-forked", INTEGRITY, "two contents"),
    (another_trusted_root, "trust-mixed", INTEGRITY, "not the one that was signed"),
    (a_trusted_root_that_the_policy_does_not_pin, "trust-mixed", INTEGRITY, "the policy pins"),
    (no_trusted_root_where_the_policy_pins_one, "trust-mixed", INTEGRITY, "got none"),
    (no_timestamp, "trust-medium-incomplete", PARTIAL, "timestamp.json"),
    (no_target, "trust-medium-incomplete", PARTIAL, "policy.json"),
    (an_empty_medium, "trust-root-broken", INTEGRITY, "pinned policy"),
    (a_timestamp_that_is_no_json, "trust-malformed", INTEGRITY, "can't be read"),
    (a_deep_timestamp, "trust-malformed", INTEGRITY, "can't be read"),
    (a_huge_timestamp, "trust-malformed", INTEGRITY, "can't be read"),
    (a_link_out_of_the_medium, "trust-malformed", INTEGRITY, "something else than a file"),
    (a_root_that_is_a_snapshot, "trust-malformed", INTEGRITY, "another role"),
    (a_record_that_is_no_record, "document-invalid", INTEGRITY, "wrong value"),
    (too_many_records, "trust-malformed", INTEGRITY, "at most 1000"),
    (a_huge_record, "document-invalid", INTEGRITY, "too large"),
    (too_many_roots, "trust-malformed", INTEGRITY, "at most 256"),
    (a_huge_root, "document-invalid", INTEGRITY, "too large"),
    (a_release_key_among_the_signers, "authority-denied", DENIED, "may not sign"),
]


@pytest.mark.parametrize(
    ("arrange", "error_id", "code", "words"), ROWS, ids=[row[0].__name__ for row in ROWS]
)
def test_a_medium_that_must_not_be_taken_is_refused_and_changes_nothing(
    world, arrange, error_id, code, words
):
    arrange(world)
    before = tree(world.trust.folder)
    with refused(error_id, code) as caught:
        world.update(NOW + DAY)
    assert words in str(caught.value)
    assert tree(world.trust.folder) == before


def tree(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_every_refusal_of_the_table_that_must_differ_has_its_own_id():
    named = {row[0].__name__: row[1] for row in ROWS}
    kinds = [
        named["an_older_medium"],
        named["targets_of_another_export"],
        named["one_of_two_signatures_on_the_targets"],
        named["a_policy_rolled_back_under_fresh_metadata"],
        named["a_root_by_strangers"],
        named["two_keys_of_one_owner"],
        "trust-expired",
        "trust-clock-behind",
    ]
    assert len(set(kinds)) == len(kinds)


def test_nothing_is_taken_before_a_first_policy_was_pinned(tmp_path):
    with refused("trust-not-pinned", ExitCode.USAGE):
        TrustFolder(tmp_path / "none").update(Medium(tmp_path), now=NOW)


def test_another_first_policy_is_not_pinned_over_the_one_that_holds(world):
    with refused("policy-forked", INTEGRITY):
        pinned(world.trust.folder, policy(2))
