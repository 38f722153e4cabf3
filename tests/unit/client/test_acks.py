"""Acknowledgements are joined until the broker confirms them; a message that was acknowledged stays so."""

import asyncio

import pytest

from quire_broker.wire.kinds import AckKind
from quire_client.acks import Group
from quire_client.errors import ConnectionLostError


def test_parts_of_one_entry_become_one_acknowledgement() -> None:
    group = Group()
    group.note((1, 2), 0b1110)
    group.note((1, 2), 0b1101)
    group.note((1, 3), 0)
    (command,) = group.commands(7)
    assert (command.consumer_id, command.ack_type) == (7, AckKind.INDIVIDUAL)
    assert [(each.entryId, list(each.ack_set)) for each in command.message_id] == [(2, [0b1100]), (3, [])]


@pytest.mark.parametrize(
    ("noted", "left"),
    [
        ([((1, 2), 0b1100), ((1, 2), 0b1000)], ((1, 2), 0b1000)),
        ([((1, 2), 0b1000), ((1, 2), 0b1100)], ((1, 2), 0b1000)),
        ([((1, 2), 0b1000), ((1, 3), 0b1110)], ((1, 3), 0b1110)),
        ([((2, 0), 0), ((1, 9), 0)], ((2, 0), 0)),
    ],
)
def test_a_cumulative_acknowledgement_never_goes_back(
    noted: list[tuple[tuple[int, int], int]], left: tuple[tuple[int, int], int]
) -> None:
    group = Group()
    for place, unacked in noted:
        group.note_all_to(place, unacked)
    assert group.cumulative == left
    (command,) = group.commands(1)
    assert command.ack_type == AckKind.CUMULATIVE


async def test_groups_that_are_joined_keep_all_that_wait() -> None:
    first, second = Group(), Group()
    first.note((1, 1), 0b10)
    waiting = [first.waiter(), second.waiter()]
    second.note((1, 1), 0b01)
    second.note_all_to((1, 0), 0)
    first.take(second)
    assert len(first.commands(1)) == 2
    assert first.single == {(1, 1): 0}
    first.end(None)
    assert all(each.done() and each.exception() is None for each in waiting)


async def test_an_error_reaches_those_that_wait_and_none_that_left() -> None:
    group = Group()
    left, waits = group.waiter(), group.waiter()
    left.cancel()
    group.end(ConnectionLostError("gone"))
    with pytest.raises(ConnectionLostError, match="gone"):
        await waits
    with pytest.raises(asyncio.CancelledError):
        await left
