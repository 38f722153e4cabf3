"""Tests of fences: the flag is set at once, the response follows the sync."""

import asyncio

from quire_bookie.errors import DiskFullError
from quire_bookie.limits import MASTER_KEY_BYTES_MAX
from quire_bookie.model import NO_ENTRY, EntryId
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import ReadResponse, Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeConnection, FakeJournal, FakeStorage, make_bookie
from tests.unit.bookie.server.scene import LEDGER, Scene, adds, fencing_read


async def test_a_fence_is_answered_after_its_record_is_durable_even_if_the_ledger_was_fenced_before(
    scene: Scene,
) -> None:
    await scene.handle(adds(0) + fencing_read() + fencing_read())
    assert scene.journal.appended[2:] == [("fence", LEDGER)] * 2
    assert scene.statuses() == []
    scene.journal.settle()
    await scene.turn()
    answered = scene.connection.responses()
    assert sorted(type(one).__name__ for one in answered) == ["AddResponse", "ReadResponse", "ReadResponse"]
    assert all(one.status is Status.OK for one in answered)


async def test_a_fence_that_could_not_be_logged_is_an_io_error_without_the_entry(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    scene.connection.responses()
    await scene.handle(fencing_read())
    scene.journal.settle(DiskFullError("no space"))
    await scene.turn()
    assert scene.connection.responses() == [ReadResponse(Status.IO_ERROR, LEDGER, NO_ENTRY)]


async def test_reads_do_not_wait_behind_a_fence_that_waits_for_the_journal(scene: Scene) -> None:
    await scene.handle(adds(0))
    scene.journal.settle()
    scene.connection.responses()
    await scene.handle(fencing_read() * 20 + client_codec.v2_read(LEDGER, EntryId(0)))
    assert scene.statuses() == [Status.OK]


async def test_a_flood_of_fencing_reads_pauses_its_socket_until_half_of_them_are_answered() -> None:
    journal, storage, connection = FakeJournal(), FakeStorage(), FakeConnection()
    bookie = make_bookie(journal, storage, ServiceSettings(reads_queued_per_connection=8))
    bookie.handle(connection.real, ServerCodec().feed(adds(0) + fencing_read() * 7))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not connection.paused
    bookie.handle(connection.real, ServerCodec().feed(fencing_read()))
    assert connection.paused
    journal.settle()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not connection.paused and connection.unanswered == 0
    await bookie.close()


async def test_a_fence_of_a_ledger_that_is_not_held_is_kept_so_that_later_adds_are_refused(scene: Scene) -> None:
    """A recovery may fence a bookie before the writer's first add reaches it."""
    await scene.handle(fencing_read())
    assert [kind for kind, _ in scene.journal.appended] == ["key", "fence"]
    scene.journal.settle()
    await scene.turn()
    assert scene.statuses() == [Status.NO_ENTRY]
    await scene.handle(adds(0))
    scene.journal.settle()
    assert scene.statuses() == [Status.FENCED]


async def test_a_fence_with_a_key_that_no_ledger_can_have_is_refused(scene: Scene) -> None:
    read = client_codec.v3_read(7, LEDGER, EntryId(0), fence_with=b"k" * (MASTER_KEY_BYTES_MAX + 1))
    assert [one.status for one in await scene.ask_v3(read)] == [Status.BAD_REQUEST]
    assert scene.journal.appended == []


async def test_a_fence_waits_for_its_copy_after_a_key_that_had_found_no_space(scene: Scene) -> None:
    """Replay drops records before their ledger's key: the first fence is durable, but would not be replayed."""
    await scene.handle(fencing_read())
    scene.journal.settle(DiskFullError("no space"), None)
    await scene.turn()
    assert scene.statuses() == []
    assert [kind for kind, _ in scene.journal.appended] == ["key", "fence", "key", "fence"]
    scene.journal.settle()
    await scene.turn()
    assert scene.statuses() == [Status.NO_ENTRY]
