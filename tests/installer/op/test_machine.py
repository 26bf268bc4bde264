"""The op's states as one table: every pair is decided."""

from itertools import product

import pytest

from capsule_installer.op.machine import TABLE, Event, IllegalTransition, State, advance

ENDS = {State.COMMITTED, State.REFUSED, State.RESTORED, State.RESTORED_ABSENT}
PROGRESS = [
    Event.PREPARE,
    Event.INTEND,
    Event.ARM,
    Event.GUARD,
    Event.HOLD,
    Event.COPY_UNITS,
    Event.START_D1,
    Event.STOP,
    Event.SWITCH,
    Event.RUN_STEPS,
    Event.RELEASE_NETWORK,
    Event.UNHOLD,
    Event.START,
    Event.PROVE,
    Event.COMMIT,
]
RESTORES = [Event.RESTORED, Event.RESTORED_ABSENT, Event.RESTORE_FAILED]


def allowed(state, event):
    """Say in other words than the table whether a pair belongs into it."""
    if state in ENDS:
        return False
    if state is State.RESTORING:
        return event in RESTORES
    if event is Event.FAIL:
        return True
    return state is not State.RESTORE_FAILED and event in PROGRESS and event is next_event(state)


def next_event(state):
    reached = State.ACCEPTED
    for event in PROGRESS:
        if reached is state:
            return event
        reached = TABLE[reached, event]
    return None


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_pair_is_in_the_table_or_refused(state, event):
    if allowed(state, event):
        assert advance(state, event) is TABLE[state, event]
    else:
        with pytest.raises(IllegalTransition):
            advance(state, event)


def test_the_steps_in_their_order_lead_to_committed():
    state = State.ACCEPTED
    for event in PROGRESS:
        state = advance(state, event)
    assert state is State.COMMITTED


def test_only_a_proved_op_can_be_committed():
    assert [state for (state, event) in TABLE if event is Event.COMMIT] == [State.PROVED]


def test_a_failure_before_the_intent_refuses_and_after_it_restores():
    failed = {state: TABLE[state, Event.FAIL] for state in State if (state, Event.FAIL) in TABLE}
    refused = {state for state, target in failed.items() if target is State.REFUSED}
    assert refused == {State.ACCEPTED, State.PREPARED}
    assert set(failed.values()) == {State.REFUSED, State.RESTORING}


def test_from_every_state_an_end_can_be_reached():
    ends = set(ENDS)
    for _ in State:
        ends |= {state for (state, _), target in TABLE.items() if target in ends}
    assert ends == set(State)
