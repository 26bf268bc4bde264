"""A policy's life at the command line, and promotion of a capsule across an air gap."""

import json
import shutil
from dataclasses import replace

import pytest

from capsule.__main__ import main
from capsule.builder.keyfile import load_public_key
from capsule_manifest.policy import decode_policy, encode_policy
from support.capsules import write_capsule


class Desk:
    """A person with keys in one folder."""

    def __init__(self, folder, capsys):
        self.folder = folder
        self._capsys = capsys

    def run(self, *arguments):
        """Return the exit code and, where there is one, the JSON answer."""
        code = main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        try:
            return code, json.loads(out)
        except ValueError:
            return code, out

    def policy(self, name):
        return decode_policy((self.folder / name).read_bytes())


@pytest.fixture
def desk(tmp_path, capsys):
    made = Desk(tmp_path, capsys)
    for name in ("ci", "ops", "route", "root", "second"):
        code, _ = made.run("key", "generate", "--owner", name, "--out", tmp_path / name)
        assert code == 0
    keys = [("--release-key", "ci"), ("--release-key", "ops"), ("--route-key", "route"),
            ("--trust-key", "root"), ("--trust-key", "second")]  # fmt: skip
    words = [word for flag, name in keys for word in (flag, tmp_path / f"{name}.pub")]
    code, _ = made.run(
        "trust", "init", "--product", "acme/hello", *words, "--threshold", "2",
        "--trust-threshold", "2", "--max-age-days", "30", "--output", tmp_path / "trust.json",
    )  # fmt: skip
    assert code == 0
    return made


def revise(desk, *words, source="trust.json", output="next.json"):
    return desk.run(
        "trust", "revise", desk.folder / source, *words, "--output", desk.folder / output
    )


def short(desk, owner):
    policy = desk.policy("trust.json")
    return next(item.key.short for item in policy.keys.values() if item.owner == owner)


def test_a_policy_goes_by_medium_from_two_owners_to_another_machine(desk):
    medium, trust = desk.folder / "usb", desk.folder / "etc"
    assert revise(desk, "--floor", "3")[0] == 0
    assert desk.run(
        "trust", "export", desk.folder / "next.json", "--key", desk.folder / "root",
        "--medium", medium,
    )[0] == 0  # fmt: skip
    update = ("trust", "update", medium, "--trust-dir", trust, "--json")
    code, answer = desk.run(*update, "--pin", desk.folder / "trust.json")
    assert (code, answer["error"]) == (10, "trust-root-broken")
    assert desk.run("trust", "sign", medium, "--key", desk.folder / "second")[0] == 0
    code, answer = desk.run("trust", "check", "--medium", medium, "--trust-dir", trust, "--json")
    assert (code, answer["kept"], answer["version"]) == (0, False, 2)
    assert decode_policy((trust / "policy.json").read_bytes()).version == 1
    code, answer = desk.run(*update)
    assert (code, answer["before"], answer["version"]) == (0, 1, 2)
    assert decode_policy((trust / "policy.json").read_bytes()) == desk.policy("next.json")


def test_a_retired_key_keeps_its_old_releases_and_a_revoked_one_loses_them(desk):
    folder = write_capsule(desk.folder / "web.capsule", counter=7, signers=()).folder
    for name in ("ci", "ops"):
        assert desk.run("sign", folder, "--key", desk.folder / name)[0] == 0
    counter = json.loads((folder / "capsule.json").read_bytes())["release_counter"]
    ci = short(desk, "ci")
    for words, expected in (
        (("--retire", ci, counter), (0, None)),
        (("--retire", ci, counter - 1), (10, "threshold-not-met")),
        (("--revoke-key", ci), (10, "threshold-not-met")),
    ):
        (desk.folder / "next.json").unlink(missing_ok=True)
        assert revise(desk, *words)[0] == 0
        code, answer = desk.run(
            "verify", folder, "--policy", desk.folder / "next.json", "--json"
        )  # fmt: skip
        assert (code, answer.get("error")) == expected, words


def test_a_capsule_is_promoted_by_a_counter_signature_and_keeps_its_id(desk):
    folder = write_capsule(desk.folder / "web.capsule", signers=()).folder
    assert desk.run("sign", folder, "--key", desk.folder / "ci")[0] == 0
    site = desk.folder / "trust.json"
    verify = ("verify", folder, "--policy", site, "--json")
    assert desk.run(*verify)[1]["error"] == "threshold-not-met"
    origin = desk.folder / "origin.json"
    assert revise(desk, "--release-threshold", "1", output="origin.json")[0] == 0
    before = (folder / "capsule.json").read_bytes()
    code, answer = desk.run(
        "sign", folder, "--as", "ops", "--policy", site, "--vouched-by", origin,
        "--key", desk.folder / "ops", "--json",
    )  # fmt: skip
    assert code == 0
    assert (folder / "capsule.json").read_bytes() == before
    code, found = desk.run(*verify)
    assert (code, found["owners"], found["capsule"]) == (0, ["ci", "ops"], answer["capsule"])


@pytest.mark.parametrize(
    ("key", "owner", "code", "error_id"),
    [
        ("ops", "ci", 12, "owner-mismatch"),
        ("route", "route", 12, "authority-denied"),
        ("stranger", "ops", 10, "key-unknown"),
    ],
)
def test_nobody_counter_signs_in_another_name(desk, key, owner, code, error_id):
    desk.run("key", "generate", "--owner", "ops", "--out", desk.folder / "stranger")
    folder = write_capsule(desk.folder / "web.capsule", signers=()).folder
    before = sorted(folder.rglob("*"))
    got = desk.run(
        "sign", folder, "--as", owner, "--policy", desk.folder / "trust.json",
        "--key", desk.folder / key, "--json",
    )  # fmt: skip
    assert (got[0], got[1]["error"]) == (code, error_id)
    assert sorted(folder.rglob("*")) == before


def test_a_capsule_that_its_origin_does_not_vouch_for_is_not_promoted(desk):
    folder = write_capsule(desk.folder / "web.capsule", signers=()).folder
    got = desk.run(
        "sign", folder, "--as", "ops", "--policy", desk.folder / "trust.json",
        "--vouched-by", desk.folder / "trust.json", "--key", desk.folder / "ops", "--json",
    )  # fmt: skip
    assert (got[0], got[1]["error"]) == (10, "signature-missing")
    shutil.rmtree(folder)


def test_going_back_is_allowed_for_one_capsule_by_the_policy_and_never_by_a_flag(desk):
    folder = write_capsule(desk.folder / "web.capsule", signers=()).folder
    for name in ("ci", "ops"):
        _, signed = desk.run("sign", folder, "--key", desk.folder / name, "--json")
    assert revise(desk, "--floor", "99")[0] == 0
    code, answer = desk.run("verify", folder, "--policy", desk.folder / "next.json", "--json")
    assert (code, answer["error"]) == (12, "release-counter-too-low")
    allow = ("--allow", signed["capsule"], "release 99 loses mail")
    assert revise(desk, *allow, source="next.json", output="back.json")[0] == 0
    assert desk.run("verify", folder, "--policy", desk.folder / "back.json")[0] == 0
    _, shown = desk.run("trust", "show", desk.folder / "back.json", "--json")
    assert shown["downgrades"] == {signed["capsule"]: "release 99 loses mail"}


def test_a_floor_is_not_lowered_by_a_revision(desk):
    assert revise(desk, "--floor", "5")[0] == 0
    code, _ = revise(desk, "--floor", "4", source="next.json", output="third.json")
    assert code == 12
    assert not (desk.folder / "third.json").exists()


def test_check_warns_of_what_will_go_wrong(desk):
    code, answer = desk.run("trust", "check", desk.folder / "trust.json", "--json")
    assert code == 0
    assert answer["warnings"] == [
        "losing one owner ends the release authority",
        "losing one owner ends the trust authority",
    ]


def test_a_policy_past_its_age_is_shown_as_stale_and_still_decides(desk):
    folder = write_capsule(desk.folder / "web.capsule", signers=()).folder
    for name in ("ci", "ops"):
        assert desk.run("sign", folder, "--key", desk.folder / name)[0] == 0
    policy = desk.policy("trust.json")
    old = desk.folder / "old.json"
    _, out = desk.run("trust", "show", desk.folder / "trust.json")
    assert "STALE" not in out
    old.write_bytes(encode_policy(replace(policy, issued_s=policy.issued_s - 33 * 86_400)))
    code, out = desk.run("trust", "show", old)
    assert (code, "33 days ago; STALE since 3 days" in out) == (0, True), out
    assert desk.run("trust", "show", old, "--json")[1]["stale"]
    _, answer = desk.run("trust", "check", old, "--json")
    assert "stale since 3 days; bring a newer one" in answer["warnings"]
    assert desk.run("verify", folder, "--policy", old)[0] == 0


def test_a_controllers_key_is_revoked_though_only_routes_name_it(desk):
    desk.run("key", "generate", "--owner", "ctl", "--out", desk.folder / "ctl")
    assert revise(desk, "--revoke-key", desk.folder / "ctl.pub")[0] == 0
    keyid = load_public_key(desk.folder / "ctl.pub").key.keyid
    assert desk.policy("next.json").revoked_keys == {keyid}
    assert desk.run("trust", "show", desk.folder / "next.json", "--json")[1]["revoked_keys"] == [
        keyid
    ]
    assert revise(desk, "--revoke-key", keyid, output="whole.json")[0] == 0
    assert desk.policy("whole.json").revoked_keys == {keyid}
    for wrong in (keyid[:8], "x", keyid + "="):
        assert revise(desk, "--revoke-key", wrong, output="wrong.json")[0] == 10


def test_check_warns_when_nobody_can_freeze_a_route_any_more(desk):
    assert revise(desk, "--revoke-key", short(desk, "route"))[0] == 0
    _, answer = desk.run("trust", "check", desk.folder / "next.json", "--json")
    assert "nobody can use the route authority: 0 owners are left" in answer["warnings"]


def test_check_warns_when_only_identities_could_meet_the_threshold(desk):
    root = desk.folder / "root.json"
    root.write_text("{}")
    words = (
        "--identity", "build", "https://issuer.example", "https://git.example/a/b@refs/heads/main",
        "--trusted-root", root, "--release-threshold", "3",
    )  # fmt: skip
    assert revise(desk, *words)[0] == 0
    _, answer = desk.run("trust", "check", desk.folder / "next.json", "--json")
    assert any(
        warning.startswith("hosts refuse every release: they count keys, 2 owners")
        for warning in answer["warnings"]
    ), answer


def test_keyless_identities_are_pinned_whole_with_their_root(desk):
    root = desk.folder / "root.json"
    root.write_text("{}")
    words = (
        "--identity",
        "ci",
        "https://issuer.example",
        "https://git.example/a/b@refs/heads/main",
    )
    code, _ = revise(desk, *words)
    assert code == 10, "an identity without a trusted root can't decide"
    assert revise(desk, *words, "--trusted-root", root)[0] == 0
    _, shown = desk.run("trust", "show", desk.folder / "next.json", "--json")
    (row,) = [row for row in shown["keys"] if row["key"] == "ci"]
    assert (row["issuer"], row["authority"]) == ("https://issuer.example", "release")
