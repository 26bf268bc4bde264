"""`capsule key`, `trust`, `sign`: from nothing to a capsule that two owners stand for."""

import json

import pytest

from capsule.__main__ import main
from support.capsules import write_capsule


class Desk:
    """A person with a terminal in a folder of keys."""

    def __init__(self, folder, capsys):
        self.folder = folder
        self._capsys = capsys

    def run(self, *arguments):
        """Return the exit code, and what was printed on stdout and on stderr."""
        code = main([str(argument) for argument in arguments])
        return code, *self._capsys.readouterr()

    def key(self, name, owner):
        assert self.run("key", "generate", "--owner", owner, "--out", self.folder / name)[0] == 0
        return self.folder / f"{name}.pub"

    def trust(self, *releases, more=()):
        arguments = [word for path in releases for word in ("--release-key", path)]
        return self.run(
            "trust", "init", "--product", "acme/hello", *arguments,
            "--route-key", self.folder / "route.pub", "--trust-key", self.folder / "root.pub",
            "--output", self.folder / "trust.json", *more,
        )  # fmt: skip


@pytest.fixture
def desk(tmp_path, capsys):
    made = Desk(tmp_path, capsys)
    for name in ("route", "root"):
        made.key(name, name)
    return made


def test_a_capsule_is_accepted_when_as_many_owners_signed_as_the_policy_asks(desk):
    ci, qa = desk.key("ci", "ci"), desk.key("qa", "qa")
    assert desk.trust(ci, qa, more=("--threshold", "2"))[0] == 0
    folder = write_capsule(desk.folder / "web.capsule", signers=()).folder
    verify = ("verify", folder, "--policy", desk.folder / "trust.json")
    assert desk.run("sign", folder, "--key", desk.folder / "ci")[0] == 0
    code, _, err = desk.run(*verify)
    assert code == 10
    assert "threshold-not-met" in err
    assert desk.run("sign", folder, "--key", desk.folder / "qa")[0] == 0
    code, out, _ = desk.run(*verify)
    assert code == 0
    assert "signed by ci, qa" in out


def test_two_keys_of_one_owner_do_not_make_two_voices(desk):
    one, two = desk.key("one", "ci"), desk.key("two", "ci")
    code, _, err = desk.trust(one, two, more=("--threshold", "2"))
    assert code == 10
    assert "policy-invalid" in err
    assert not (desk.folder / "trust.json").exists()


def test_one_key_cannot_hold_two_authorities(desk):
    code, _, err = desk.trust(desk.folder / "route.pub")
    assert code == 10
    assert "a key holds two authorities" in err


def test_an_existing_policy_is_never_overwritten(desk):
    ci = desk.key("ci", "ci")
    assert desk.trust(ci)[0] == 0
    before = (desk.folder / "trust.json").read_bytes()
    assert desk.trust(ci, more=("--floor", "9"))[0] == 2
    assert (desk.folder / "trust.json").read_bytes() == before


def test_a_policy_shows_whom_it_trusts_with_what(desk):
    desk.trust(desk.key("ci", "ci"), more=("--floor", "3"))
    answer = json.loads(desk.run("trust", "show", desk.folder / "trust.json", "--json")[1])
    assert {(row["owner"], row["authority"]) for row in answer["keys"]} == {
        ("ci", "release"), ("route", "route"), ("root", "trust"),
    }  # fmt: skip
    assert (answer["release_threshold"], answer["release_counter_floor"]) == (1, 3)
    out = desk.run("trust", "show", desk.folder / "trust.json")[1]
    assert answer["digest"] in out


def test_a_private_key_in_the_place_of_a_public_one_is_refused(desk):
    desk.key("ci", "ci")
    code, _, err = desk.trust(desk.folder / "ci")
    assert code == 10
    assert "key-malformed" in err
    assert "PRIVATE" not in err


def test_signing_twice_with_one_key_leaves_one_pair_of_files(desk):
    desk.key("ci", "ci")
    folder = write_capsule(desk.folder / "web.capsule", signers=()).folder
    for _ in range(2):
        code, out, _ = desk.run("sign", folder, "--key", desk.folder / "ci", "--json")
        assert code == 0
    short = json.loads(out)["key"]
    assert sorted(path.name for path in (folder / "signatures").iterdir()) == [
        f"packing-{short}.sigstore.json", f"release-{short}.sigstore.json",
    ]  # fmt: skip


def test_a_private_key_is_never_printed(desk):
    for arguments in (("--json",), ()):
        out = desk.folder / f"key{len(arguments)}"
        code, shown, err = desk.run("key", "generate", "--owner", "ci", "--out", out, *arguments)
        assert code == 0
        secret = out.read_text().splitlines()[1]
        assert secret not in shown + err
