"""The phases of the job `compact` without Spark: the same entries as the broker's compaction keeps, however divided."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.compaction.compacted_entry import decode
from quire_broker.compaction.latest_messages import LatestMessages, summary_of
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_jobs.compaction.phases import Keyed, Rules, bucket_of, kept, latest, marks
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.options import parse_options
from tests.unit.broker.compaction.messages import batch, entry

MIB = 1 << 20
OPTIONS = parse_options({"metadata": "etcd://localhost:2379", "topic": "public/default/t"})


def rules(*, keyless: bool = False, buckets: int = 3, keys_bytes_max: int = MIB) -> Rules:
    return Rules(OPTIONS, -1, keyless, keys_bytes_max, buckets)


def stored(entries: Sequence[bytes]) -> list[StoredEntry]:
    return [StoredEntry(Position(number // 3, number % 3), data) for number, data in enumerate(entries)]


def by_job(entries: Sequence[StoredEntry], given: Rules, piece: int) -> list[StoredEntry]:
    """Return what the job keeps: pieces of `piece` entries, and the shuffles of Spark by hand."""
    pieces = [entries[at : at + piece] for at in range(0, len(entries), piece)]
    buckets: list[list[Keyed]] = [[] for _ in range(given.buckets)]
    for some in pieces:
        for key, mark in marks(some):
            buckets[bucket_of(key) % given.buckets].append((key, mark))
    live: list[int] = []
    for found in buckets:
        found.sort(key=lambda keyed: keyed[0][1])
        live += latest(given, (mark for _, mark in found))
    return [decode(data) for some in pieces for _, data in kept(given, some, live)]


def by_broker(entries: Sequence[StoredEntry], *, keyless: bool) -> list[StoredEntry]:
    known = LatestMessages(keyless=keyless, bytes_max=MIB)
    for each in entries:
        known.note(each.position, each.data, summary_of(each.data))
    found = []
    for each in entries:
        one = known.kept(each.position, each.data, summary_of(each.data))
        if one is not None:
            found.append(StoredEntry(each.position, one.data, one.live))
    return found


def plain(entries: Sequence[StoredEntry]) -> list[tuple[Position, bytes, tuple[int, ...] | None]]:
    return [(each.position, bytes(each.data), each.live) for each in entries]


KEYED = st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from([b"", b"1", b"22"]))
SINGLE = KEYED.map(lambda message: entry(*message))
BATCH = st.lists(KEYED, min_size=1, max_size=5).map(batch)
CHUNK = st.tuples(st.sampled_from("xyz"), st.integers(0, 2)).map(
    lambda of: entry("abc"["xyz".index(of[0])], b"c", uuid=of[0], chunk_id=of[1], num_chunks_from_msg=3)
)
UNREADABLE = st.just(b"no entry")


@given(st.lists(st.one_of(SINGLE, BATCH, UNREADABLE), max_size=25), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_the_job_keeps_what_the_broker_keeps(entries: list[bytes], piece: int, buckets: int, keyless: bool) -> None:
    given_entries = stored(entries)
    found = by_job(given_entries, rules(keyless=keyless, buckets=buckets), piece)
    assert plain(found) == plain(by_broker(given_entries, keyless=keyless))


@given(st.lists(st.one_of(SINGLE, CHUNK), max_size=25), st.integers(1, 9), st.integers(1, 4))
def test_of_chunks_the_job_keeps_at_least_what_the_broker_keeps(entries: list[bytes], piece: int, buckets: int) -> None:
    given_entries = stored(entries)
    found = plain(by_job(given_entries, rules(buckets=buckets), piece))
    assert all(each in found for each in plain(by_broker(given_entries, keyless=False)))


def chunked(key: str | None, uuid: str) -> list[bytes]:
    return [entry(key, b"c", uuid=uuid, chunk_id=number, num_chunks_from_msg=2) for number in range(2)]


@pytest.mark.parametrize("piece", [1, 2, 5, 99])
def test_chunks_of_one_message_are_kept_or_dropped_together(piece: int) -> None:
    entries = stored(
        [*chunked("a", "1"), *chunked("a", "2"), entry("a", b"x"), *chunked("b", "3"), *chunked("c", "4")[:1]]
    )
    assert plain(by_job(entries, rules(), piece)) == plain(entries[4:])


def test_a_chunk_without_its_first_one_is_kept() -> None:
    entries = stored([chunked("a", "1")[1], entry("a", b"x")])
    assert plain(by_job(entries, rules(), 1)) == plain(entries)


def test_too_many_keys_of_one_task_name_the_parameter() -> None:
    entries = stored([entry(f"key {number}", b"1") for number in range(10)])
    with pytest.raises(JobOptionsError, match="raise buckets = 1, or keysSizeMax"):
        by_job(entries, rules(buckets=1, keys_bytes_max=1000), 3)
    assert len(by_job(entries, rules(buckets=8, keys_bytes_max=1000), 3)) == 10
