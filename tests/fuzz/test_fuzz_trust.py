"""A short run of the fuzzer of trust, and the proof that it can fail."""

import random

from support.trust_fuzzing import TrustFuzzer


def test_five_seconds_of_damaged_trust_end_in_refusals_only() -> None:
    fuzzer = TrustFuzzer(random.SystemRandom().randrange(2**32))
    fuzzer.run(5)
    assert not fuzzer.failure, fuzzer.failure
    assert fuzzer.cases > 30
    assert {target for target, _ in fuzzer.ended} >= {"order", "route", "update"}


def test_an_exception_without_a_type_of_ours_is_found_and_can_be_repeated(monkeypatch) -> None:
    fuzzer = TrustFuzzer(1)
    monkeypatch.setattr("support.trust_fuzzing.verify_order", lambda *_, **__: 1 / 0)
    for number in range(60):
        fuzzer.case(number)
    assert "ZeroDivisionError" in fuzzer.failure
    assert "--seed 1 --case" in fuzzer.failure
