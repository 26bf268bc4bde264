"""One class for one host, from everything that says what it runs."""

import pytest

from capsule.rollout.coherence import Coherence, judge

KEY, COMMIT = "a2V5", "c" * 40
CAPSULE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def identity(**changes):
    record = {
        "node": "n1",
        "node_key": KEY,
        "current": "2-aa",
        "previous": "1-bb",
        "hold": None,
        "open_op": None,
        "marker": {
            "state": "signed", "generation": "2-aa", "previous": "1-bb", "capsule": CAPSULE,
        },
        "generation": {"manifest": CAPSULE, "staged": CAPSULE},
        "receipt": {"result": "committed", "current": "2-aa", "capsule": CAPSULE},
        "units": {"web.service": unit()},
        "files": [],
    }  # fmt: skip
    return record | changes


def unit(**changes):
    said = {
        "fragment": "same", "active": True, "pid": 7, "is_service": True, "generation": "2-aa",
        "commit": COMMIT, "expected_commit": COMMIT,
    }  # fmt: skip
    return said | changes


def judged(**changes):
    return judge("n1", KEY, identity(**changes))


def test_a_host_on_which_everything_agrees_is_coherent_and_serves():
    found = judged()
    assert (found.coherence, found.serving, found.current) == (Coherence.COHERENT, True, "2-aa")
    assert found.disagreements == ()


def test_a_host_on_which_nothing_is_installed_is_fresh():
    found = judged(
        current="absent", marker={"state": "absent"}, generation=None, receipt=None, units={}
    )
    assert (found.coherence, found.serving) == (Coherence.FRESH, False)


def test_only_a_missing_marker_with_all_else_in_agreement_is_repairable():
    assert judged(marker={"state": "absent"}).coherence is Coherence.REPAIRABLE


CONFLICTS = {
    "marker unsafe": {"marker": {"state": "unsafe", "why": "is a link"}},
    "marker invalid": {"marker": {"state": "invalid", "why": "signature-invalid"}},
    "marker of another generation": {"marker": {"state": "signed", "generation": "1-bb"}},
    "marker of another capsule": {
        "marker": {
            "state": "signed", "generation": "2-aa", "previous": "1-bb", "capsule": OTHER,
        }
    },
    "link of another generation": {"current": "1-bb"},
    "previous link": {"previous": "absent"},
    "receipt": {"receipt": {"result": "restored", "current": "1-bb", "capsule": None}},
    "manifest": {"generation": {"manifest": OTHER, "staged": CAPSULE}},
    "stage marker": {"generation": {"manifest": CAPSULE, "staged": None}},
    "unit file": {"units": {"web.service": unit(fragment="differs")}},
    "process": {"units": {"web.service": unit(generation="1-bb")}},
    "commit": {"units": {"web.service": unit(commit="d" * 40)}},
    "managed file": {"files": [{"target": "/etc/x", "expected": "a", "got": "b"}]},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFLICTS)
def test_every_conflict_is_contradictory_and_names_both_values(name):
    found = judged(**CONFLICTS[name])
    assert found.coherence is Coherence.CONTRADICTORY
    for item in found.disagreements:
        assert item.says != item.other_says
        assert item.says in item.text
        assert item.other_says in item.text


WITHOUT = {
    "receipt": {"receipt": None},
    "manifest": {"generation": {"manifest": None, "staged": CAPSULE}},
    "stage marker": {"generation": {"manifest": CAPSULE, "staged": None}},
    "process": {"units": {"web.service": unit(active=False, pid=0)}},
    "hold": {"hold": "op 1"},
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_missing_marker_without_full_evidence_is_not_repairable(name):
    found = judged(marker={"state": "absent"}, **WITHOUT[name])
    assert found.coherence is Coherence.CONTRADICTORY
    assert found.disagreements


@pytest.mark.parametrize(
    "changes", [{"node": "n2"}, {"node_key": "b3RoZXI="}, {"node": None, "node_key": None}]
)
def test_a_host_that_is_not_the_one_first_met_is_foreign(changes):
    found = judged(**changes)
    assert found.coherence is Coherence.FOREIGN
    assert not found.serving


def test_a_host_that_was_never_met_and_never_enrolled_is_fresh():
    record = identity(
        node=None, node_key=None, current="absent", marker={"state": "absent"}, generation=None,
        receipt=None, units={},
    )  # fmt: skip
    assert judge("n1", None, record).coherence is Coherence.FRESH


def test_a_held_host_and_one_whose_unit_is_down_do_not_serve():
    assert not judged(hold="op 1").serving
    assert not judged(units={"web.service": unit(active=False, pid=0)}).serving
