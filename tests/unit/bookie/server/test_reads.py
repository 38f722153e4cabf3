"""Reads: from memory at once, in turns else; priority, bounds, and what is counted."""

import asyncio

from quire_bookie.errors import DamagedError
from quire_bookie.limits import READS_PER_TURN
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.server.settings import ServiceSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import BatchReadResponse, ReadResponse, Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeConnection
from tests.unit.bookie.server.scene import LEDGER, Scene, adds, entry_bytes, fencing_read


def read(entry: int, *, high_priority: bool = False) -> bytes:
    """A read of V2."""
    return client_codec.v2_read(LEDGER, EntryId(entry), high_priority=high_priority)


async def test_what_is_in_memory_is_answered_without_reading_storage(scene: Scene) -> None:
    await scene.stored(adds(0, 3))
    scene.storage.cached |= {(LEDGER, EntryId(1)), (LEDGER, EntryId(2))}
    await scene.handle(read(1) + read(NO_ENTRY))
    answers = scene.connection.responses()
    assert [one.data for one in answers if isinstance(one, ReadResponse)] == [entry_bytes(1), entry_bytes(2)]
    assert scene.storage.reads == []


async def test_a_burst_of_reads_from_memory_is_one_write_with_the_answers_that_single_reads_get(scene: Scene) -> None:
    await scene.stored(adds(0, 5))
    scene.storage.cached |= {(LEDGER, EntryId(entry)) for entry in (0, 1, 2, 4)}
    await scene.handle(b"".join(map(read, range(5))))
    burst = {one.entry: one.data for one in scene.connection.responses() if isinstance(one, ReadResponse)}
    singles = {}
    for entry in range(5):
        await scene.handle(read(entry))
        (one,) = scene.connection.responses()
        assert isinstance(one, ReadResponse)
        singles[one.entry] = one.data
    assert burst == singles == {entry: entry_bytes(entry) for entry in range(5)}
    assert scene.storage.reads == [(LEDGER, EntryId(3))] * 2, "only what memory did not have"
    assert scene.connection.unanswered == 0
    stats = scene.bookie.stats
    assert (stats.reads, stats.read_seconds.total, stats.reads_failed) == (10, 10, 0)
    assert stats.read_bytes == 2 * sum(len(entry_bytes(entry)) for entry in range(5))


async def test_a_burst_stops_at_the_bytes_that_a_client_may_have_waiting() -> None:
    scene = Scene(ServiceSettings(socket_write_high_bytes=2 * len(entry_bytes(0))))
    await scene.stored(adds(0, 6))
    scene.storage.cached |= {(LEDGER, EntryId(entry)) for entry in range(6)}
    requests = ServerCodec().feed(b"".join(map(read, range(6))))
    assert scene.bookie._reads.handle_cached(scene.connection.real, requests, 0) == 2
    assert scene.bookie._reads.handle_cached(scene.connection.real, requests, 5) == 1


async def test_a_burst_leaves_other_requests_and_other_turns_to_themselves(scene: Scene) -> None:
    await scene.stored(adds(0, 1))
    scene.storage.cached.add((LEDGER, EntryId(0)))
    reads = scene.bookie._reads
    mixed = ServerCodec().feed(read(0) * 2 + fencing_read(0) + read(0))
    assert reads.handle_cached(scene.connection.real, mixed, 0) == 2
    assert reads.handle_cached(scene.connection.real, mixed, 2) == 0
    many = ServerCodec().feed(read(0) * (READS_PER_TURN + 10))
    assert reads.handle_cached(scene.connection.real, many, 0) == READS_PER_TURN - 2
    assert reads.handle_cached(scene.connection.real, many, READS_PER_TURN - 2) == 0
    await scene.turn()
    assert reads.handle_cached(scene.connection.real, many, READS_PER_TURN - 2) == 12
    scene.connection.takes_answers = False
    assert reads.handle_cached(scene.connection.real, many, 0) == 0


async def test_memory_is_not_asked_while_the_client_takes_no_answers(scene: Scene) -> None:
    """Entries of a client that does not read would pile up."""
    await scene.stored(adds(0))
    scene.storage.cached.add((LEDGER, EntryId(0)))
    scene.connection.takes_answers = False
    await scene.handle(read(0))
    assert scene.connection.sent == []
    scene.connection.takes_answers = True
    scene.connection.drained.set()
    await scene.turn()
    assert scene.statuses() == [Status.OK]


async def test_a_read_with_priority_does_not_wait_behind_normal_ones() -> None:
    scene = Scene(ServiceSettings(reads_at_once_max=2, priority_reads_at_once_max=2))
    await scene.stored(adds(0, 2))
    blocked = scene.storage.blocked = asyncio.Event()
    await scene.handle(read(0) * 10)
    scene.storage.blocked = None
    await scene.handle(read(0))
    assert scene.statuses() == [], "normal reads wait for normal reads"
    await scene.handle(read(1, high_priority=True))
    (answer,) = scene.connection.responses()
    assert isinstance(answer, ReadResponse) and answer.entry == 1
    blocked.set()
    await scene.turn()
    assert len(scene.statuses()) == 11
    await scene.bookie.close()


async def test_a_fencing_read_does_not_wait_behind_reads_of_either_kind() -> None:
    scene = Scene(ServiceSettings(reads_at_once_max=1, priority_reads_at_once_max=1))
    await scene.stored(adds(0, 2))
    blocked = scene.storage.blocked = asyncio.Event()
    await scene.handle(read(0) * 3 + read(0, high_priority=True) * 3)
    scene.storage.blocked = None
    await scene.handle(fencing_read())
    scene.journal.settle()
    await scene.turn()
    assert scene.statuses() == [Status.OK]
    blocked.set()
    await scene.turn()
    await scene.bookie.close()


async def test_answers_may_overtake_each_other(scene: Scene) -> None:
    await scene.stored(adds(0, 2))
    blocked = scene.storage.blocked = asyncio.Event()
    await scene.handle(read(0))
    scene.storage.blocked = None
    await scene.handle(read(1))
    (first,) = scene.connection.responses()
    blocked.set()
    await scene.turn()
    (second,) = scene.connection.responses()
    assert isinstance(first, ReadResponse) and isinstance(second, ReadResponse)
    assert (first.entry, second.entry) == (1, 0)


async def test_a_socket_with_too_many_reads_pauses_until_half_of_them_are_answered() -> None:
    scene = Scene(ServiceSettings(reads_queued_per_connection=4))
    await scene.stored(adds(0))
    blocked = scene.storage.blocked = asyncio.Event()
    await scene.handle(read(0) * 3)
    assert not scene.connection.paused
    await scene.handle(read(0, high_priority=True))
    assert scene.connection.paused
    blocked.set()
    await scene.turn()
    assert not scene.connection.paused
    await scene.bookie.close()


async def test_a_client_that_is_gone_costs_no_more_reads(scene: Scene) -> None:
    await scene.stored(adds(0))
    scene.connection.is_gone = True
    await scene.handle(read(0))
    assert scene.storage.reads == []
    assert scene.connection.unanswered == 0


async def test_reads_are_counted_by_kind_and_timed_when_they_succeed(scene: Scene) -> None:
    await scene.stored(adds(0, 2))
    batch = client_codec.v2_batch_read(LEDGER, EntryId(0), 7, 10, 1000)
    await scene.handle(read(0) + read(9) + batch + fencing_read())
    scene.journal.settle()
    await scene.turn()
    stats = scene.bookie.stats
    assert (stats.reads, stats.reads_failed, stats.batch_reads) == (4, 1, 1)
    assert (stats.fences, stats.fences_failed) == (1, 0)
    assert (stats.read_seconds.total, stats.fence_seconds.total) == (2, 1)
    assert stats.read_bytes == len(entry_bytes(0)) * 4


async def test_other_requests_are_counted_too(scene: Scene) -> None:
    await scene.stored(adds(0, 2))
    await scene.handle(
        client_codec.v3_read_lac(1, LEDGER)
        + client_codec.v3_read_lac(2, LedgerId(88))
        + client_codec.v3_list_entries(3, LEDGER)
        + client_codec.v3_list_entries(4, LedgerId(88))
        + client_codec.v3_bookie_info(5, 3)
    )
    stats = scene.bookie.stats
    assert (stats.lac_reads, stats.lac_reads_failed, stats.read_lac_seconds.total) == (2, 1, 1)
    assert (stats.entry_lists, stats.entry_lists_failed) == (2, 1)
    assert stats.info_requests == 1


async def test_damage_in_memory_is_left_to_the_long_way(scene: Scene) -> None:
    await scene.stored(adds(0))

    def damaged(info: object, entry: object) -> None:
        raise DamagedError("cache", 0, "bits")

    scene.storage.read_cached = damaged  # type: ignore[method-assign]
    await scene.handle(read(0))
    assert scene.storage.reads == [(LEDGER, 0)]
    assert scene.statuses() == [Status.OK]


async def test_two_connections_get_their_own_answers(scene: Scene) -> None:
    await scene.stored(adds(0, 2))
    other = FakeConnection()
    await scene.handle(read(0))
    await scene.handle(client_codec.v2_batch_read(LEDGER, EntryId(1), 5, 1, 1000), other)
    (mine,) = scene.connection.responses()
    (theirs,) = other.responses()
    assert isinstance(mine, ReadResponse) and isinstance(theirs, BatchReadResponse)


async def test_a_batch_from_the_highest_id_looks_for_nothing_behind_it(scene: Scene) -> None:
    last = (1 << 63) - 1
    await scene.stored(adds(last))
    await scene.handle(client_codec.v2_batch_read(LEDGER, EntryId(last), 7, 10, 1000))
    (answer,) = scene.connection.responses()
    assert isinstance(answer, BatchReadResponse)
    assert [bytes(entry) for entry in answer.entries] == [entry_bytes(last)]
    assert scene.storage.reads == [(LEDGER, last)]
