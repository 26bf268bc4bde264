"""The page that lists every refused signature with its id, message and exit code."""

import pytest

from capsule.builder.opened import open_capsule
from capsule.builder.verify import verify_capsule
from capsule.keyless.verifier import load_verifier
from capsule_manifest.errors import Refused
from capsule_manifest.policy import decode_policy
from capsule_manifest.trust import verify_release
from support import signature_rows
from support.keyless_rows import RAW, ROOTS, ROWS
from support.keyless_world import KeylessWorld
from support.sources import ROOT

PAGE = ROOT / "docs" / "reference" / "keyless-refusals.md"
HEAD = """\
# Refused signatures

This page is written by `./dev docs` from what `capsule verify` answers.
What a [policy](policy.md) refuses beyond signatures is on its own page.
"""
BUNDLES = """
## Keyless bundles
Each row changes one thing in a good bundle; *log* is the version of Rekor that its entry is of.

| what is changed | log | id | message | exit |
| --- | --- | --- | --- | --- |
"""
BYTES = """
## Signature files that are no bundle

| what the file is | id | message | exit |
| --- | --- | --- | --- |
"""
TRUSTED_ROOTS = """
## Trusted roots
Each row changes one thing in a good root, which the policy pins as it then is.

| what is changed | id | message | exit |
| --- | --- | --- | --- |
"""
BY_KEYS = """
## Signatures by keys

| what is signed, or by whom | id | message | exit |
| --- | --- | --- | --- |
"""


def refusal(world):
    """Return how a world's capsule is refused by what `capsule verify` runs."""
    policy = decode_policy(world.policy_path.read_bytes())
    try:
        keyless = load_verifier(world.folder / "trusted_root.json")
        verify_capsule(
            open_capsule(world.capsule), policy, keyless=keyless, report=lambda _name: None
        )
    except Refused as refused:
        return refused
    raise AssertionError("it was accepted")


def row(*cells, refused):
    words = [*cells, f"`{refused.error_id}`", refused.what, str(int(refused.exit_code))]
    return f"| {' | '.join(words)} |\n"


def changed_bundles(worlds, folder):
    """Return rows; those of both logs in one where both answer alike."""
    lines = []
    for name, (versions, change, error_id) in ROWS.items():
        answers = {}
        for version in versions:
            world = worlds[version].copy(folder / f"{len(lines)}-{version}")
            world.change_bundle(change)
            refused = refusal(world)
            assert refused.error_id == error_id
            answers.setdefault((refused.what, refused.exit_code), (refused, []))[1].append(version)
        for refused, logs in answers.values():
            lines.append(row(name, ", ".join(map(str, logs)), refused=refused))
    return lines


def changed_files(world, folder):
    lines = []
    for name, (spoil, error_id) in RAW.items():
        copy = world.copy(folder / f"raw-{len(lines)}")
        (path,) = copy.signatures()
        path.write_bytes(spoil(path.read_bytes()) if callable(spoil) else spoil)
        refused = refusal(copy)
        assert refused.error_id == error_id
        lines.append(row(name, refused=refused))
    return lines


def changed_roots(world, folder):
    lines = []
    for name, spoil in ROOTS.items():
        copy = world.copy(folder / f"root-{len(lines)}")
        good = world.instance.trusted_root()
        copy.put_root({**good, **spoil} if isinstance(spoil, dict) else spoil)
        lines.append(row(name, refused=refusal(copy)))
    return lines


def by_keys():
    lines = []
    for name, (bundles, policy, floor, error_id, exit_code) in signature_rows.ROWS.items():
        with pytest.raises(Refused) as caught:
            verify_release(policy, signature_rows.MANIFEST, bundles, counter_floor=floor)
        refused = caught.value
        assert (refused.error_id, refused.exit_code) == (error_id, exit_code)
        lines.append(row(name, refused=refused))
    return lines


def test_the_page_of_refusals_says_what_happens(instance, tmp_path, golden):
    worlds = {}
    for version in (1, 2):
        folder = tmp_path / str(version)
        worlds[version] = KeylessWorld(folder=folder, instance=instance, rekor=version).prepare()
        worlds[version].sign_by_hand()
    sections = [
        (BUNDLES, changed_bundles(worlds, tmp_path)),
        (BYTES, changed_files(worlds[1], tmp_path)),
        (TRUSTED_ROOTS, changed_roots(worlds[1], tmp_path)),
        (BY_KEYS, by_keys()),
    ]
    assert sum(len(lines) for _, lines in sections) >= 90
    golden(PAGE, HEAD + "".join(head + "".join(lines) for head, lines in sections))
