"""Findings as they go to the supervisor and into a receipt."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_installer.guard.finding import Finding, decode_finding, encode_finding
from capsule_manifest.errors import Refused


def test_a_line_says_call_target_name_and_who():
    finding = Finding(call="connect", target="192.0.2.1:80", name="a.test", pid=7,
                      executable="/usr/bin/curl", command=("curl", "-s"))  # fmt: skip
    assert finding.text() == ("connect 192.0.2.1:80 name a.test, by pid 7 /usr/bin/curl [curl -s]")
    assert Finding(call="counted", target="2 TCP connects").text() == "counted 2 TCP connects"


@given(text=st.text(max_size=2000), words=st.lists(st.text(max_size=300), max_size=20))
def test_hostile_words_stay_one_short_line_and_come_back_bounded(text, words):
    finding = Finding(call="connect", target=text, name=text, pid=1, executable=text,
                      command=tuple(words))  # fmt: skip
    assert finding.text().isprintable()
    assert len(finding.text()) < 4000
    encoded = json.dumps(encode_finding(finding))
    assert len(encoded) < 16_000
    assert decode_finding(json.loads(encoded)).call == "connect"


@pytest.mark.parametrize("item", [None, [], {}, {"call": "x"}, {"call": 1, "pid": "1"}])
def test_what_is_no_finding_is_refused(item):
    with pytest.raises(Refused, match="state-malformed"):
        decode_finding(item)
