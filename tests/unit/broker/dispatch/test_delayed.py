"""The queue of delayed entries against a plain list."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.dispatch.delayed import DelayedQueue
from quire_broker.dispatch.redelivery import NO_SLOT
from quire_broker.managed_ledger.cursors.bucket_format import ENTRY_MASK, ENTRY_SHIFT
from quire_broker.managed_ledger.position import Position

NOW_MS = 1_700_000_000_000
LATE_MS = 16
DELAYS_MS = st.one_of(st.integers(1, 3000), st.integers(1, 200_000), st.integers(1, 2**36), st.just(2**63 - 1 - NOW_MS))
STEPS = st.one_of(
    st.tuples(st.just("add"), DELAYS_MS, st.sampled_from([NO_SLOT, 0, 65_535])),
    st.tuples(st.just("pass"), st.one_of(st.integers(0, 2000), st.integers(0, 2**36)), st.just(0)),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 7))
def test_entries_are_due_after_their_time_and_little_later(steps: list[tuple[str, int, int]], count_max: int) -> None:
    queue, now_ms = DelayedQueue(), NOW_MS
    waiting: dict[Position, tuple[int, int]] = {}
    for number, (step, value, slot) in enumerate(steps):
        if step == "add":
            position = Position(number % 3, number)
            waiting[position] = (now_ms + value, slot)
            queue.add(now_ms + value, position, slot, now_ms)
            continue
        now_ms += value
        for _ in range(7 * len(queue)):  # an entry passes six levels, and each call has work or there is none
            before = len(queue)
            due = queue.take_due(now_ms, count_max, count_max)
            assert len(due) <= count_max and len(queue) == before - len(due)
            for position, held in due:
                deliver_at_ms, wanted = waiting.pop(position)
                assert deliver_at_ms <= now_ms and held == wanted
        assert len(queue) == len(waiting)
        assert all(deliver_at_ms > now_ms - LATE_MS for deliver_at_ms, _ in waiting.values()), "none waits longer"
        due_ms = queue.due_in_ms(now_ms)
        assert (due_ms is None) == (not waiting)
        if due_ms is not None:
            assert now_ms + due_ms <= min(at for at, _ in waiting.values()) + LATE_MS, "the next check is in time"


def test_entries_of_one_time_come_in_order() -> None:
    queue = DelayedQueue()
    for entry in range(100):
        queue.add(NOW_MS + 50_000, Position(7, entry), NO_SLOT, NOW_MS)
    found: list[int] = []
    while len(queue):
        found += [position.entry_id for position, _ in queue.take_due(NOW_MS + 60_000, 9, 9)]
    assert found == list(range(100))


@given(st.lists(st.integers(0, 200_000), max_size=60), st.lists(st.integers(1, 9), min_size=1))
def test_entries_of_one_time_come_in_order_whenever_they_were_added(added_ms: list[int], counts: list[int]) -> None:
    queue, due_ms = DelayedQueue(), NOW_MS + 200_001
    waiting = 0
    for entry, at_ms in enumerate(sorted(added_ms)):
        assert queue.take_due(NOW_MS + at_ms, 1, counts[entry % len(counts)]) == [], "some move to finer buckets"
        queue.add(due_ms, Position(7, entry), NO_SLOT, NOW_MS + at_ms)
        waiting += 1
    found: list[int] = []
    while len(queue):
        due = queue.take_due(due_ms + 50, 2, counts[len(found) % len(counts)])
        found += [position.entry_id for position, _ in due]
    assert found == list(range(waiting))


def test_room_for_one_entry_does_not_slow_down_the_move_to_finer_buckets() -> None:
    queue = DelayedQueue()
    for entry in range(1000):
        queue.add(NOW_MS + 50_000, Position(7, entry), NO_SLOT, NOW_MS)
    for _ in range(3):
        found = queue.take_due(NOW_MS + 50_016, 1, 1000)
    assert found == [(Position(7, 1), NO_SLOT)]


@given(st.lists(st.tuples(DELAYS_MS, st.sampled_from([NO_SLOT, 7])), max_size=60), st.integers(0, 2**36))
def test_columns_hold_what_still_waits(added: list[tuple[int, int]], passed_ms: int) -> None:
    queue = DelayedQueue()
    for entry, (delay_ms, slot) in enumerate(added):
        queue.add(NOW_MS + delay_ms, Position(7 + entry % 2, entry), slot, NOW_MS)
    taken = {position.entry_id for position, _ in queue.take_due(NOW_MS + passed_ms, 5, 50)}
    found: dict[int, int] = {}
    for times_ms, keys, slots in queue.columns():
        assert len(times_ms) == len(keys) and (slots is None or len(slots) == len(keys))
        for at, key in enumerate(keys):
            entry = key & ENTRY_MASK
            assert queue.ledgers[key >> ENTRY_SHIFT] == 7 + entry % 2
            assert (NO_SLOT if slots is None else slots[at]) == added[entry][1]
            found[entry] = times_ms[at]
    assert found.keys() == set(range(len(added))) - taken
    assert all(
        0 <= min(due_ms, 2**62) - NOW_MS - added[entry][0] <= LATE_MS or due_ms >= 2**62 - 1
        for entry, due_ms in found.items()
    )


def test_an_entry_takes_twenty_bytes() -> None:
    tracemalloc.start()
    try:
        queue = DelayedQueue()
        for entry in range(50_000):
            queue.add(NOW_MS + entry * 977 % 100_000_000, Position(7, entry), NO_SLOT, NOW_MS)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 50_000 * 24
