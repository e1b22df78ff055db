"""The life of a delivery row: every pair of state and signal."""

import itertools

import pytest

from holdfast.protocol.delivery import TRANSITIONS, Signal, State, appends_entry
from holdfast.protocol.history import Kind
from holdfast.protocol.tables import NoTransition, move

CLOSES_AS = {
    "acknowledged": "delivered",
    "ttl_passed": "expired",
    "member_revoked": "dropped",
    "found_corrupt": "quarantined",
    "taken_down": "moderated",
}


@pytest.mark.parametrize(("state", "signal"), list(itertools.product(State, Signal)))
def test_every_pair_of_state_and_signal_does_what_was_decided(state: State, signal: Signal) -> None:
    if state == "open":
        assert move(TRANSITIONS, state, signal) == CLOSES_AS[signal.value]
        assert appends_entry(state, signal)
    elif signal == "acknowledged":
        assert move(TRANSITIONS, state, signal) is state
        assert not appends_entry(state, signal)
    else:
        with pytest.raises(NoTransition):
            move(TRANSITIONS, state, signal)
        with pytest.raises(NoTransition):
            appends_entry(state, signal)


def test_a_row_closes_under_the_name_of_its_entry_in_the_history() -> None:
    assert {state.value for state in State} - {"open"} <= {kind.value for kind in Kind}
