"""A short run of the fuzzer of trust, and the proof that it can fail."""

import random

from support.trust_fuzzing import TrustFuzzer


def test_every_kind_of_damaged_trust_ends_in_refusals_only() -> None:
    fuzzer = TrustFuzzer(random.SystemRandom().randrange(2**32))
    fuzzer.run(5)
    while len({target for target, _ in fuzzer.ended}) < len(fuzzer.targets):
        assert not fuzzer.failure, fuzzer.failure
        assert fuzzer.cases < 1000, "a target is never chosen"
        fuzzer.case(fuzzer.cases)
    assert not fuzzer.failure, fuzzer.failure


def test_an_exception_without_a_type_of_ours_is_found_and_can_be_repeated(monkeypatch) -> None:
    fuzzer = TrustFuzzer(1)
    monkeypatch.setattr("support.trust_fuzzing.verify_order", lambda *_, **__: 1 / 0)
    for number in range(200):
        fuzzer.case(number)
    assert "ZeroDivisionError" in fuzzer.failure
    assert "--seed 1 --case" in fuzzer.failure
