"""The second owner signs what he has seen: the policy, and metadata that say the same."""

import json
import shutil
from dataclasses import replace

import pytest

from capsule.trust.medium import Medium
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import ExitCode
from capsule_manifest.policy import encode_policy
from support.trust_media import ALICE, BOB, CAROL, DAVE, policy, refused, write

DIGEST = sha256_text(encode_policy(policy(2)))


@pytest.fixture
def medium(tmp_path):
    """A medium that Alice has written and Bob is to sign."""
    return write(tmp_path / "medium", policy(2), (ALICE,))


def files(medium):
    return {path: path.read_bytes() for path in medium.folder.rglob("*") if path.is_file()}


def test_what_the_digest_names_is_signed(medium):
    medium.add_signature(BOB, digest=DIGEST)
    assert {record.keyid for record in medium.records()} == {ALICE.public.keyid, BOB.public.keyid}


def another_policy(medium):
    other = replace(policy(2), release_counter_floor=9)
    (medium.targets / "policy.json").write_bytes(encode_policy(other))


def targets_of_another_policy(medium):
    write(medium.folder.parent / "other", replace(policy(2), release_counter_floor=9), (ALICE,))
    shutil.copy(medium.folder.parent / "other/metadata/targets.json", medium.metadata)


def a_target_more(medium):
    path = medium.metadata / "targets.json"
    document = json.loads(path.read_bytes())
    entry = document["signed"]["targets"]["policy.json"]
    document["signed"]["targets"]["more.json"] = entry
    path.write_text(json.dumps(document))


def a_root_that_hands_over_to_others(medium):
    handed = policy(3, trust=("carol", "dave"))
    write(medium.folder.parent / "other", handed, (CAROL, DAVE))
    path = medium.folder.parent / "other/metadata/1.root.json"
    document = json.loads(path.read_bytes())
    document["signed"]["version"] = 2
    (medium.metadata / "2.root.json").write_text(json.dumps(document))


def a_lower_threshold_in_the_root(medium):
    path = medium.metadata / "1.root.json"
    document = json.loads(path.read_bytes())
    document["signed"]["roles"]["root"]["threshold"] = 1
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        another_policy,
        targets_of_another_policy,
        a_target_more,
        a_root_that_hands_over_to_others,
        a_lower_threshold_in_the_root,
    ],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("digest", [DIGEST, None], ids=["digest", "no digest"])
def test_what_does_not_say_what_the_policy_says_is_not_signed(medium, change, digest):
    change(medium)
    before = files(medium)
    with refused("trust-mixed", ExitCode.INTEGRITY):
        medium.add_signature(BOB, digest=digest)
    assert files(medium) == before


def test_another_policy_with_metadata_of_its_own_is_refused_by_its_digest_only(tmp_path):
    other = write(tmp_path / "medium", replace(policy(2), release_counter_floor=9), (ALICE,))
    with refused("trust-mixed", ExitCode.INTEGRITY):
        other.add_signature(BOB, digest=DIGEST)
    other.add_signature(BOB)
    assert len(Medium(other.folder).records()) == 2


def test_a_stranger_signs_nothing(medium):
    before = files(medium)
    with refused("authority-denied", ExitCode.DENIED):
        medium.add_signature(DAVE, digest=DIGEST)
    assert files(medium) == before
