"""Receipts in one file: whole with the controller's public key alone, or refused."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)
from hypothesis import given
from hypothesis import strategies as st

from capsule.receipts_export import NodeChain, audit, export
from capsule.receipts_store import ReceiptCopies, check_receipt
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import Refused
from capsule_manifest.records import RECEIPT_TYPE, encode_receipt
from support import documents
from support.formats import refused

KEY = documents.NODE_KEY.public
CONTROLLER = documents.CONTROLLER_KEY
PAGE = Path(__file__).parents[2] / "docs/how-to/receipts.md"


def copies(folder, node, count):
    kept = ReceiptCopies(folder=folder, node=node, signer=CONTROLLER)
    previous = None
    for sequence in range(1, count + 1):
        receipt = replace(documents.make_receipt(), sequence=sequence, previous=previous, node=node)
        signed = sign(encode_receipt(receipt), payload_type=RECEIPT_TYPE, signer=documents.NODE_KEY)
        record = encode_record(signed)
        previous = decode_record(record, where="receipt").digest
        kept.add(check_receipt(record, node=node, key=KEY), KEY)
    return NodeChain(key=KEY, copies=tuple(kept.records(KEY)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies")
    chains = {node: copies(folder / node, node, count) for node, count in
              {"n2": 3, "n1": 2, "n3": 0}.items()}  # fmt: skip
    return export("acme/hello", chains, CONTROLLER)


def check(raw):
    return audit(raw.splitlines(keepends=True), CONTROLLER.public, where="file")


def test_a_file_says_what_every_node_did(exported):
    audited = check(exported)
    assert audited.product == "acme/hello"
    numbers = {
        node: [item.receipt.sequence for item in audited.nodes[node]] for node in audited.nodes
    }
    assert numbers == {"n1": [1, 2], "n2": [1, 2, 3], "n3": []}


def test_a_file_of_another_controller_is_refused(exported):
    with refused("key-unknown"):
        audit(exported.splitlines(keepends=True), documents.STRANGER_KEY.public, where="file")


@pytest.mark.parametrize("line", range(6))
def test_every_line_that_is_missing_is_found(exported, line):
    lines = exported.splitlines(keepends=True)
    del lines[line]
    with pytest.raises(Refused):
        check(b"".join(lines))


@pytest.mark.parametrize("line", range(6))
def test_every_line_that_stands_twice_is_found(exported, line):
    lines = exported.splitlines(keepends=True)
    lines.insert(line, lines[line])
    with pytest.raises(Refused):
        check(b"".join(lines))


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("second", range(6))
def test_every_two_lines_that_changed_places_are_found(exported, first, second):
    if first == second:
        return
    lines = exported.splitlines(keepends=True)
    lines[first], lines[second] = lines[second], lines[first]
    with pytest.raises(Refused):
        check(b"".join(lines))


@given(data=st.data())
def test_a_file_that_was_cut_anywhere_is_refused(exported, data):
    end = data.draw(st.integers(0, len(exported) - 1))
    with pytest.raises(Refused):
        check(exported[:end])


@given(data=st.data())
def test_a_file_with_any_other_byte_is_refused_or_says_the_same(exported, data):
    at = data.draw(st.integers(0, len(exported) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = exported[:at] + bytes([byte]) + exported[at + 1 :]
    try:
        audited = check(changed)
    except Refused:
        return
    # The key's hint in an envelope is not signed and decides nothing.
    assert audited == check(exported)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_the_page_shows_how_to_verify_a_file_without_capsule(exported, tmp_path):
    program = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert program, "the page has a program"
    (tmp_path / "audit.py").write_text(program[1], "utf-8")
    key = load_der_public_key(CONTROLLER.public.spki)
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "controller.pub").write_bytes(b"owner: controller\n" + pem)

    def run(raw):
        (tmp_path / "all.ndjson").write_bytes(raw)
        return subprocess.run(
            [sys.executable, "-I", "audit.py", "all.ndjson", "controller.pub"],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    told = run(exported)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("the chain is whole") == 3
    lines = exported.splitlines(keepends=True)
    assert run(b"".join([*lines[:2], lines[3], lines[2], *lines[4:]])).returncode != 0
    assert run(b"".join(lines[:-1])).returncode != 0
    assert run(exported.replace(b'"payload":"ey', b'"payload":"eY', 1)).returncode != 0
