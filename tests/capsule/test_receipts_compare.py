"""A host's receipts against the copies: everything that differs is found, by its number."""

from dataclasses import replace

import pytest

from capsule.receipts_compare import compare_receipts, require_agreement
from capsule.receipts_store import check_receipt
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import Refused
from capsule_manifest.records import RECEIPT_TYPE, encode_receipt
from support import documents

KEY = documents.NODE_KEY.public
COUNT = 5


def chain(count, *, since=1, previous=None, signer=documents.NODE_KEY, **changes):
    """Return the records of a chain of receipts."""
    records = []
    for sequence in range(since, since + count):
        receipt = replace(
            documents.make_receipt(), sequence=sequence, previous=previous,
            node_key=signer.public.keyid, **changes,
        )  # fmt: skip
        signed = sign(encode_receipt(receipt), payload_type=RECEIPT_TYPE, signer=signer)
        records.append(encode_record(signed))
        previous = digest(records[-1])
    return records


def digest(record):
    return decode_record(record, where="receipt").digest


RECORDS = chain(COUNT)
KEPT = [check_receipt(record, node="n1", key=KEY) for record in RECORDS]


def compare(told, kept=COUNT):
    return compare_receipts(KEPT[:kept], told, node="n1", key=KEY)


def found(comparison):
    return {(item.number, item.what.partition(":")[0]) for item in comparison.findings}


@pytest.mark.parametrize("kept", range(COUNT + 1))
def test_the_same_chain_agrees_and_what_is_beyond_the_copies_is_new(kept):
    compared = compare(RECORDS, kept)
    assert (compared.findings, compared.agreed) == ((), kept)
    assert list(compared.new) == KEPT[kept:]
    require_agreement(compared, "n1")


@pytest.mark.parametrize("number", range(1, COUNT))
def test_one_that_is_removed_is_found(number):
    told = [record for record in RECORDS if record != RECORDS[number - 1]]
    assert found(compare(told)) == {(number, "is gone")}


@pytest.mark.parametrize("number", range(1, COUNT + 1))
def test_one_that_is_changed_is_found(number):
    told = list(RECORDS)
    # One byte of what it says; its signature is of another text then.
    told[number - 1] = told[number - 1].replace(b'"payload":"ey', b'"payload":"eY')
    compared = compare(told)
    assert [item.number for item in compared.findings] == [number]
    assert "can't be believed" in compared.findings[0].what


@pytest.mark.parametrize("number", range(1, COUNT))
def test_two_that_are_swapped_are_found(number):
    told = list(RECORDS)
    told[number - 1], told[number] = told[number], told[number - 1]
    assert (number, f"is told after number {number + 1}") in found(compare(told))


@pytest.mark.parametrize("number", range(1, COUNT + 1))
def test_one_that_is_forged_by_another_key_is_found(number):
    told = list(RECORDS)
    told[number - 1] = chain(1, since=number, signer=documents.STRANGER_KEY)[0]
    assert found(compare(told)) == {(number, "can't be believed")}


@pytest.mark.parametrize("number", range(1, COUNT + 1))
def test_a_past_that_root_signs_anew_from_anywhere_is_found(number):
    previous = digest(RECORDS[number - 2]) if number > 1 else None
    anew = chain(COUNT + 1 - number, since=number, previous=previous, reason="another story")
    compared = compare([*RECORDS[: number - 1], *anew])
    assert found(compared) == {(n, "is another than it was") for n in range(number, COUNT + 1)}
    assert compared.agreed == number - 1


@pytest.mark.parametrize("left", range(COUNT))
def test_a_chain_that_is_cut_at_its_end_is_found(left):
    expected = {(n, "was cut off at the end") for n in range(left + 1, COUNT + 1)}
    assert found(compare(RECORDS[:left])) == expected


def test_the_chain_of_another_host_is_found_whole():
    assert len(compare(chain(COUNT, node="n2")).findings) == COUNT
    stranger = chain(COUNT, node="n2", signer=documents.STRANGER_KEY)
    assert len(compare(stranger).findings) == COUNT


def test_one_that_is_told_twice_hides_no_missing_one():
    told = [*RECORDS[:4], RECORDS[3]]
    assert found(compare(told)) == {(4, "is told after number 4"), (5, "was cut off at the end")}


def test_new_ones_that_do_not_follow_the_copies_are_found_and_none_is_kept():
    compared = compare([*RECORDS[:2], *chain(2, since=3, previous=digest(RECORDS[0]))], kept=2)
    assert found(compared) == {(3, "does not follow the one before it")}
    assert compared.new == ()


def test_new_ones_with_a_gap_are_found_and_none_is_kept():
    compared = compare([RECORDS[0], RECORDS[2]], kept=1)
    assert found(compared) == {(2, "is gone")}
    assert compared.new == ()


def test_a_number_beyond_all_others_costs_no_time():
    far = chain(1, since=2**53 - 1, previous=digest(RECORDS[-1]))
    assert len(compare([*RECORDS, *far]).findings) == 1


def test_a_refusal_tells_the_first_difference_with_both_sides_and_how_many_there_are():
    with pytest.raises(Refused, match="receipt 2 was cut off at the end, and 3 more") as caught:
        require_agreement(compare(RECORDS[:1]), "n1")
    assert caught.value.error_id == "record-chain-broken"
    assert (caught.value.expected, caught.value.got) == (KEPT[1].digest, "nothing")
