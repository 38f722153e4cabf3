"""The replay set and the counts."""

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.dispatch.redelivery import NO_SLOT, RedeliveryCounts, ReplaySet, runs
from quire_broker.managed_ledger.position import Position

positions = st.builds(Position, st.integers(1, 3), st.integers(0, 12))


@given(st.lists(st.tuples(st.booleans(), positions, st.integers(0, 3))), st.integers(1, 20))
def test_the_replay_set_is_a_sorted_set(steps: list[tuple[bool, Position, int]], count: int) -> None:
    replay = ReplaySet()
    model: dict[Position, int] = {}
    for adds, position, slot in steps:
        if adds:
            replay.add(position, slot)
            model.setdefault(position, slot)
        else:
            replay.discard(position)
            model.pop(position, None)
        assert replay.first(count) == sorted(model.items())[:count]
    assert len(replay) == len(model)
    for slot in range(4):
        assert (slot in replay.slots) == (slot in model.values())
    assert replay.first(99, lambda slot: slot == 1) == sorted(item for item in model.items() if item[1] == 1)
    replay.discard_through(Position(2, 5))
    assert all(position > (2, 5) for position, _ in replay.first(99))


def test_entries_without_a_slot_block_no_others() -> None:
    replay = ReplaySet()
    replay.add(Position(1, 1))
    assert NO_SLOT not in replay.slots
    replay.clear()
    assert len(replay) == 0


@given(st.lists(positions, unique=True), st.integers(1, 6), st.integers(0, 3))
def test_runs_read_every_wanted_entry_once(wanted: list[Position], most: int, gap: int) -> None:
    read = []
    for first, count in runs(sorted(wanted), most, gap):
        assert 1 <= count <= most
        read += [Position(first.ledger_id, first.entry_id + index) for index in range(count)]
    assert len(read) == len(set(read))
    assert set(wanted) <= set(read)


def test_close_entries_are_read_together_and_distant_ones_are_not() -> None:
    wanted = [Position(1, 0), Position(1, 3), Position(1, 50), Position(2, 51)]
    assert runs(wanted, 100) == [(Position(1, 0), 4), (Position(1, 50), 1), (Position(2, 51), 1)]


def test_counts_rise_per_request_and_are_dropped_with_the_entry() -> None:
    counts = RedeliveryCounts()
    first, second = Position(1, 1), Position(1, 2)
    counts.raise_all([first, second])
    counts.raise_all([second])
    assert (counts.of(first), counts.of(second), counts.of(Position(1, 3))) == (1, 2, 0)
    counts.forget_all([second])
    counts.forget_through(first)
    assert len(counts) == 0
