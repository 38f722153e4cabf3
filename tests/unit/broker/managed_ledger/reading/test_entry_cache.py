"""The shared cache of recent entries."""

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.reading.entry_cache import ENTRY_OVERHEAD_BYTES, EntryCache

_ALL = 1 << 30


@given(
    st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 60), min_size=1, max_size=4)), max_size=30),
    st.integers(0, 3000),
    st.integers(0, 40),
)
def test_it_returns_the_inserted_entries_and_never_exceeds_its_bytes(
    inserts: list[tuple[int, list[int]]], capacity: int, dropped: int
) -> None:
    cache = EntryCache(capacity)
    topics = [cache.topic(), cache.topic()]
    stored: list[list[bytes]] = [[], []]
    for topic, sizes in inserts:
        entries = [bytes([size]) * size for size in sizes]
        topics[topic].insert(7, len(stored[topic]), list(entries), 0.0)
        stored[topic] += entries
        assert cache.size_bytes <= capacity
    topics[0].drop_before(Position(7, dropped))
    for topic in (0, 1):
        for first in range(len(stored[topic])):
            found = topics[topic].get(7, first, first + 5, _ALL)
            assert found == stored[topic][first : first + len(found)]
            assert len(found) <= 6
    topics[0].drop_all()
    topics[1].drop_ledger(7)
    assert cache.size_bytes == 0


def test_a_small_view_of_a_large_buffer_is_copied_and_a_well_used_buffer_is_not() -> None:
    cache = EntryCache(1 << 20)
    topic = cache.topic()
    base = bytes(10_000)
    topic.insert(3, 0, [memoryview(base)[:100]], 0.0)
    assert cache.size_bytes == 100 + ENTRY_OVERHEAD_BYTES
    assert type(topic.get(3, 0, 0, _ALL)[0]) is bytes
    views = [memoryview(base)[at : at + 1000] for at in range(0, 6000, 1000)]
    topic.insert(3, 1, list(views), 0.0)
    assert cache.size_bytes == 100 + ENTRY_OVERHEAD_BYTES + 10_000 + 6 * ENTRY_OVERHEAD_BYTES
    assert topic.get(3, 1, 1, _ALL)[0] is views[0]


def test_entries_in_parts_are_joined_on_the_first_read() -> None:
    topic = EntryCache(1 << 20).topic()
    topic.insert(3, 0, [(b"ab", b"cd")], 0.0)
    first = topic.get(3, 0, 0, _ALL)[0]
    assert first == b"abcd"
    assert topic.get(3, 0, 0, _ALL)[0] is first


def test_a_byte_bound_limits_a_read_but_not_its_first_entry() -> None:
    topic = EntryCache(1 << 20).topic()
    topic.insert(3, 0, [b"x" * 10] * 5, 0.0)
    assert len(topic.get(3, 0, 4, 25)) == 2
    assert len(topic.get(3, 0, 4, 1)) == 1


def test_old_entries_expire_and_a_gap_is_a_miss() -> None:
    cache = EntryCache(1 << 20)
    topic = cache.topic()
    topic.insert(3, 0, [b"a", b"b"], 1.0)
    topic.insert(3, 5, [b"f"], 2.0)
    assert topic.get(3, 0, 9, _ALL) == [b"a", b"b"]
    cache.expire(1.5)
    assert topic.get(3, 0, 9, _ALL) == []
    assert topic.get(3, 5, 9, _ALL) == [b"f"]
    assert (cache.stats.hits, cache.stats.evicted) == (3, 2)
