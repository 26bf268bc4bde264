"""`capsule sign --keyless`: what a CI job writes, what it refuses to write, and what it says."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from capsule.__main__ import main
from capsule_manifest.policy import CLAIMS as POLICY_CLAIMS
from support.keyless_world import IDENTITY
from support.sigstore_instance import ISSUER, RUNNER_SECRET, SUBJECT, Fault

OTHER = "https://github.com/mallory/hello/.github/workflows/release.yml@refs/heads/main"


def test_what_a_job_signed_is_accepted_without_any_key(world, capsys):
    assert world.sign() == 0
    out = capsys.readouterr().out
    assert SUBJECT in out
    assert "hosts" in out
    assert world.verify() == 0
    assert "signed by ci" in capsys.readouterr().out


def test_both_say_that_hosts_wait_for_a_key(world, capsys):
    assert world.sign("--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["hosts_refuse"]["error"] == "keyless-unverified"
    assert world.verify("--json") == 0
    assert json.loads(capsys.readouterr().out)["hosts_refuse"]["exit_code"] != 0


def test_after_a_counter_signature_hosts_accept(world, capsys, tmp_path):
    keys = tmp_path / "keys"
    assert main(["key", "generate", "--owner", "qa", "--out", str(keys / "qa")]) == 0
    from capsule.builder.keyfile import load_public_key
    from capsule_manifest.policy import PolicyKey

    public = load_public_key(keys / "qa.pub").key
    entry = PolicyKey(key=public, owner="qa", counter_from=1, counter_to=None)
    world.change_policy(
        lambda policy: replace(
            policy,
            keys={**policy.keys, public.keyid: entry},
            release=replace(policy.release, keys=(*policy.release.keys, public.keyid), threshold=2),
        )
    )
    assert world.sign() == 0
    capsys.readouterr()
    assert world.verify() == 10, "one of two owners"
    assert main(["sign", str(world.capsule), "--key", str(keys / "qa")]) == 0
    assert world.verify() == 0
    assert "signed by ci, qa" in capsys.readouterr().out


def test_signing_again_replaces_the_signatures_of_the_same_identity(world):
    assert world.sign() == 0
    before = world.signatures()
    first = before[0].read_bytes()
    assert world.sign() == 0
    assert world.signatures() == before
    assert before[0].read_bytes() != first


def test_the_second_version_of_the_log_serves_as_well(world):
    world.instance.write(world.folder, rekor=2)
    assert world.sign() == 0
    assert world.verify() == 0
    assert "/api/v2/log/entries" in world.instance.requests


def test_a_token_in_the_environment_is_used(world, monkeypatch):
    monkeypatch.setenv("CAPSULE_IDENTITY_TOKEN", world.instance.token())
    config = str(world.folder / "trust-config.json")
    arguments = ["sign", str(world.capsule), "--keyless", "--policy", str(world.policy_path)]
    assert main([*arguments, "--trust-config", config]) == 0


def test_the_token_never_appears(world, capsys):
    secret = world.instance.token(issuer="https://example.org")
    world.put_token(secret)
    assert world.sign() != 0
    captured = capsys.readouterr()
    assert secret not in captured.out + captured.err
    assert secret.split(".")[2] not in captured.out + captured.err


def _no_identity(policy):
    return replace(policy, identities={}, release=replace(policy.release, identities=()))


def _named(**changes):
    identity = replace(IDENTITY, **changes)
    return lambda policy: replace(policy, identities={"release-workflow": identity})


def test_a_policy_made_on_the_command_line_serves(world, tmp_path):
    keys = tmp_path / "keys"
    for name in ("qa", "ops", "root"):
        assert main(["key", "generate", "--owner", name, "--out", str(keys / name)]) == 0
    root = world.folder / "trusted_root.json"
    made = world.folder / "made.json"
    arguments = [
        "trust", "init", "--product", "acme/hello", "--release-key", str(keys / "qa.pub"),
        "--route-key", str(keys / "ops.pub"), "--trust-key", str(keys / "root.pub"),
        "--identity", "ci", ISSUER, SUBJECT, "--claim", "ci", "repository_id", "42",
        "--trusted-root", str(root), "--output", str(made),
    ]  # fmt: skip
    assert main(arguments) == 0
    world.policy_path.write_bytes(made.read_bytes())
    assert world.sign() == 10, "the certificate makes no such claim"
    world.put_token(world.instance.token(repository_id="42"))
    assert world.sign() == 0
    assert world.verify() == 0


CLAIMS = {"repository_id": "42", "repository_owner_id": "7", "runner": "github-hosted"}
SAID = {"repository_id": "42", "repository_owner_id": "7", "runner_environment": "github-hosted"}


def test_every_claim_that_a_policy_can_make_is_checked(world, capsys):
    """A repository's number stays with it; its name passes to whoever takes it."""
    assert set(CLAIMS) == POLICY_CLAIMS
    world.put_token(world.instance.token(**SAID))
    world.change_policy(_named(claims=CLAIMS))
    assert world.sign() == 0
    for claim in CLAIMS:
        world.change_policy(_named(claims={**CLAIMS, claim: "another"}))
        assert world.verify() == 10
        assert "keyless-unproved" in capsys.readouterr().err


def test_a_claim_that_a_certificate_does_not_make_is_not_met(world, capsys):
    world.change_policy(_named(claims={"repository_id": "42"}))
    assert world.sign() == 10
    assert "keyless-un" in capsys.readouterr().err
    assert world.signatures() == []


POLICIES = {
    "another repository": (_named(san=OTHER), "identity-unknown", 10),
    "another branch": (_named(san=SUBJECT + "-next"), "identity-unknown", 10),
    "the start of the name only": (_named(san=SUBJECT[:-1]), "identity-unknown", 10),
    "a pattern": (_named(san="https://github.com/acme/.*"), "identity-unknown", 10),
    "another issuer": (_named(issuer="https://gitlab.com"), "identity-unknown", 10),
    "an issuer with a slash more": (_named(issuer=ISSUER + "/"), "identity-unknown", 10),
    "no identity": (_no_identity, "identity-unknown", 10),
    "a window that begins later": (_named(counter_from=2), "key-outside-window", 12),
    "an identity without the authority": (
        lambda policy: replace(policy, release=replace(policy.release, identities=())),
        "authority-denied",
        12,
    ),
    "another product": (lambda p: replace(p, product="acme/other"), "product-mismatch", 12),
    "a higher floor": (
        lambda p: replace(p, release_counter_floor=2),
        "release-counter-too-low",
        12,
    ),
    "another trusted root": (
        lambda p: replace(p, trusted_root="sha256:" + "0" * 64),
        "trusted-root-mismatch",
        10,
    ),
}


@pytest.mark.parametrize("case", POLICIES)
def test_what_hosts_would_not_count_is_not_written(world, capsys, case):
    change, error_id, exit_code = POLICIES[case]
    world.change_policy(change)
    assert world.sign() == exit_code
    assert f"error: {error_id}: " in capsys.readouterr().err
    assert world.signatures() == []
    assert world.signatures("packing") == []


def test_nothing_is_asked_of_a_service_for_a_root_that_the_policy_does_not_pin(world):
    world.change_policy(POLICIES["another trusted root"][0])
    before = list(world.instance.requests)
    assert world.sign() == 10
    assert world.instance.requests == before, "a public log forgets nothing"


FAULTS = {
    Fault.CA_DOWN: ("sigstore-unavailable", 30),
    Fault.CA_GARBAGE: ("sigstore-unavailable", 30),
    Fault.NO_SCT: ("sigstore-unavailable", 30),
    Fault.OTHER_CT_KEY: ("sigstore-unavailable", 30),
    Fault.OTHER_CA: ("keyless-unproved", 10),
    Fault.TWO_NAMES: ("keyless-malformed", 10),
    Fault.LOG_DOWN: ("sigstore-unavailable", 30),
    Fault.LOG_GARBAGE: ("sigstore-unavailable", 30),
    Fault.OTHER_LOG_KEY: ("keyless-unproved", 10),
    Fault.LATE_LOG: ("keyless-unproved", 10),
    Fault.TSA_DOWN: ("timestamp-missing", 10),
    Fault.TSA_GARBAGE: ("timestamp-missing", 10),
    Fault.OTHER_TSA: ("keyless-unproved", 10),
}


def test_every_fault_of_the_instance_has_a_row():
    assert set(FAULTS) == set(Fault)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_broken_service_leaves_no_signature(world, capsys, fault):
    error_id, exit_code = FAULTS[fault]
    world.instance.faults.add(fault)
    assert world.sign() == exit_code
    err = capsys.readouterr().err
    assert f"error: {error_id}: " in err
    assert "Traceback" not in err
    assert all(line.isprintable() for line in err.splitlines())
    assert world.signatures() == []


def _seconds(delta):
    return int(datetime.now(tz=UTC).timestamp()) + delta


TOKENS = {
    "expired": (lambda i: i.token(exp=_seconds(-60)), "token-refused", 12),
    "not yet valid": (lambda i: i.token(nbf=_seconds(600)), "token-refused", 12),
    "for another audience": (lambda i: i.token(aud="vault"), "token-refused", 12),
    "without a subject": (lambda i: i.token(sub=None), "token-refused", 12),
    "of another issuer's key": (lambda i: flip_signature(i.token()), "sigstore-unavailable", 30),
    "no token": (lambda _: "hello", "token-refused", 12),
    "an empty file": (lambda _: "", "token-refused", 12),
    "bytes": (lambda _: b"\xff\x00\x1b[2J", "token-refused", 12),
    "a person by e-mail": (lambda i: i.token(email="me@example.org"), "identity-unknown", 10),
}


def flip_signature(token):
    head, body, signature = token.split(".")
    return ".".join((head, body, signature[:-8] + "AAAAAAAA"))


@pytest.mark.parametrize("case", TOKENS)
def test_a_token_that_does_not_serve_is_refused(world, capsys, case):
    make, error_id, exit_code = TOKENS[case]
    world.put_token(make(world.instance))
    assert world.sign() == exit_code
    err = capsys.readouterr().err
    assert f"error: {error_id}: " in err
    assert all(line.isprintable() for line in err.splitlines())
    assert world.signatures() == []


def test_a_job_without_the_permission_is_told_which_one(world, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", raising=False)
    arguments = ["sign", str(world.capsule), "--keyless", "--policy", str(world.policy_path)]
    assert main([*arguments, "--trust-config", str(world.folder / "trust-config.json")]) == 2
    err = capsys.readouterr().err
    assert "token-missing" in err
    assert "id-token: write" in err


def sign_as_job(world):
    arguments = ["sign", str(world.capsule), "--keyless", "--policy", str(world.policy_path)]
    return main([*arguments, "--trust-config", str(world.folder / "trust-config.json")])


def test_a_job_of_github_actions_signs_as_itself(world, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", RUNNER_SECRET)
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{world.instance.url}/token?job=7")
    assert sign_as_job(world) == 0
    assert world.verify() == 0


def test_a_job_whose_runner_refuses_is_told_so(world, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "another's")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{world.instance.url}/token?job=7")
    assert sign_as_job(world) == 2
    err = capsys.readouterr().err
    assert "token-missing" in err
    assert "another's" not in err


def test_a_job_of_gitlab_ci_signs_as_itself(world, monkeypatch):
    subject = "https://gitlab.com/acme/hello//.gitlab-ci.yml@refs/heads/main"
    world.change_policy(_named(san=subject, issuer="https://gitlab.com"))
    monkeypatch.setenv("GITLAB_CI", "true")
    token = world.instance.token(subject=subject, issuer="https://gitlab.com")
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token)
    assert sign_as_job(world) == 0
    assert world.verify() == 0


def test_outside_of_ci_the_ways_to_give_a_token_are_named(world, capsys):
    arguments = ["sign", str(world.capsule), "--keyless", "--policy", str(world.policy_path)]
    assert main([*arguments, "--trust-config", str(world.folder / "trust-config.json")]) == 2
    assert "CAPSULE_IDENTITY_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "error_id", "exit_code"),
    [
        (lambda path: path.unlink(), "trust-config-missing", 2),
        (lambda path: path.write_text("{}"), "trust-config-malformed", 2),
        (lambda path: path.write_bytes(b"\xff\xfe"), "trust-config-malformed", 2),
        (lambda path: path.write_text('{"mediaType": "x"}'), "trust-config-malformed", 2),
    ],
)
def test_a_broken_trust_configuration_is_named(world, capsys, spoil, error_id, exit_code):
    spoil(world.folder / "trust-config.json")
    assert world.sign() == exit_code
    assert f"error: {error_id}: " in capsys.readouterr().err


def test_an_instance_without_a_time_stamp_authority_is_refused(world, capsys):
    world.instance.write(world.folder, tsa=False)
    assert world.sign() == 10
    assert "timestamp-missing" in capsys.readouterr().err
    assert world.signatures() == []


@pytest.mark.parametrize(
    "arguments",
    [("--keyless",), ("--keyless", "--key", "x"), ()],
    ids=["no policy", "both", "none"],
)
def test_how_to_sign_is_said_exactly_once(world, capsys, arguments):
    assert main(["sign", str(world.capsule), *arguments]) == 2
    assert "--key" in capsys.readouterr().err


SPOKEN = {Fault.TSA_DOWN, Fault.TSA_GARBAGE}  # the package has something to say of these


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=[] if f in SPOKEN else pytest.mark.slow, id=f.name) for f in Fault],
)
def test_no_words_of_a_service_reach_a_terminal_but_through_the_error(world, fault):
    """In a process of its own: here pytest takes what the package logs."""
    world.instance.faults.add(fault)
    done = subprocess.run(
        [
            sys.executable, "-m", "capsule", "sign", str(world.capsule), "--keyless",
            "--policy", str(world.policy_path), "--identity-token", str(world.folder / "token"),
            "--trust-config", str(world.folder / "trust-config.json"),
        ],
        capture_output=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.returncode == FAULTS[fault][1]
    lines = done.stderr.decode().splitlines()
    assert all(line.isprintable() for line in lines), lines
    assert [line.split(":")[0].strip() for line in lines] == ["error", "next"]
