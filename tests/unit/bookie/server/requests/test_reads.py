"""Tests of reads: from memory at once, others in turns; priority, bounds, and counters."""

import asyncio
from array import array
from itertools import accumulate

from quire_bookie.errors import DamagedError
from quire_bookie.limits import READ_RUN_ENTRIES_PER_TURN
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.storage.read_cache import Extent
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import BatchReadResponse, ReadResponse, ReadRun, Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeConnection
from tests.unit.bookie.server.scene import LEDGER, Scene, adds, entry_bytes, fencing_read


def read(entry: int, *, high_priority: bool = False) -> bytes:
    """Return a read of V2."""
    return client_codec.v2_read(LEDGER, EntryId(entry), high_priority=high_priority)


def run_of(*entries: int) -> ReadRun:
    """Return reads as a run, as the codec decodes them from one buffer."""
    (run,) = ServerCodec(batches=True).feed(b"".join(map(read, entries)))
    assert isinstance(run, ReadRun)
    return run


def stretch_of(entries: range) -> Extent:
    """Return entries in one contiguous piece of memory."""
    bodies = [entry_bytes(entry) for entry in entries]
    ends = list(accumulate(len(body) for body in bodies))
    starts = array("q", [0, *ends[:-1]])
    return Extent(LEDGER, b"".join(bodies), array("q", entries), starts, array("q", map(len, bodies)))


async def test_entries_in_memory_are_answered_without_reading_the_disk(scene: Scene) -> None:
    await scene.stored(adds(0, 3))
    scene.storage.cached |= {(LEDGER, EntryId(1)), (LEDGER, EntryId(2))}
    await scene.handle(read(1) + read(NO_ENTRY))
    answers = scene.connection.responses()
    assert [one.data for one in answers if isinstance(one, ReadResponse)] == [entry_bytes(1), entry_bytes(2)]
    assert scene.storage.reads == []


async def test_a_burst_of_reads_from_memory_gets_the_responses_of_single_reads(scene: Scene) -> None:
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
    assert scene.storage.reads == [(LEDGER, EntryId(3))] * 2, "only the entry that was not in memory"
    assert scene.connection.unanswered == 0
    stats = scene.bookie.stats
    assert (stats.reads, stats.read_seconds.total, stats.reads_failed) == (10, 10, 0)
    assert stats.read_bytes == 2 * sum(len(entry_bytes(entry)) for entry in range(5))


async def test_a_burst_stops_at_the_bound_of_unsent_bytes() -> None:
    answer_bytes = 28 + len(entry_bytes(0))
    scene = Scene(ServiceSettings(socket_write_high_bytes=2 * answer_bytes))
    await scene.stored(adds(0, 6))
    scene.storage.cached |= {(LEDGER, EntryId(entry)) for entry in range(6)}
    run = run_of(*range(6))
    assert scene.bookie._reads._answer_run(scene.connection.real, run, 0) == 2
    assert scene.bookie._reads._answer_run(scene.connection.real, run, 5) == 1


async def test_a_burst_continues_in_later_loop_iterations_until_it_is_answered_in_full(scene: Scene) -> None:
    await scene.stored(adds(0, 1))
    scene.storage.cached.add((LEDGER, EntryId(0)))
    reads = scene.bookie._reads
    many = run_of(*[0] * (READ_RUN_ENTRIES_PER_TURN + 10))
    assert reads._answer_run(scene.connection.real, many, 0) == READ_RUN_ENTRIES_PER_TURN
    assert reads._answer_run(scene.connection.real, many, READ_RUN_ENTRIES_PER_TURN) == 0
    await scene.turn()
    assert reads._answer_run(scene.connection.real, many, READ_RUN_ENTRIES_PER_TURN) == 10
    scene.connection.takes_answers = False
    assert reads._answer_run(scene.connection.real, many, 0) == 0


async def test_reads_with_ascending_ids_that_are_not_in_memory_share_one_turn(scene: Scene) -> None:
    await scene.stored(adds(0, 40))
    blocked = scene.storage.blocked = asyncio.Event()
    await scene.handle(b"".join(read(entry) for entry in (0, 1, 2, 5, 5, 30, 3, 4)))
    assert scene.storage.reads == [(LEDGER, 0), (LEDGER, 5), (LEDGER, 30), (LEDGER, 3)], "the first of each stretch"
    scene.storage.cached |= {(LEDGER, EntryId(1)), (LEDGER, EntryId(2)), (LEDGER, EntryId(4))}
    scene.storage.reads.clear()
    scene.storage.blocked = None
    blocked.set()
    await scene.turn()
    assert scene.storage.reads == [(LEDGER, 5)], "entries loaded meanwhile are not read again"
    answers = [one for one in scene.connection.responses() if isinstance(one, ReadResponse)]
    assert sorted(one.entry for one in answers) == [0, 1, 2, 3, 4, 5, 5, 30]
    assert all(one.data == entry_bytes(one.entry) for one in answers)
    assert scene.connection.unanswered == 0 and scene.bookie._reads.bound._waiting[scene.connection.real] == 0


async def test_a_failure_in_a_run_affects_one_read_only(scene: Scene) -> None:
    await scene.stored(adds(0, 2) + adds(3, 1))
    await scene.handle(b"".join(map(read, range(4))))
    answers = {one.entry: one.status for one in scene.connection.responses() if isinstance(one, ReadResponse)}
    assert answers == {0: Status.OK, 1: Status.OK, 2: Status.NO_ENTRY, 3: Status.OK}
    assert (scene.bookie.stats.reads, scene.bookie.stats.reads_failed) == (4, 1)


async def test_the_rest_of_a_run_waits_while_the_client_reads_no_responses(scene: Scene) -> None:
    await scene.stored(adds(0, 6))
    blocked = scene.storage.blocked = asyncio.Event()
    await scene.handle(b"".join(map(read, range(6))))
    scene.storage.blocked = None
    scene.connection.takes_answers = False
    blocked.set()
    await scene.turn()
    assert len(scene.connection.responses()) == 1 and scene.storage.reads == [(LEDGER, 0)]
    scene.connection.takes_answers = True
    scene.connection.drained.set()
    await scene.turn()
    assert len(scene.connection.responses()) == 5
    assert scene.connection.unanswered == 0 and scene.bookie._reads.bound._waiting[scene.connection.real] == 0


async def test_nothing_more_of_a_run_is_read_for_a_client_that_left(scene: Scene) -> None:
    await scene.stored(adds(0, 6))
    blocked = scene.storage.blocked = asyncio.Event()
    await scene.handle(b"".join(map(read, range(6))))
    scene.connection.is_gone = True
    blocked.set()
    await scene.turn()
    assert scene.storage.reads == [(LEDGER, 0)]
    assert scene.connection.unanswered == 0 and scene.bookie._reads.bound._waiting[scene.connection.real] == 0


async def test_a_stretch_in_memory_answers_runs_and_batches_as_single_entries_do(scene: Scene) -> None:
    await scene.stored(adds(0, 8))
    scene.storage.stretches[LEDGER] = stretch_of(range(2, 7))
    await scene.handle(b"".join(map(read, range(2, 7))))
    found = [(one.entry, one.data) for one in scene.connection.responses() if isinstance(one, ReadResponse)]
    assert found == [(entry, entry_bytes(entry)) for entry in range(2, 7)]
    one_size = len(entry_bytes(0))
    for first, entries_max, bytes_max, expected in (
        (2, 3, 10_000, [2, 3, 4]),
        (1, 4, 10_000, [1, 2, 3, 4]),
        (5, 0, 10_000, [5, 6, 7]),
        (3, 9, 36 + 2 * (4 + one_size), [3, 4]),
        (3, 9, 36 + 2 * (4 + one_size) - 1, [3]),
        (3, 9, 1, [3]),
    ):
        await scene.handle(client_codec.v2_batch_read(LEDGER, EntryId(first), 7, entries_max, bytes_max))
        (answer,) = scene.connection.responses()
        assert isinstance(answer, BatchReadResponse) and answer.status is Status.OK
        assert [bytes(entry) for entry in answer.entries] == [entry_bytes(entry) for entry in expected]
    assert set(scene.storage.reads) == {(LEDGER, 1), (LEDGER, 7), (LEDGER, 8)}, "only entries beyond the stretch"
    assert scene.storage.served == 5 + 3 + 3 + 2 + 2 + 1 + 1


async def test_a_run_of_an_impossible_ledger_id_is_refused(scene: Scene) -> None:
    await scene.handle(b"".join(client_codec.v2_read(LedgerId(-5), EntryId(entry)) for entry in range(3)))
    assert scene.statuses() == [Status.BAD_REQUEST] * 3
    assert scene.connection.unanswered == 0


async def test_no_read_is_answered_from_memory_while_the_client_reads_no_responses(scene: Scene) -> None:
    """Entries for a client that does not read would accumulate."""
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


async def test_responses_may_overtake_each_other(scene: Scene) -> None:
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


async def test_damage_in_memory_is_left_to_a_read_from_disk(scene: Scene) -> None:
    await scene.stored(adds(0))

    def damaged(info: object, entry: object) -> None:
        raise DamagedError("cache", 0, "bits")

    scene.storage.read_cached = damaged  # type: ignore[method-assign]
    await scene.handle(read(0))
    assert scene.storage.reads == [(LEDGER, 0)]
    assert scene.statuses() == [Status.OK]


async def test_two_connections_get_their_own_responses(scene: Scene) -> None:
    await scene.stored(adds(0, 2))
    other = FakeConnection()
    await scene.handle(read(0))
    await scene.handle(client_codec.v2_batch_read(LEDGER, EntryId(1), 5, 1, 1000), other)
    (mine,) = scene.connection.responses()
    (theirs,) = other.responses()
    assert isinstance(mine, ReadResponse) and isinstance(theirs, BatchReadResponse)


async def test_a_batch_from_the_highest_id_reads_nothing_after_it(scene: Scene) -> None:
    last = (1 << 63) - 1
    await scene.stored(adds(last))
    await scene.handle(client_codec.v2_batch_read(LEDGER, EntryId(last), 7, 10, 1000))
    (answer,) = scene.connection.responses()
    assert isinstance(answer, BatchReadResponse)
    assert [bytes(entry) for entry in answer.entries] == [entry_bytes(last)]
    assert scene.storage.reads == [(LEDGER, last)]
