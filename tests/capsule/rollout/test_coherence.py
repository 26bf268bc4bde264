"""One class for one host, from everything that says what it runs."""

from dataclasses import replace

import pytest

from capsule.rollout.coherence import Coherence, judge
from capsule_manifest.survey import (
    ChangedFile,
    GenerationSurface,
    MarkerSurface,
    ReceiptSurface,
    Unreadable,
)
from support.documents import CAPSULE, OP_ID, make_survey, make_unit_surface

WHOLE = make_survey()
KEY = WHOLE.node_key
CURRENT, PREVIOUS = WHOLE.current, WHOLE.previous
OTHER = "sha256:" + "2" * 64
ABSENT_MARKER = MarkerSurface(state="absent")
NOTHING = {
    "current": "absent", "previous": "absent", "marker": ABSENT_MARKER, "generation": None,
    "receipt": None, "units": {},
}  # fmt: skip


def unit(**changes):
    return {"units": {"web.service": replace(make_unit_surface(), **changes)}}


def judged(**changes):
    return judge("n1", KEY, replace(WHOLE, **changes))


def test_a_host_on_which_everything_agrees_is_coherent_and_serves():
    found = judged()
    assert (found.coherence, found.serving, found.current) == (Coherence.COHERENT, True, CURRENT)
    assert found.disagreements == ()


def test_a_host_on_which_nothing_is_installed_is_fresh():
    found = judged(**NOTHING)
    assert (found.coherence, found.serving) == (Coherence.FRESH, False)


def test_only_a_missing_marker_with_all_else_in_agreement_is_repairable():
    assert judged(marker=ABSENT_MARKER).coherence is Coherence.REPAIRABLE


def signed(**changes):
    return {"marker": replace(WHOLE.marker, **changes)}


def receipt(**changes):
    return {"receipt": replace(WHOLE.receipt, **changes)}


CONFLICTS = {
    "marker unsafe": {"marker": MarkerSurface(state="unsafe", why="is a link")},
    "marker invalid": {"marker": MarkerSurface(state="invalid", why="signature-invalid")},
    "marker of another generation": signed(generation=PREVIOUS),
    "marker of another capsule": signed(capsule=OTHER),
    "marker where nothing is current": {"current": "absent"},
    "link of another generation": {"current": PREVIOUS},
    "previous link": {"previous": "absent"},
    "receipt": receipt(result="restored", current=PREVIOUS, capsule=None),
    "manifest": {"generation": GenerationSurface(manifest=OTHER, staged=CAPSULE)},
    "stage marker": {"generation": GenerationSurface(manifest=CAPSULE, staged=None)},
    "unit file": unit(fragment="differs"),
    "unit file gone": unit(fragment="absent"),
    "process": unit(generation=PREVIOUS),
    "process that names nothing": unit(generation=None),
    "commit": unit(commit="d" * 40),
    "managed file": {"files": (ChangedFile(target="/etc/x", expected="a", got="b"),)},
    "unreadable": {"unreadable": (Unreadable(surface="current link", why="state-malformed"),)},
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_every_conflict_is_contradictory_and_names_both_values(name):
    found = judged(**CONFLICTS[name])
    assert found.coherence is Coherence.CONTRADICTORY
    assert found.disagreements
    for item in found.disagreements:
        assert item.says != item.other_says
        assert item.says in item.text
        assert item.other_says in item.text


WITHOUT = {
    "receipt": {"receipt": None},
    "manifest": {"generation": GenerationSurface(manifest=None, staged=CAPSULE)},
    "stage marker": {"generation": GenerationSurface(manifest=CAPSULE, staged=None)},
    "process": unit(active=False, pid=0),
    "units": {"units": {}},
    "hold": {"hold": "op 1"},
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_missing_marker_without_full_evidence_is_not_repairable(name):
    found = judged(marker=ABSENT_MARKER, **WITHOUT[name])
    assert found.coherence is Coherence.CONTRADICTORY
    assert found.disagreements


@pytest.mark.parametrize(
    "changes", [{"node": "n2"}, {"node_key": "b3RoZXI="}, {"node": None, "node_key": None}]
)
def test_a_host_that_is_not_the_one_first_met_is_foreign(changes):
    found = judged(**changes)
    assert found.coherence is Coherence.FOREIGN
    assert not found.serving


def test_a_host_whose_key_cannot_be_read_is_not_taken_for_another_host():
    found = judged(
        node_key=None, unreadable=(Unreadable(surface="node key", why="node-key-exposed"),)
    )
    assert found.coherence is Coherence.CONTRADICTORY
    assert "node-key-exposed" in found.disagreements[0].text


def test_a_host_that_was_never_met_and_never_enrolled_is_fresh():
    survey = replace(WHOLE, node=None, node_key=None, **NOTHING)
    assert judge("n1", None, survey).coherence is Coherence.FRESH


def test_a_receipt_of_an_open_op_says_nothing_yet():
    restored = ReceiptSurface(
        sequence=1, result="restored", current=PREVIOUS, capsule=None, op_id=OP_ID
    )
    assert judged(receipt=restored, open_op="1" * 32).coherence is Coherence.COHERENT


def test_a_held_host_and_one_whose_unit_is_down_do_not_serve():
    assert not judged(hold="op 1").serving
    assert not judged(**unit(active=False, pid=0)).serving
