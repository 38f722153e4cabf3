"""The choice of the active consumer and of the next consumer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.dispatch.choice import active_index, next_turn


def test_the_ring_gives_the_captured_active_consumer() -> None:
    topic = "persistent://public/default/g-sub-failover"
    assert active_index([(0, "c1"), (0, "c2")], topic, -1) == 0


@pytest.mark.parametrize(
    ("consumers", "partition", "index"),
    [
        ([(0, "b"), (0, "a")], 0, 1),
        ([(0, "b"), (0, "a")], 1, 0),
        ([(0, "b"), (0, "a")], 4, 1),
        ([(1, "a"), (0, "z")], 0, 1),
        ([(1, "a"), (0, "z"), (0, "y")], 1, 1),
    ],
)
def test_partitions_are_spread_over_the_best_level_by_name(
    consumers: list[tuple[int, str]], partition: int, index: int
) -> None:
    assert active_index(consumers, "t", partition) == index


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3)), min_size=1, max_size=6), st.integers(-1, 9))
def test_the_active_one_is_always_of_the_best_level(consumers: list[tuple[int, str]], partition: int) -> None:
    assert consumers[active_index(consumers, "t", partition)][0] == min(level for level, _ in consumers)


def test_most_plain_topics_keep_their_active_consumer_when_one_joins() -> None:
    topics = [f"persistent://public/default/t{number}" for number in range(60)]
    three, four = [(0, f"c{n}") for n in range(3)], [(0, f"c{n}") for n in range(4)]
    moved = [t for t in topics if active_index(three, t, -1) != active_index(four, t, -1)]
    assert all(active_index(four, topic, -1) == 3 for topic in moved)
    assert len(moved) < 40


@pytest.mark.parametrize(
    ("consumers", "last", "index"),
    [
        ([(0, True), (0, True), (0, True)], 0, 1),
        ([(0, True), (0, True), (0, True)], 2, 0),
        ([(0, True), (0, False), (0, True)], 0, 2),
        ([(0, False), (1, True), (1, True)], 1, 2),
        ([(0, True), (1, True)], 0, 0),
        ([(0, False), (1, False)], 0, None),
        ([], -1, None),
        ([(0, True)], 7, 0),
    ],
)
def test_turns_go_around_the_best_level_that_is_ready(
    consumers: list[tuple[int, bool]], last: int, index: int | None
) -> None:
    assert next_turn(consumers, last) == index
