"""What is signed and sent to every host can't be called back, so secrets stop the build."""

from datetime import date
from functools import partial
from io import BytesIO

import pytest

from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.packer import list_component
from capsule.builder.secret_scan import (
    Finding,
    check_secrets,
    find_secrets,
    load_waivers,
    scan_text,
)
from capsule_manifest.release import Component, ComponentKind
from capsule_manifest.tree_entry import EntryKind
from support.failures import fails_with

_TODAY = date(2026, 5, 1)
_BODY = b"MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg"
# Put together here, so that no scanner finds this file itself.
SECRETS = {
    "private-key": b"-----BEGIN " + b"PRIVATE KEY-----\n" + _BODY,
    "aws-access-key": b"key = " + b"AKIA" + b"Q3EGRIJVN5RHXWFA",
    "github-token": b"ghp" + b"_" + b"a1" * 18,
    "gitlab-token": b"glpat" + b"-" + b"x" * 20,
    "slack-token": b"xoxb" + b"-123456789012-" + b"a" * 20,
    "google-api-key": b"AIza" + b"x" * 35,
    "npm-token": b"npm" + b"_" + b"x" * 36,
    "pypi-token": b"pypi-AgE" + b"x" * 70,
    "stripe-key": b"sk_live" + b"_" + b"x" * 24,
}
HARMLESS = (
    b"if line == '-----BEGIN " + b"PRIVATE KEY-----': return PEM",
    b"AKIA" + b"IOSFODNN7EXAMPLE",
    b"the prefix of such tokens is ghp_",
    b"SOMEAKIAQ3EGRIJVN5RHXWFAMORE",
)
"""Seen in real packages: parsers, documentation, random identifiers."""


def component(**files):
    made = ComponentInput(
        name="app",
        kind="source",
        platforms=(),
        entries=tuple(
            InputEntry(
                path=path,
                kind=EntryKind.FILE,
                mode=0o644,
                size_bytes=len(data),
                open=partial(BytesIO, data),
            )
            for path, data in files.items()
        ),
        external=(),
    )
    listing = list_component(made)
    described = Component(
        name="app",
        kind=ComponentKind.SOURCE,
        platforms=(),
        tree=listing.tree.root,
        entries=len(files),
        content_bytes=listing.content_bytes,
        external=(),
    )
    return [described], {listing.tree.root: listing}


@pytest.mark.parametrize("rule", SECRETS)
def test_a_secret_is_found_with_its_line_and_never_its_text(rule):
    (finding,) = find_secrets(*component(config=b"\n\n" + SECRETS[rule] + b"\n"))
    assert finding == Finding(component="app", path="config", line=3, rule=rule)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_one_from_afar_is_left_alone(text):
    assert list(scan_text(text)) == []


def test_a_binary_file_is_not_read_as_text():
    assert list(find_secrets(*component(blob=b"\x7fELF\0" + SECRETS["npm-token"]))) == []


def test_a_secret_stops_the_build():
    found = find_secrets(*component(config=SECRETS["npm-token"]))
    with fails_with("secret-found"):
        check_secrets(found, (), today=_TODAY)


WAIVER = """\
[[waivers]]
component = "app"
path = "conf*"
rule = "npm-token"
reason = "a key of the test registry"
until = 2026-05-01
"""


def test_a_waiver_covers_what_it_names_to_the_end_of_its_day(tmp_path):
    path = tmp_path / "secret-waivers.toml"
    path.write_text(WAIVER)
    waivers = load_waivers(path)
    files = component(config=SECRETS["npm-token"])
    assert len(check_secrets(find_secrets(*files), waivers, today=_TODAY)) == 1
    with fails_with("secret-found"):
        check_secrets(find_secrets(*files), waivers, today=date(2026, 5, 2))
    with fails_with("secret-found"):
        other = component(config=SECRETS["gitlab-token"])
        check_secrets(find_secrets(*other), waivers, today=_TODAY)


@pytest.mark.parametrize(
    "text",
    [
        "[[waivers",
        WAIVER.replace('reason = "a key of the test registry"\n', ""),
        WAIVER.replace("2026-05-01", '"some day"'),
        WAIVER + 'more = "x"\n',
    ],
)
def test_a_waiver_file_with_a_mistake_is_refused_with_its_place(tmp_path, text):
    path = tmp_path / "secret-waivers.toml"
    path.write_text(text)
    with fails_with("waivers-invalid"):
        load_waivers(path)
