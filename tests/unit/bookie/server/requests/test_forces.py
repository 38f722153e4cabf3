"""Tests of adds with DEFERRED_SYNC, answered before they are durable, and of FORCE_LEDGER, which makes them durable."""

import asyncio

import pytest

from quire_bookie.errors import DiskFullError, JournalPoisonedError, StorageError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import AddResponse, Status, StatusResponse
from tests.unit.bookie.server.scene import KEY, LEDGER, Scene, adds, entry_bytes

FORCE_OPERATION = 10


def deferred_add(entry: int, transaction: int = 1) -> bytes:
    """Return an add of V3 with DEFERRED_SYNC."""
    return client_codec.v3_add(transaction, LEDGER, EntryId(entry), KEY, entry_bytes(entry), deferred_sync=True)


def force(transaction: int = 9, ledger: LedgerId = LEDGER) -> bytes:
    """Return a FORCE_LEDGER request."""
    return client_codec.v3_force(transaction, ledger)


async def test_a_deferred_add_is_answered_before_the_sync_once_in_cache_and_journal_queue(scene: Scene) -> None:
    assert await scene.ask_v3(deferred_add(0, 5)) == [AddResponse(Status.OK, LEDGER, EntryId(0), 1, 5)]
    assert scene.journal.appended == [("key", LEDGER), ("entries", LEDGER)]
    assert (LEDGER, 0) in scene.storage.entries
    scene.journal.settle()
    assert scene.connection.sent == []
    assert scene.connection.unanswered == 0


async def test_deferred_adds_count_in_the_budget_until_they_are_durable(scene: Scene) -> None:
    await scene.handle(deferred_add(0))
    assert scene.bookie.stats.adds_in_flight_bytes == len(entry_bytes(0))
    scene.journal.settle()
    assert scene.bookie.stats.adds_in_flight_bytes == 0
    assert scene.bookie.stats.deferred_add_entries == 1


async def test_deferred_and_normal_adds_of_one_buffer_are_answered_each_at_its_time(scene: Scene) -> None:
    normal = client_codec.v3_add(2, LEDGER, EntryId(1), KEY, entry_bytes(1))
    assert await scene.ask_v3(deferred_add(0, 1) + normal) == [AddResponse(Status.OK, LEDGER, EntryId(0), 1, 1)]
    scene.journal.settle()
    assert scene.connection.responses(3) == [AddResponse(Status.OK, LEDGER, EntryId(1), 1, 2)]


async def test_a_force_is_answered_after_earlier_appends_are_durable(scene: Scene) -> None:
    await scene.handle(deferred_add(0))
    scene.connection.sent.clear()
    assert await scene.ask_v3(force()) == []
    assert scene.journal.appended[-1][0] == "force"
    scene.journal.settle()
    assert scene.connection.responses(3) == [StatusResponse(Status.OK, FORCE_OPERATION, 9)]
    assert scene.connection.unanswered == 0


async def test_a_force_of_an_unknown_ledger_and_on_a_read_only_bookie_is_ok(scene: Scene) -> None:
    scene.bookie.read_only = True
    scene.bookie.accepts_high_priority = False
    await scene.handle(force(ledger=LedgerId(77)))
    scene.journal.settle()
    assert scene.statuses(3) == [Status.OK]
    assert scene.storage.infos == {}


async def test_a_force_on_a_failed_journal_is_an_io_error(scene: Scene) -> None:
    await scene.handle(deferred_add(0) + force())
    scene.connection.sent.clear()
    error = JournalPoisonedError("gone")
    scene.journal.settle(error)
    scene.bookie.poison(error)
    assert scene.statuses(3) == [Status.IO_ERROR]
    assert [one.status for one in await scene.ask_v3(force())] == [Status.IO_ERROR]
    assert [one.status for one in await scene.ask_v3(deferred_add(1))] == [Status.IO_ERROR]
    assert scene.bookie.stats.forces_failed == 2


async def test_a_force_flushes_the_storage_when_an_acknowledged_add_found_no_space_in_the_journal(
    scene: Scene,
) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    await scene.handle(deferred_add(1))
    scene.journal.settle(DiskFullError("no space"))
    scene.connection.sent.clear()
    scene.storage.flush_error = DiskFullError("no space")
    await scene.handle(force(1))
    scene.journal.settle()
    await scene.turn()
    assert scene.statuses(3) == [Status.IO_ERROR]
    scene.storage.flush_error = None
    await scene.handle(force(2))
    scene.journal.settle()
    await scene.turn()
    assert scene.statuses(3) == [Status.OK]
    assert scene.storage.flushes == 2
    await scene.handle(force(3))
    scene.journal.settle()
    assert scene.statuses(3) == [Status.OK]
    assert scene.storage.flushes == 2, "flushed adds need no further flush"


async def test_an_add_that_was_refused_during_the_flush_needs_another_one(scene: Scene) -> None:
    await scene.stored(adds(0))
    await scene.handle(deferred_add(1))
    scene.journal.settle(DiskFullError("no space"))
    scene.bookie.handle(scene.connection.real, [])
    await scene.handle(force(1))
    scene.journal.settle()  # the flush has begun as a task, and has not run yet
    await scene.turn()
    await scene.handle(deferred_add(2))
    scene.journal.settle(DiskFullError("no space"))
    await scene.handle(force(2))
    scene.journal.settle()
    await scene.turn()
    assert scene.storage.flushes == 2


@pytest.mark.parametrize("error", [StorageError("failed"), OSError(5, "I/O")])
async def test_a_flush_that_fails_is_an_io_error_to_the_force(scene: Scene, error: Exception) -> None:
    await scene.stored(adds(0))
    await scene.handle(deferred_add(1))
    scene.journal.settle(DiskFullError("no space"))
    scene.connection.sent.clear()
    scene.storage.flush_error = error
    await scene.handle(force())
    scene.journal.settle()
    await scene.turn()
    assert scene.statuses(3) == [Status.IO_ERROR]


async def test_a_force_waits_for_the_copies_after_a_key_that_had_found_no_space(scene: Scene) -> None:
    """Replay drops records before their ledger's key: the deferred add is durable, but would not be replayed."""
    await scene.handle(deferred_add(0))
    await scene.handle(force())
    scene.connection.sent.clear()
    scene.journal.settle(DiskFullError("no space"), None)
    assert scene.statuses(3) == []
    assert [kind for kind, _ in scene.journal.appended[3:]] == ["key", "entries", "key", "force"]
    scene.journal.settle()
    assert scene.statuses(3) == [Status.OK]


async def test_a_force_that_finds_no_space_itself_flushes_the_storage(scene: Scene) -> None:
    await scene.handle(force())
    scene.journal.settle(DiskFullError("no space"))
    await scene.turn()
    assert scene.statuses(3) == [Status.OK]
    assert scene.storage.flushes == 1


async def test_forces_are_counted_and_timed_when_they_succeed(scene: Scene) -> None:
    await scene.handle(force() + force())
    scene.journal.settle()
    assert scene.bookie.stats.forces == 2
    assert scene.bookie.stats.force_seconds.total == 2


async def test_a_close_ends_the_flush_of_a_force(scene: Scene) -> None:
    scene.storage.flush_gate = asyncio.Event()
    await scene.handle(force())
    scene.journal.settle(DiskFullError("no space"))
    await scene.turn()
    await asyncio.wait_for(scene.bookie.close(), 10)
    assert scene.statuses(3) == []
