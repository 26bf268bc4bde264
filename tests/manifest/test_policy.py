"""The document that a policy is: what its values may be."""

from dataclasses import replace

import pytest

from capsule_manifest.errors import Refused
from capsule_manifest.policy import decode_policy, encode_policy
from support.documents import make_policy


def test_a_policy_is_dated_within_the_calendar_because_people_are_shown_the_date() -> None:
    last = replace(make_policy(), issued_s=253_402_300_799)
    assert decode_policy(encode_policy(last)) == last
    with pytest.raises(Refused) as caught:
        decode_policy(encode_policy(replace(last, issued_s=last.issued_s + 1)))
    assert caught.value.error_id == "document-invalid"
