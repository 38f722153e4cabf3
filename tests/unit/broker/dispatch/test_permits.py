"""The arithmetic of flow control."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.dispatch.permits import MessagesPerEntry, affordable, entries_to_read, entry_cost, granted


@pytest.mark.parametrize(
    ("messages", "ack_set", "cost"),
    [(1, None, 1), (5, None, 5), (5, (0b10010,), 2), (70, (-1, -1), 70), (5, (-1,), 5), (3, (0,), 1)],
)
def test_an_entry_costs_its_unacknowledged_messages(messages: int, ack_set: tuple[int, ...], cost: int) -> None:
    assert entry_cost(messages, ack_set) == cost


@given(st.integers(-50, 500), st.lists(st.integers(1, 100), max_size=30))
def test_permits_are_overshot_by_less_than_one_entry(permits: int, costs: list[int]) -> None:
    count = affordable(permits, costs)
    sent = costs[:count]
    assert not sent or sum(sent[:-1]) < permits
    assert count == len(costs) or sum(sent) >= permits


@given(st.integers(1, 10_000), st.floats(1, 1000), st.integers(1, 100))
def test_at_least_one_entry_and_never_more_than_a_batch_is_read(permits: int, mean: float, most: int) -> None:
    assert 1 <= entries_to_read(permits, mean, most) <= min(most, permits)


def test_the_mean_follows_the_size_of_batches() -> None:
    mean = MessagesPerEntry()
    for _ in range(60):
        mean.add(2, 200)
    assert 99 < mean.mean <= 100


def test_a_peer_cannot_push_the_account_over_its_bound() -> None:
    assert granted(10, 2**32 - 1, 2**31 - 1) == 2**31 - 1
    assert granted(-5, 3, 100) == -2
