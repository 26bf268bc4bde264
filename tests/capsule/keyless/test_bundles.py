"""Keyless bundles that are not what they should be: each refused by its id and exit code.

Every row goes through `capsule verify`, for both versions of the log. A row says what is changed in
the release bundle; the packing bundle stays good.
"""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from support.keyless_rows import RAW, ROOTS, ROWS, drop, entry, material


def refused(capsys):
    """Return the error id of what was printed, after a look at how it was printed."""
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert len(captured.err) < 4000
    assert all(line.isprintable() for line in captured.err.splitlines())
    found = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(found) == 1, captured.err
    return found[0].split(": ")[1]


@pytest.mark.parametrize("name", ROWS)
def test_a_changed_bundle_is_refused(signed, capsys, name):
    versions, change, error_id = ROWS[name]
    if signed.rekor not in versions:
        # The row is about what entries of this version of the log don't have.
        bundle = json.loads(signed.signatures()[0].read_bytes())
        assert ("inclusionPromise" in entry(bundle)) == (signed.rekor == 1)
        return
    signed.change_bundle(change)
    assert signed.verify() == 10
    assert refused(capsys) == error_id


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_bundle_are_refused(signed, capsys, name):
    spoil, error_id = RAW[name]
    (path,) = signed.signatures()
    path.write_bytes(spoil(path.read_bytes()) if callable(spoil) else spoil)
    assert signed.verify() == 10
    assert refused(capsys) == error_id


@pytest.mark.parametrize("part", ["tlogEntries", "certificate", "timestampVerificationData"])
def test_material_of_another_signature_is_refused(signed, capsys, part):
    (path,) = signed.signatures()
    other = json.loads(path.read_bytes())
    signed.sign_by_hand()
    signed.change_bundle(lambda bundle: material(bundle).update({part: material(other)[part]}))
    assert signed.verify() == 10
    assert refused(capsys) == "keyless-unproved"


def test_the_signature_of_another_capsule_is_refused(signed, capsys):
    (path,) = signed.signatures()
    other = signed.copy(signed.folder.parent / "other")
    manifest = other.capsule / "capsule.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":"1', b'"version":"2'))
    packing = other.capsule / "packing.json"
    from capsule_manifest.release import capsule_id

    old = capsule_id((signed.capsule / "capsule.json").read_bytes())
    new = capsule_id(manifest.read_bytes())
    assert old != new
    packing.write_bytes(packing.read_bytes().replace(old.encode(), new.encode()))
    other.sign_by_hand()
    path.write_bytes(other.signatures()[0].read_bytes())
    assert signed.verify() == 10
    assert refused(capsys) == "signature-wrong-subject"


def test_the_statement_about_the_packing_is_none_about_the_release(signed, capsys):
    (path,) = signed.signatures()
    path.write_bytes(signed.signatures("packing")[0].read_bytes())
    assert signed.verify() == 10
    assert refused(capsys) == "signature-wrong-subject"


def test_a_revoked_certificate_is_refused(signed, capsys):
    from hashlib import sha256

    (path,) = signed.signatures()
    raw = base64.b64decode(material(json.loads(path.read_bytes()))["certificate"]["rawBytes"])
    digest = "sha256:" + sha256(raw).hexdigest()
    signed.change_policy(lambda policy: replace(policy, revoked_certificates=frozenset({digest})))
    assert signed.verify() == 12
    assert refused(capsys) == "certificate-revoked"


def test_an_old_release_outlives_its_identity_and_a_new_one_does_not(signed, capsys):
    """Retiring an identity ends its window; it is no revocation."""
    from support.keyless_world import IDENTITY

    def until(last):
        retired = {"release-workflow": replace(IDENTITY, counter_from=0, counter_to=last)}
        return lambda policy: replace(policy, identities=retired)

    signed.change_policy(until(1))
    assert signed.verify() == 0
    signed.change_policy(until(0))
    assert signed.verify() == 12
    assert "key-outside-window" in capsys.readouterr().err


# --- the trusted root ----------------------------------------------------------------------------
def hour(hours):
    return datetime.now(tz=UTC) + timedelta(hours=hours)


@pytest.mark.parametrize("part", ["rekor", "ca", "ct", "tsa"])
def test_a_key_whose_time_was_over_proves_nothing(signed, capsys, part):
    """The package itself accepts what a log or an authority signed after its end."""
    signed.put_root(signed.instance.trusted_root(**{part: hour(-1)}))
    assert signed.verify() == 10
    assert refused(capsys) == "keyless-unproved"


@pytest.mark.parametrize("part", ["rekor", "ca", "ct", "tsa"])
def test_a_key_whose_time_ends_later_proves(signed, part):
    signed.put_root(signed.instance.trusted_root(**{part: hour(1)}))
    assert signed.verify() == 0


def test_keys_that_begin_later_prove_nothing(signed, capsys):
    root = json.dumps(signed.instance.trusted_root())
    start = signed.instance.start.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert start in root
    signed.put_root(root.replace(start, hour(1).strftime("%Y-%m-%dT%H:%M:%SZ")).encode())
    assert signed.verify() == 10
    assert refused(capsys) == "keyless-unproved"


@pytest.mark.parametrize("name", ROOTS)
def test_a_trusted_root_that_cannot_be_read_is_refused(signed, capsys, name):
    spoil = ROOTS[name]
    signed.put_root(
        {**signed.instance.trusted_root(), **spoil} if isinstance(spoil, dict) else spoil
    )
    assert signed.verify() == 10
    assert refused(capsys) in {"trusted-root-malformed", "document-invalid"}


def test_another_trusted_root_than_the_pinned_one_is_refused(signed, capsys):
    path = signed.folder / "trusted_root.json"
    path.write_bytes(path.read_bytes() + b" ")
    assert signed.verify() == 10
    assert refused(capsys) == "trusted-root-mismatch"


def test_a_missing_trusted_root_is_named(signed, capsys):
    (signed.folder / "trusted_root.json").unlink()
    assert signed.verify() == 2
    assert refused(capsys) == "trusted-root-missing"


# --- what is no fault ----------------------------------------------------------
def test_without_its_stamp_an_entry_of_the_first_log_is_dated_by_the_log(signed):
    if signed.rekor == 1:
        signed.change_bundle(drop(material, "timestampVerificationData"))
    assert signed.verify() == 0


def test_without_the_logs_promise_an_entry_is_dated_by_its_stamp(signed):
    if signed.rekor == 1:
        signed.change_bundle(drop(entry, "inclusionPromise"))
    assert signed.verify() == 0
