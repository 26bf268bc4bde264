"""A call that runs ahead gives what it would have given in place."""

import pytest

from capsule_installer.system.ahead import Ahead
from capsule_manifest.errors import Refused
from support.failures import fails_with


def test_the_result_is_what_the_call_returned():
    assert Ahead(lambda: b"content").result() == b"content"
    assert Ahead(lambda: None).result() is None


def test_a_refusal_is_raised_where_the_result_is_wanted():
    def refuse():
        raise Refused("frame-malformed", "a frame can't be decoded")

    ahead = Ahead(refuse)
    with fails_with("frame-malformed"):
        ahead.result()


def test_a_want_of_memory_is_raised_where_the_result_is_wanted():
    def exhaust():
        raise MemoryError

    with pytest.raises(MemoryError):
        Ahead(exhaust).result()
