from dataclasses import replace

import pytest

from capsule.receipts_store import ReceiptCopies, check_receipt
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.records import RECEIPT_TYPE, encode_receipt
from support import documents
from support.formats import refused

KEY = documents.NODE_KEY.public


@pytest.fixture
def copies(tmp_path):
    return ReceiptCopies(folder=tmp_path / "n1", node="n1", signer=documents.CONTROLLER_KEY)


def make(sequence, previous, *, signer=documents.NODE_KEY, **changes):
    receipt = replace(documents.make_receipt(), sequence=sequence, previous=previous, **changes)
    signed = sign(encode_receipt(receipt), payload_type=RECEIPT_TYPE, signer=signer)
    return encode_record(signed)


def chain(count, **changes):
    made, previous = [], None
    for sequence in range(1, count + 1):
        record = make(sequence, previous, **changes)
        previous = decode_record(record, where="receipt").digest
        made.append(check_receipt(record, node="n1", key=KEY))
    return made


def test_receipts_are_kept_once_and_read_back_in_order(copies):
    made = chain(3)
    assert [copies.add(receipt, KEY) for receipt in made] == [True, True, True]
    assert [copies.add(receipt, KEY) for receipt in made] == [False, False, False]
    assert list(copies.read_all(KEY)) == made


def test_a_receipt_signed_by_another_key_is_refused():
    with refused("key-unknown"):
        check_receipt(make(1, None, signer=documents.STRANGER_KEY), node="n1", key=KEY)


def test_a_receipt_of_another_node_is_refused():
    with refused("record-chain-broken"):
        check_receipt(make(1, None, node="n2"), node="n1", key=KEY)


def test_a_receipt_after_a_gap_is_refused(copies):
    made = chain(3)
    copies.add(made[0], KEY)
    with refused("receipt-gap"):
        copies.add(made[2], KEY)


def test_a_host_that_tells_its_past_differently_is_caught(copies):
    for receipt in chain(2):
        copies.add(receipt, KEY)
    with refused("record-chain-broken"):
        copies.add(chain(2, reason="another story")[1], KEY)


def test_a_host_that_begins_a_new_chain_is_caught(copies):
    for receipt in chain(2):
        copies.add(receipt, KEY)
    with refused("record-chain-broken"):
        copies.add(chain(3, reason="another story")[2], KEY)


def test_a_copy_that_was_changed_on_the_controller_is_caught(copies, tmp_path):
    for receipt in chain(3):
        copies.add(receipt, KEY)
    path = tmp_path / "n1" / "00000002.json"
    raw = path.read_bytes()
    path.write_bytes((tmp_path / "n1" / "00000003.json").read_bytes())
    with refused("record-chain-broken"):
        list(copies.read_all(KEY))
    path.write_bytes(raw.replace(b'"sig":"M', b'"sig":"N'))
    with pytest.raises(Exception, match=r"signature|base64"):
        list(copies.read_all(KEY))


def test_a_copy_by_another_controller_is_refused(copies, tmp_path):
    other = ReceiptCopies(folder=tmp_path / "n1", node="n1", signer=documents.STRANGER_KEY)
    other.add(chain(1)[0], KEY)
    with refused("key-unknown"):
        list(copies.read_all(KEY))


def test_a_copy_that_is_gone_is_found_and_kept_again_when_the_next_one_comes(copies, tmp_path):
    made = chain(3)
    for receipt in made:
        copies.add(receipt, KEY)
    (tmp_path / "n1" / "00000002.json").unlink()
    with refused("record-chain-broken"):
        list(copies.read_all(KEY))
    assert copies.count() == 1
    with refused("receipt-gap"):
        copies.add(made[2], KEY)
    assert copies.add(made[1], KEY)
    assert list(copies.read_all(KEY)) == made
