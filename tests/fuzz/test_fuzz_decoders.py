"""A short run of the fuzzer, and the proof that it knows every decoder and can fail."""

import random
from dataclasses import replace

import pytest

from support.decoders import Decoder, all_decoders, public_decoder_names
from support.fuzzing import Report, fuzz, run_case


def test_every_public_decoder_is_fuzzed() -> None:
    covered = {name for decoder in all_decoders() for name in decoder.covers}
    assert public_decoder_names() <= covered, "add the new decoder to tests/support/decoders.py"


@pytest.mark.parametrize("decoder", all_decoders(), ids=lambda decoder: decoder.name)
def test_the_unchanged_samples_are_accepted(decoder: Decoder) -> None:
    for sample in decoder.samples:
        if "decode_frame" in decoder.name and "table" not in decoder.name:
            decoder.decode(sample)
            continue
        value = decoder.decode(sample)
        if decoder.encode is not None:
            assert decoder.encode(value) == sample


def test_five_seconds_of_mutated_samples_end_in_refusals_only() -> None:
    report = fuzz(random.SystemRandom().randrange(2**32), seconds=5)
    assert not report.failure, report.failure
    assert report.cases > 500
    assert len({error_id for _, error_id in report.refused}) > 15


def test_a_decoder_that_crashes_is_found_and_can_be_repeated() -> None:
    def crash(raw: bytes) -> None:
        raise IndexError(len(raw))

    broken = replace(all_decoders()[0], decode=crash)
    report = Report(seed=1)
    run_case(report, (broken,), 0)
    assert "IndexError" in report.failure
    assert "--seed 1 --case 0" in report.failure


def test_a_second_spelling_that_is_accepted_is_found() -> None:
    lax = replace(all_decoders()[0], decode=lambda _: None, encode=lambda _: b"")
    report = Report(seed=1)
    run_case(report, (lax,), 0)
    assert "other bytes" in report.failure
