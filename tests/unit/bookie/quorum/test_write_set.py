"""Tests round-robin striping."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.model import EntryId
from quire_bookie.quorum.write_set import can_reach, holds, write_set, write_sets


@pytest.mark.parametrize(
    ("entry", "ensemble_size", "write_quorum", "positions"),
    [
        (0, 1, 1, (0,)),
        (7, 1, 1, (0,)),
        (0, 3, 3, (0, 1, 2)),
        (1, 3, 3, (1, 2, 0)),
        (2, 3, 2, (2, 0)),
        (3, 3, 2, (0, 1)),
        (4, 5, 3, (4, 0, 1)),
        (2**62, 5, 2, (2**62 % 5, (2**62 + 1) % 5)),
    ],
)
def test_an_entry_goes_round_robin_from_its_own_position(
    entry: int, ensemble_size: int, write_quorum: int, positions: tuple[int, ...]
) -> None:
    assert write_set(EntryId(entry), ensemble_size, write_quorum) == positions


@given(st.integers(0, 2**62), st.integers(1, 7), st.data())
def test_holds_agrees_with_the_write_set(entry: int, ensemble_size: int, data: st.DataObject) -> None:
    write_quorum = data.draw(st.integers(1, ensemble_size))
    positions = write_set(EntryId(entry), ensemble_size, write_quorum)
    assert len(set(positions)) == write_quorum
    for position in range(ensemble_size):
        assert holds(position, EntryId(entry), ensemble_size, write_quorum) == (position in positions)
    assert write_sets(ensemble_size, write_quorum)[entry % ensemble_size] == positions


def test_every_position_holds_its_share_of_entries() -> None:
    for position in range(5):
        assert sum(holds(position, EntryId(entry), 5, 3) for entry in range(100)) == 60


@pytest.mark.parametrize(
    ("failed", "quorums", "reachable"),
    [
        (set(), (3, 3, 2), True),
        ({1}, (3, 3, 2), True),
        ({0, 1}, (3, 3, 2), False),
        ({0}, (3, 2, 2), False),
        ({0}, (3, 2, 1), True),
        ({0, 1}, (4, 2, 1), False),
        ({0, 2}, (4, 2, 1), True),
        ({0}, (1, 1, 1), False),
    ],
)
def test_the_quorum_is_reachable_while_each_write_set_keeps_enough(
    failed: set[int], quorums: tuple[int, int, int], reachable: bool
) -> None:
    assert can_reach(failed, *quorums) is reachable


def test_losing_up_to_the_difference_of_the_quorums_keeps_the_ack_quorum_reachable() -> None:
    for ensemble_size in range(1, 6):
        for write_quorum in range(1, ensemble_size + 1):
            for ack_quorum in range(1, write_quorum + 1):
                for failed in combinations(range(ensemble_size), write_quorum - ack_quorum):
                    assert can_reach(set(failed), ensemble_size, write_quorum, ack_quorum)
