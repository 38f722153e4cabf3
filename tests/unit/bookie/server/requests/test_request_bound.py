"""Tests of the bounds on waiting requests, per connection and in total, above which sockets pause."""

import asyncio

from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.requests.connections import PAUSED_BY_LOADING, PAUSED_BY_REQUESTS
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import Request, Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeConnection
from tests.unit.bookie.server.scene import DIGEST, KEY, LEDGER, Scene, adds, fencing_read


def lac(entry: int) -> bytes:
    """Return a WRITE_LAC request."""
    return client_codec.v3_write_lac(entry, LEDGER, EntryId(entry), KEY, DIGEST.encode_lac(LEDGER, EntryId(entry)))


async def test_explicit_lacs_and_forces_that_wait_for_the_journal_pause_their_socket() -> None:
    scene = Scene(ServiceSettings(reads_queued_per_connection=4))
    await scene.handle(lac(1) + client_codec.v3_force(2, LEDGER) + lac(3))
    assert not scene.connection.paused
    await scene.handle(client_codec.v3_force(4, LEDGER))
    assert scene.connection.paused == PAUSED_BY_REQUESTS
    scene.journal.settle()
    await scene.turn()
    assert not scene.connection.paused
    assert scene.connection.unanswered == 0
    await scene.bookie.close()


async def test_long_polls_that_wait_for_a_ledger_to_be_loaded_pause_their_socket() -> None:
    scene = Scene(ServiceSettings(reads_queued_per_connection=2))
    poll = client_codec.v3_read(1, LEDGER, EntryId(-1), previous_lac=EntryId(5), timeout_ms=1000)
    await scene.stored(adds(0))
    scene.storage.hidden.add(LEDGER)
    scene.bookie.handle(scene.connection.real, _requests(poll * 2))
    assert scene.connection.paused == PAUSED_BY_REQUESTS
    await scene.turn()
    assert not scene.connection.paused
    assert scene.bookie.stats.long_polls_parked == 2
    await scene.bookie.close()


async def test_many_fencing_reads_do_not_read_their_entries_all_at_once() -> None:
    scene = Scene(ServiceSettings(priority_reads_at_once_max=2, reads_at_once_per_connection=1))
    await scene.stored(adds(0, 2))
    blocked = scene.storage.blocked = asyncio.Event()
    await scene.handle(fencing_read(0) * 10)
    assert len(scene.storage.reads) == 2
    scene.journal.settle()
    await scene.turn()
    assert len(scene.storage.reads) == 3, "one more, in its turn"
    blocked.set()
    await scene.turn()
    assert scene.statuses() == [Status.OK] * 10
    assert scene.connection.unanswered == 0
    await scene.bookie.close()


async def test_postponed_fencing_reads_are_answered_with_an_error_if_the_fence_is_not_durable() -> None:
    scene = Scene(ServiceSettings(priority_reads_at_once_max=1))
    await scene.stored(adds(0))
    await scene.handle(fencing_read(0) * 3)
    scene.journal.settle(OSError("gone"))
    await scene.turn()
    assert scene.statuses() == [Status.IO_ERROR] * 3
    assert scene.connection.unanswered == 0
    assert not scene.connection.paused
    await scene.bookie.close()


async def test_a_fencing_read_of_a_client_that_reads_no_responses_is_delayed(scene: Scene) -> None:
    await scene.stored(adds(0))
    scene.connection.takes_answers = False
    await scene.handle(fencing_read(0))
    scene.journal.settle()
    await scene.turn()
    assert scene.storage.reads == []
    assert scene.storage.infos[LEDGER].fenced
    scene.connection.takes_answers = True
    scene.connection.drained.set()
    await scene.turn()
    assert scene.statuses() == [Status.OK]


async def test_adds_that_wait_for_their_ledgers_to_be_loaded_pause_connections_that_send_more() -> None:
    scene = Scene(ServiceSettings(adds_in_flight_bytes_max=10_000))
    ledgers = [LedgerId(each) for each in range(20, 24)]
    others = FakeConnection()
    scene.bookie.handle(others.real, _requests(adds(0, ledger=ledgers[0])))
    assert not others.paused
    scene.bookie.handle(scene.connection.real, _requests(b"".join(adds(0, ledger=each) for each in ledgers[1:])))
    assert scene.connection.paused == PAUSED_BY_LOADING
    assert not others.paused, "it sent nothing since"
    await scene.turn()
    assert not scene.connection.paused
    scene.journal.settle()
    assert scene.statuses() == [Status.OK] * 3
    await scene.bookie.close()


async def test_adds_to_a_ledger_that_cannot_be_loaded_are_no_longer_counted() -> None:
    scene = Scene(ServiceSettings(adds_in_flight_bytes_max=4096))
    scene.storage.load_error = OSError("gone")
    for _ in range(3):
        await scene.handle(adds(0))
        assert scene.statuses() == [Status.IO_ERROR]
        assert not scene.connection.paused
    await scene.bookie.close()


def _requests(data: bytes) -> list[Request]:
    return ServerCodec().feed(data)
