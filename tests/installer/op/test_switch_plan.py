"""Plans of names: what is done, undone and removed, and the lines that shell reads too."""

from contextlib import contextmanager
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_installer.op.switch_plan import (
    Change,
    Group,
    Rename,
    Unlink,
    encode_plan,
    folders_of,
    make_plans,
    new_name,
    old_name,
    parse_plan,
)
from capsule_manifest.errors import Refused

OP = "0123456789abcdef0123456789abcdef"
SEGMENT = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="/\t\n\r\0\\"), min_size=1
).filter(lambda text: text not in {".", ".."})
PATH = st.lists(SEGMENT, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
OPERATION = st.builds(Rename, source=PATH, target=PATH) | st.builds(Unlink, path=PATH)
KINDS = list(product(Group, (False, True), (False, True)))


def lay(names, plan_path, had, has):
    """Lay what preparing lays."""
    if had:
        names[plan_path] = "old"
        names[old_name(plan_path, OP)] = "old"
    if has:
        names[new_name(plan_path, OP)] = "new"


def run(names, operations, stop_after=None):
    """Do to a dictionary what both programs do to a disk."""
    for operation in list(operations)[:stop_after]:
        if isinstance(operation, Rename):
            if operation.source in names:
                names[operation.target] = names.pop(operation.source)
        else:
            names.pop(operation.path, None)


@pytest.mark.parametrize(("group", "had", "has"), KINDS)
def test_every_kind_of_change_is_done_and_leaves_nothing_behind(group, had, has):
    names = {}
    lay(names, "/etc/a", had, has)
    plans = make_plans([Change(path="/etc/a", group=group, had=had, has=has)], OP)
    for part in (plans.units, plans.switch, plans.gone, plans.clean):
        run(names, part)
    assert names == ({"/etc/a": "new"} if has else {})


@pytest.mark.parametrize(("group", "had", "has"), KINDS)
def test_every_kind_of_change_is_undone_from_anywhere_even_when_undoing_stops(group, had, has):
    plans = make_plans([Change(path="/etc/a", group=group, had=had, has=has)], OP)
    forward = [*plans.units, *plans.switch]
    for done, undone in product(range(len(forward) + 1), range(len(plans.restore) + 1)):
        names = {}
        lay(names, "/etc/a", had, has)
        run(names, forward, done)
        run(names, plans.restore, undone)
        run(names, plans.restore)
        run(names, plans.clean)
        assert names == ({"/etc/a": "old"} if had else {})


def test_a_unit_that_is_gone_stays_until_after_the_start():
    plans = make_plans([Change(path="/u/a.service", group=Group.UNIT, had=True, has=False)], OP)
    assert plans.units == plans.switch == ()
    assert plans.gone == (Unlink(path="/u/a.service"),)


@given(st.lists(OPERATION))
def test_a_plan_reads_back_as_it_was_written(operations):
    assert parse_plan(encode_plan(operations), where="plan") == tuple(operations)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_plan_or_refused(raw):
    with suppress_malformed() as read:
        read.append(parse_plan(raw, where="plan"))
    assert [encode_plan(operations) for operations in read] in ([raw], [])


@contextmanager
def suppress_malformed():
    """Give a list to fill; let only the typed refusal pass."""
    try:
        yield []
    except Refused as refusal:
        if refusal.error_id != "switch-plan-malformed":
            raise


@pytest.mark.parametrize(
    "line",
    [
        "rename\t/a\n",
        "rename\t/a\tb\n",
        "rename\t/a\t/b\t/c\n",
        "unlink\t/a/../b\n",
        "unlink\t//a\n",
        "remove\t/a\n",
        "unlink\t/a",
        "unlink /a\n",
    ],
)
def test_a_malformed_line_is_refused(line):
    with pytest.raises(Refused, match="switch-plan-malformed"):
        parse_plan(line.encode(), where="plan")


@pytest.mark.parametrize(
    "path", ["a", "/a\tb", "/a\nb", "/a/./b", "/", "/a/", "/a\\b", "/" + "n" * 221]
)
def test_a_path_that_a_line_cannot_hold_is_refused(path):
    with pytest.raises(Refused, match="switch-path-invalid"):
        make_plans([Change(path=path, group=Group.FILE, had=False, has=True)], OP)


def test_two_changes_of_one_target_are_refused():
    change = Change(path="/a", group=Group.FILE, had=False, has=True)
    with pytest.raises(Refused, match="switch-path-invalid"):
        make_plans([change, change], OP)


def test_folders_are_those_whose_names_change():
    plans = make_plans(
        [
            Change(path="/etc/x/a", group=Group.FILE, had=True, has=True),
            Change(path="/top", group=Group.FILE, had=False, has=True),
        ],
        OP,
    )
    assert folders_of(plans.switch) == ["/", "/etc/x"]
