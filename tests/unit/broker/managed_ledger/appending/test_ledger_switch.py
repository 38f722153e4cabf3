"""The states of the write side."""

import itertools

import pytest

from quire_broker.managed_ledger.appending.ledger_switch import NEXT, AppendState, next_state


@pytest.mark.parametrize(("present", "wanted"), list(itertools.product(AppendState, repeat=2)))
def test_each_pair_of_states_is_allowed_kept_or_a_fault(present: AppendState, wanted: AppendState) -> None:
    if wanted is present or present is AppendState.REFUSING:
        assert next_state(present, wanted) is present
    elif wanted in NEXT[present]:
        assert next_state(present, wanted) is wanted
    else:
        with pytest.raises(AssertionError, match="never followed"):
            next_state(present, wanted)


def test_refusing_is_reached_from_every_state_and_left_to_none() -> None:
    assert all(AppendState.REFUSING in NEXT[state] for state in AppendState if state is not AppendState.REFUSING)
    assert not NEXT[AppendState.REFUSING]
