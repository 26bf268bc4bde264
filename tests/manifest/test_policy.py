"""The document that a policy is: what its values may be."""

from dataclasses import replace

import pytest

from capsule_manifest.errors import Refused
from capsule_manifest.policy import decode_policy, encode_policy
from support.documents import RELEASE_KEY, ROUTE_KEY, TRUST_KEY, make_policy
from support.signing import FixedSigner


def test_a_policy_is_dated_within_the_calendar_because_people_are_shown_the_date() -> None:
    last = replace(make_policy(), issued_s=253_402_300_799)
    assert decode_policy(encode_policy(last)) == last
    with pytest.raises(Refused) as caught:
        decode_policy(encode_policy(replace(last, issued_s=last.issued_s + 1)))
    assert caught.value.error_id == "document-invalid"


@pytest.mark.parametrize("key", [ROUTE_KEY, TRUST_KEY])
def test_only_a_signer_of_releases_has_a_last_release(key: FixedSigner) -> None:
    """It would look as if the key were ended, and end nothing."""

    def retired(signer: FixedSigner) -> bytes:
        policy = make_policy()
        keyid = signer.public.keyid
        return encode_policy(
            replace(policy, keys={**policy.keys, keyid: replace(policy.keys[keyid], counter_to=6)})
        )

    assert decode_policy(retired(RELEASE_KEY)).release == make_policy().release
    with pytest.raises(Refused, match="remove or revoke") as caught:
        decode_policy(retired(key))
    assert caught.value.error_id == "policy-invalid"
