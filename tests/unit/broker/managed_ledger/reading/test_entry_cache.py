"""The cache of entries of a broker: what its shares keep, and which bytes they count."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.model import EntryId
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.reading.entry_cache import (
    CATCH_UP_SHARE,
    ENTRY_OVERHEAD_BYTES,
    EntryCache,
    Share,
    TopicCache,
)

_ALL = 1 << 30
_CACHE = (1 << 20, 1 << 20)


@dataclass
class PlacedReaders:
    """Readers at given positions of any ledger with 1,000 entries each."""

    positions: list[Position] = field(default_factory=list)

    def _near(self, ledger_id: int, first: int, last: int, entries_max: int) -> list[Position]:
        return [
            position
            for position in self.positions
            if position <= (ledger_id, last)
            and (ledger_id - position.ledger_id) * 1000 + first - position.entry_id <= entries_max
        ]

    def reads_soon(self, ledger_id: int, first: int, last: int, entries_max: int) -> bool:
        return bool(self._near(ledger_id, first, last, entries_max))

    def count(self, ledger_id: int, first: int, last: int, entries_max: int, most: int) -> int:
        return min(most, len(self._near(ledger_id, first, last, entries_max)))


@dataclass
class ReadEntry:
    entry_id: EntryId
    payload: bytes


def read_entries(first: int, payloads: list[bytes]) -> list[ReadEntry]:
    return [ReadEntry(EntryId(entry), payload) for entry, payload in enumerate(payloads, first)]


def topic_of(cache: EntryCache, *positions: tuple[int, int]) -> tuple[TopicCache, PlacedReaders]:
    """A topic with readers at these positions, or with one at the beginning."""
    readers = PlacedReaders([Position(*position) for position in positions or ((3, 0),)])
    return cache.topic(readers), readers


def shares(cache: EntryCache) -> tuple[Share, Share, Share]:
    return cache.tail, cache.read, cache.catch_up


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(["append", "near", "far", "move", "pass", "expire"]),
            st.integers(0, 40),
            st.lists(st.integers(0, 60), min_size=1, max_size=4),
        ),
        max_size=40,
    ),
    st.integers(0, 3000),
    st.integers(0, 9000),
)
def test_it_returns_the_entries_of_each_position_and_no_share_exceeds_its_bytes(
    steps: list[tuple[int, str, int, list[int]]], tail_bytes: int, read_bytes: int
) -> None:
    cache = EntryCache(tail_bytes, read_bytes)
    topics, readers = zip(*(topic_of(cache, (7, 0), (7, 3)) for _ in range(2)), strict=True)
    stored: list[list[bytes]] = [[b"%d" % number for number in range(20)] for _ in topics]
    for now, (number, step, place, sizes) in enumerate(steps):
        topic, of_topic = topics[number], stored[number]
        if step == "append":
            entries = [bytes([size]) * size for size in sizes]
            topic.append(7, len(of_topic), list(entries), now)
            of_topic += entries
        elif step in ("near", "far"):
            first = place % len(of_topic)
            found = read_entries(first, of_topic[first : first + len(sizes)])
            topic.fetched(7, found, 1, now, far_behind=step == "far")
        elif step == "move":
            readers[number].positions[place % 2] = Position(7, place)
        elif step == "pass":
            topic.drop_passed()
        else:
            cache.expire(now - place)
        for share in shares(cache):
            assert 0 <= share.size_bytes <= share.capacity_bytes
        for one, all_of_it in zip(topics, stored, strict=True):
            for first in range(len(all_of_it)):
                found_here = one.get(7, first, first + 5, _ALL)
                assert found_here == all_of_it[first : first + len(found_here)]
                assert len(found_here) <= 6
    topics[0].drop_all()
    topics[1].drop_ledger(7)
    assert [share.size_bytes for share in shares(cache)] == [0, 0, 0]
    assert all(topic.is_empty for topic in topics)


def test_the_memory_of_many_appends_fetches_and_evictions_stays_bounded() -> None:
    cache = EntryCache(100_000, 80_000)
    topic, readers = topic_of(cache, (7, 0), (7, 0))
    for entry in range(0, 40_000, 4):
        topic.append(7, entry, [b"x" * 100] * 4, entry / 1000)
        topic.fetched(7, read_entries(entry + 100_000, [b"y" * 100] * 4), 1, entry / 1000, far_behind=entry % 8 == 0)
        readers.positions[0] = Position(7, entry)
        if entry % 4000 == 0:
            topic.drop_passed()
            cache.expire(entry / 1000 - 30)
    assert all(share.size_bytes <= share.capacity_bytes for share in shares(cache))
    ledger = topic._ledgers[7]
    alive = sum(bool(batch.entries) for batch in ledger.batches)
    assert len(ledger.firsts) == len(ledger.batches) <= 2 * alive + 256, "evicted batches leave the list"
    assert sum(len(share._unseen) + len(share._wanted) for share in shares(cache)) <= 2 * alive + 2 * 1000


def test_entries_are_kept_only_for_an_active_cursor_that_reads_them_soon() -> None:
    cache = EntryCache(10 * (100 + ENTRY_OVERHEAD_BYTES), 0)
    topic, readers = topic_of(cache, (7, 0))
    topic.append(7, 5, [b"x" * 100], 0.0)
    assert topic.get(7, 5, 5, _ALL), "half of the share is five entries"
    topic.append(7, 6, [b"x" * 100], 0.0)
    assert not topic.get(7, 6, 6, _ALL)
    readers.positions.clear()
    topic.append(7, 7, [b"x" * 100], 0.0)
    assert not topic.get(7, 7, 7, _ALL)
    topic.drop_passed()
    assert topic.is_empty


def test_a_full_share_evicts_what_no_cursor_needs_before_older_entries_that_one_does() -> None:
    cache = EntryCache(10 * (100 + ENTRY_OVERHEAD_BYTES), 0)
    slow, _ = topic_of(cache, (3, 0))
    fast, readers = topic_of(cache, (7, 0))
    for entry in range(4):
        slow.append(3, entry, [b"s" * 100], 0.0)
    for entry in range(100):
        readers.positions[0] = Position(7, entry)
        fast.append(7, entry, [b"f" * 100], 1.0)
    assert len(slow.get(3, 0, 9, _ALL)) == 4, "the fast topic evicts its own entries, which were read"
    other, _ = topic_of(cache, (8, 0))
    for entry in range(5):
        other.append(8, entry, [b"o" * 100], 2.0)
        fast.append(7, 100 + entry, [b"f" * 100], 2.0)
    assert not slow.get(3, 0, 0, _ALL), "if all are needed, the oldest go first"
    assert len(other.get(8, 0, 9, _ALL)) == 5


def test_reads_far_behind_and_near_reads_evict_nothing_of_the_tail_or_of_each_other() -> None:
    room = 8 * (100 + ENTRY_OVERHEAD_BYTES)
    cache = EntryCache(room, room * CATCH_UP_SHARE)
    topic, _ = topic_of(cache, (7, 0), (7, 0), (7, 1_000), (7, 1_000))
    topic.append(7, 1_000, [b"t" * 100] * 3, 0.0)
    topic.fetched(7, read_entries(900, [b"n" * 100] * 2), 1, 0.0, far_behind=False)
    for entry in range(0, 40, 4):
        topic.fetched(7, read_entries(entry, [b"c" * 100] * 4), 1, 0.0, far_behind=True)
    assert cache.catch_up.size_bytes == cache.catch_up.capacity_bytes == room
    assert len(topic.get(7, 1_000, 1_010, _ALL)) == 3
    assert len(topic.get(7, 900, 910, _ALL)) == 0, "no cursor is near them"
    topic.fetched(7, read_entries(998, [b"n" * 100] * 2), 1, 0.0, far_behind=False)
    assert not topic.get(7, 998, 998, _ALL), "both cursors have passed them"


def test_a_fetch_is_kept_only_for_cursors_that_did_not_wait_for_it() -> None:
    cache = EntryCache(*_CACHE)
    topic, readers = topic_of(cache, (7, 10), (7, 10))
    topic.fetched(7, read_entries(10, [b"a", b"b"]), 2, 0.0, far_behind=False)
    assert topic.is_empty
    readers.positions.append(Position(7, 4))
    topic.fetched(7, read_entries(10, [b"a", b"b"]), 2, 0.0, far_behind=False)
    assert topic.get(7, 10, 20, _ALL) == [b"a", b"b"]


def test_a_fetch_fills_the_gap_before_entries_that_are_here() -> None:
    cache = EntryCache(*_CACHE)
    topic, _ = topic_of(cache, (7, 0), (7, 0))
    topic.append(7, 3, [b"d", b"e"], 0.0)
    topic.fetched(7, read_entries(1, [b"b", b"c", b"d", b"e"]), 1, 0.0, far_behind=False)
    assert topic.get(7, 1, 9, _ALL) == [b"b", b"c", b"d", b"e"]
    topic.fetched(7, read_entries(2, [b"c", b"d"]), 1, 0.0, far_behind=True)
    assert cache.stats.inserted == 4, "cached entries are not kept again"
    assert cache.catch_up.size_bytes == 0


def test_a_batch_larger_than_its_share_is_not_kept_and_evicts_nothing() -> None:
    cache = EntryCache(1_000, 0)
    topic, _ = topic_of(cache, (3, 0))
    topic.append(3, 0, [b"x" * 100], 0.0)
    topic.append(3, 1, [b"x" * 900], 0.0)
    assert topic.get(3, 0, 9, _ALL) == [b"x" * 100]


def test_a_small_view_of_a_large_buffer_is_copied_and_a_well_used_buffer_is_not() -> None:
    cache = EntryCache(*_CACHE)
    topic, _ = topic_of(cache)
    base = bytes(10_000)
    topic.append(3, 0, [memoryview(base)[:100]], 0.0)
    assert cache.size_bytes == 100 + ENTRY_OVERHEAD_BYTES
    assert type(topic.get(3, 0, 0, _ALL)[0]) is bytes
    views = [memoryview(base)[at : at + 1000] for at in range(0, 6000, 1000)]
    topic.append(3, 1, list(views), 0.0)
    assert cache.size_bytes == 100 + ENTRY_OVERHEAD_BYTES + 10_000 + 6 * ENTRY_OVERHEAD_BYTES
    assert topic.get(3, 1, 1, _ALL)[0] is views[0]


def test_entries_in_parts_are_joined_on_the_first_read() -> None:
    topic, _ = topic_of(EntryCache(*_CACHE))
    topic.append(3, 0, [(b"ab", b"cd")], 0.0)
    first = topic.get(3, 0, 0, _ALL)[0]
    assert first == b"abcd"
    assert topic.get(3, 0, 0, _ALL)[0] is first


def test_a_byte_bound_limits_a_read_but_not_its_first_entry() -> None:
    topic, _ = topic_of(EntryCache(*_CACHE))
    topic.append(3, 0, [b"x" * 10] * 5, 0.0)
    assert len(topic.get(3, 0, 4, 25)) == 2
    assert len(topic.get(3, 0, 4, 1)) == 1


def test_old_entries_expire_and_a_gap_is_a_miss() -> None:
    cache = EntryCache(*_CACHE)
    topic, _ = topic_of(cache)
    topic.append(3, 0, [b"a", b"b"], 1.0)
    topic.append(3, 5, [b"f"], 2.0)
    assert topic.get(3, 0, 9, _ALL) == [b"a", b"b"]
    cache.expire(1.5)
    assert topic.get(3, 0, 9, _ALL) == []
    assert topic.get(3, 5, 9, _ALL) == [b"f"]
    assert (cache.stats.hits, cache.stats.evicted) == (3, 2)
