"""The page that lists every changed bundle with its id, message and exit code."""

import json

from capsule.keyless.verifier import load_verifier
from capsule_manifest.errors import Refused
from capsule_manifest.policy import decode_policy
from capsule_manifest.trust import verify_release
from support.keyless_rows import ROWS
from support.keyless_world import KeylessWorld
from support.sources import ROOT

PAGE = ROOT / "docs" / "reference" / "keyless-refusals.md"
HEAD = """\
# Refused keyless bundles

This page is written by `./dev docs` from what `capsule verify` answers.
Each row changes one thing in a good bundle; *log* is the version of Rekor that its entry is of.

| what is changed | log | id | message | exit |
| --- | --- | --- | --- | --- |
"""


def refusal(world, change):
    """Return how a changed release bundle is refused under the world's policy."""
    policy = decode_policy(world.policy_path.read_bytes())
    (path,) = world.signatures()
    bundle = json.loads(path.read_bytes())
    change(bundle)
    try:
        verify_release(
            policy,
            (world.capsule / "capsule.json").read_bytes(),
            {path.name: json.dumps(bundle).encode()},
            counter_floor=0,
            keyless=load_verifier(world.folder / "trusted_root.json"),
        )
    except Refused as refused:
        return refused
    raise AssertionError("it was accepted")


def test_the_page_of_refusals_says_what_happens(instance, tmp_path, golden):
    worlds = {}
    for version in (1, 2):
        folder = tmp_path / str(version)
        worlds[version] = KeylessWorld(folder=folder, instance=instance, rekor=version).prepare()
        worlds[version].sign_by_hand()
    lines = []
    for name, (versions, change, error_id) in ROWS.items():
        answers = {}
        for version in versions:
            refused = refusal(worlds[version], change)
            assert refused.error_id == error_id
            key = (refused.error_id, refused.what, int(refused.exit_code))
            answers.setdefault(key, []).append(str(version))
        for (got, what, code), logs in answers.items():
            lines.append(f"| {name} | {', '.join(logs)} | `{got}` | {what} | {code} |\n")
    assert len(lines) >= 50
    golden(PAGE, HEAD + "".join(lines))
