"""Schemas for editors: right documents pass, and what a schema refuses the decoder refuses too."""

import json
import tomllib
from datetime import date
from pathlib import Path

import jsonschema
import pytest

from capsule.builder.config import parse_release
from capsule.builder.lockfile import decode_lock, encode_lock
from capsule.builder.secret_scan import load_waivers
from capsule.builder.starter import starter_files
from capsule.inventory import read_fleet
from capsule.schemas import SCHEMAS, schema_text
from capsule_manifest.canonical import encode
from capsule_manifest.errors import Refused
from capsule_manifest.policy import decode_policy, encode_policy
from capsule_manifest.release import decode_release, encode_release
from support import documents
from support.sources import ROOT

STARTERS = starter_files("acme/web", machine="x86_64", python="3.11")
WAIVERS = """\
[[waivers]]
component = "app"
path = "tests/*.pem"
rule = "private-key"
reason = "a key of the tests"
until = 2026-12-31
"""


def documented(page):
    text = (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
    return text.partition("```toml\n")[2].partition("```")[0]


def load_waiver_text(raw, tmp_path):
    path = tmp_path / "secret-waivers.toml"
    path.write_bytes(raw)
    load_waivers(path)


TEXTS = {
    "release": documented("release-toml.md"),
    "fleet": STARTERS["fleet.toml"].decode(),
    "release-lock": documented("release-lock.md"),
    "secret-waivers": WAIVERS,
    "policy": encode_policy(documents.make_full_policy()).decode(),
    "capsule": encode_release(documents.make_release()).decode(),
}
DECODERS = {
    "release": lambda raw, tmp_path: parse_release(raw, folder=tmp_path),
    "fleet": lambda raw, tmp_path: read_fleet(raw, folder=tmp_path, where="fleet.toml"),
    "release-lock": lambda raw, _tmp_path: decode_lock(raw),
    "secret-waivers": load_waiver_text,
    "policy": lambda raw, _tmp_path: decode_policy(raw),
    "capsule": lambda raw, _tmp_path: decode_release(raw),
}
IS_JSON = {"policy", "capsule"}

# What is changed in a right document, as text for TOML and as a path and a value for JSON.
MISTAKES = {
    "release": [
        ("format = 1", "format = 2"),
        ("format = 1", 'format = "1"'),
        ("format = 1", ""),
        ('product = "acme/hello"', 'product = "hello"'),
        ('product = "acme/hello"', 'product = "Acme/hello"'),
        ("release_counter = ", "release_counter = -"),
        ("release_counter = ", "colour = 1\nrelease_counter = "),
        ('kind = "source"', 'kind = "sauce"'),
        ('kind = "source"', ""),
        ('kind = "wheels"', 'kind = "wheels"\ncolour = "red"'),
        ('machine = "x86_64"', "machine = 64"),
        ('glibc = "', 'glibc = "new-'),
        ("[installer]", "[installers]"),
    ],
    "fleet": [
        ("format = 1", "format = 2"),
        ("floor = 0", "floor = -1"),
        ("floor = 0", 'floor = "none"'),
        ("max_unavailable = 1", "max_unavailable = 0"),
        ("max_unavailable = 1", "max_unavailable = 1\ncolour = 1"),
        ("[nodes.n1]", "[node.n1]"),
        ('lane = "a"', "lane = 1"),
        ('role = "web"', ""),
        ('rule = "guard-level"', 'rule = "gravity"'),
        ('reason = "', 'reasons = "'),
    ],
    "release-lock": [
        ("format = 1", "format = 2"),
        ("format = 1", "format = 1\ncolour = 1"),
        ("locked_at = ", "locked_on = "),
        ('sha256 = "', 'sha256 = "sha256:'),
        ('sha256 = "', 'sha512 = "'),
        ("size_bytes = ", "size_bytes = -"),
        (".whl", ".tar.gz"),
    ],
    "secret-waivers": [
        ("[[waivers]]", "[[waiver]]"),
        ("until = 2026-12-31", ""),
        ("until = 2026-12-31", "until = 20261231"),
        ('reason = "a key of the tests"', 'reason = "short"'),
        ('rule = "private-key"', 'rule = "private-key"\ncolour = "red"'),
        ('component = "app"', "component = 1"),
    ],
    "policy": [
        (("schema",), "capsule-trust/2"),
        (("colour",), "red"),
        (("product",), "acme"),
        (("version",), 0),
        (("version",), "1"),
        (("version",), True),
        (("release", "threshold"), 0),
        (("route", "threshold"), 2),
        (("route", "identities"), ["ci"]),
        (("trusted_root",), "sha256:00"),
        (("revoked_capsules",), ["no digest"]),
        (("keys", 0, "counter_from"), -1),
        (("keys", 0, "owner"), ""),
        (("keys", 0, "spki"), "?"),
        (("keys", 0, "colour"), "red"),
        (("max_age_s",), 0),
        (("issued_s",), None),
    ],
    "capsule": [
        (("schema",), "capsule/2"),
        (("colour",), "red"),
        (("product",), "acme/"),
        (("release_counter",), 0),
        (("release_counter",), 1.5),
        (("source", "commit"), "main"),
        (("source", "tree"), None),
        (("installer", "version"), "new"),
        (("components", 0, "kind"), "sauce"),
        (("components", 0, "tree"), None),
        (("components", 0, "tree"), "sha256:" + "0" * 64),
        (("components", 0, "tree"), "latest"),
        (("components", 0, "entries"), 1_000_001),
        (("components", 0, "external"), [{"type": "wheel", "name": "x", "digest": "md5:00"}]),
        (("components", 0, "external"), [{"type": "wheel", "name": "x", "digest": None}]),
        (("components", 0, "colour"), "red"),
        (("budgets", "d1_ms"), 0),
    ],
}
# What only a decoder can see: a name that nothing defines, an order, a sum.
BEYOND = {
    "release": [("components = [", 'components = ["nobody", ')],
    "policy": [(("release", "threshold"), 4000), (("release", "keys"), ["sha256:nobody"])],
    "capsule": [(("components", 0, "platforms"), ["nowhere"])],
}


def schema_of(name):
    schema = json.loads(schema_text(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def value_of(name, text):
    value = json.loads(text) if name in IS_JSON else tomllib.loads(text)
    return plain(value)


def plain(value):
    """As an editor sees it: JSON has no dates."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


def changed(name, where, new):
    text = TEXTS[name]
    if name not in IS_JSON:
        assert where in text, where
        return text.replace(where, new, 1)
    value = json.loads(text)
    place = value
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = new
    try:
        return encode(value).decode()
    except Refused:  # a number that canonical JSON has not
        return json.dumps(value)


def cases(table):
    return [(name, *case) for name, found in table.items() for case in found]


def test_every_document_has_a_schema_and_a_table():
    assert SCHEMAS.keys() == TEXTS.keys() == DECODERS.keys() == MISTAKES.keys()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_right_document_passes_both(name, tmp_path):
    schema_of(name).validate(value_of(name, TEXTS[name]))
    DECODERS[name](TEXTS[name].encode(), tmp_path)


@pytest.mark.parametrize(("name", "where", "new"), cases(MISTAKES))
def test_what_the_decoder_refuses_the_schema_refuses(name, where, new, tmp_path):
    text = changed(name, where, new)
    with pytest.raises(Refused):
        DECODERS[name](text.encode(), tmp_path)
    assert not schema_of(name).is_valid(value_of(name, text))


@pytest.mark.parametrize(("name", "where", "new"), cases(BEYOND))
def test_what_no_schema_can_say_the_decoder_refuses_alone(name, where, new, tmp_path):
    text = changed(name, where, new)
    with pytest.raises(Refused):
        DECODERS[name](text.encode(), tmp_path)
    assert schema_of(name).is_valid(value_of(name, text))


@pytest.mark.parametrize("name", ["release.toml", "fleet.toml"])
def test_a_first_file_names_a_schema_that_lies_beside_it_and_passes_it(name):
    text = STARTERS[name].decode()
    first = text.splitlines()[0]
    assert first.startswith("#:schema "), "how editors find the schema of a TOML file"
    path = first.removeprefix("#:schema ")
    assert path in STARTERS
    schema = json.loads(STARTERS[path])
    jsonschema.Draft202012Validator(schema).validate(plain(tomllib.loads(text)))


def test_the_first_files_bring_all_schemas():
    found = {Path(path).name for path in STARTERS if path.startswith("schemas/")}
    assert found == {f"{name}.schema.json" for name in SCHEMAS}


def test_a_lock_that_was_written_passes_its_schema():
    raw = encode_lock(decode_lock(TEXTS["release-lock"].encode()))
    schema_of("release-lock").validate(plain(tomllib.loads(raw.decode())))


def test_a_schema_completes_every_key_of_the_documented_release():
    """An editor offers what the schema lists: no key is known to the decoder alone."""
    fields = set(json.loads(schema_text("release"))["properties"])
    assert set(value_of("release", TEXTS["release"])) <= fields
