"""Requests that wait, over TCP at a started bookie: long polls and forced syncs, and what ends them early."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from quire_bookie.model import NO_ENTRY, DigestType, EntryId, LedgerId
from quire_bookie.wire import client_codec
from quire_bookie.wire.availability import decode
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.messages import AddResponse, ListEntriesResponse, ReadResponse, Response, Status
from tests.support.bookie_world import BookieWorld, RawPeer

LEDGER = LedgerId(7)
KEY = bytes(20)
DIGEST = Digest(DigestType.DUMMY, b"")
FOREVER_MS = 3_600_000


@pytest.fixture
async def world() -> AsyncIterator[BookieWorld]:
    """A bookie that has seen nothing yet."""
    world = BookieWorld()
    await world.start()
    yield world
    await world.stop()


async def peer_of(world: BookieWorld) -> RawPeer:
    """A new connection."""
    assert world.running is not None
    return await RawPeer.connect(world.running.port)


def answer(frame: bytes) -> Response:
    """The response in a frame of V3."""
    (response,) = ClientCodec(3).feed(frame)
    return response


def add(entry: int, *, lac: int = NO_ENTRY, deferred: bool = False) -> bytes:
    """An add of V3; its transaction is the entry's id."""
    body = DIGEST.encode_entry(LEDGER, EntryId(entry), EntryId(lac), 0, ())
    return client_codec.v3_add(entry, LEDGER, EntryId(entry), KEY, body, deferred_sync=deferred)


def poll(previous_lac: int, *, timeout_ms: int = FOREVER_MS) -> bytes:
    """A long poll with piggyback."""
    return client_codec.v3_read(
        77, LEDGER, NO_ENTRY, previous_lac=EntryId(previous_lac), timeout_ms=timeout_ms, piggyback=True
    )


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something has happened."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event: a counter of the product is watched
            await asyncio.sleep(0)


async def parked(world: BookieWorld, count: int = 1) -> None:
    """Until so many polls wait."""
    running = world.running
    assert running is not None
    await until(lambda: running.bookie.stats.long_polls_parked == count)


async def test_a_reader_that_waits_gets_the_next_entry_when_the_writer_confirms_it(world: BookieWorld) -> None:
    writer, reader = await peer_of(world), await peer_of(world)
    await writer.ask(add(0))
    reader.send(poll(-1))
    await parked(world)
    await writer.ask(add(1, lac=0))
    news = answer(await reader.receive())
    assert isinstance(news, ReadResponse)
    assert (news.status, news.entry, news.max_lac) == (Status.OK, 0, 0)
    assert news.data is not None and news.lac_update_ms is not None
    await writer.close()
    await reader.close()


async def test_a_deletion_ends_a_poll(world: BookieWorld) -> None:
    assert world.running is not None
    client = await peer_of(world)
    await client.ask(add(0))
    client.send(poll(-1))
    await parked(world)
    await world.running.storage.delete_ledger(LEDGER)
    assert answer(await client.receive()).status is Status.NO_LEDGER
    await client.close()


async def test_a_client_that_hangs_up_frees_its_polls(world: BookieWorld) -> None:
    client = await peer_of(world)
    await client.ask(add(0))
    client.send(poll(-1), poll(-1), poll(5))
    await parked(world, 3)
    await client.close()
    await parked(world, 0)


async def test_a_client_that_sends_its_last_word_is_answered_and_let_go(world: BookieWorld) -> None:
    client = await peer_of(world)
    await client.ask(add(0))
    client.send(poll(-1))
    await parked(world)
    client.writer.write_eof()
    last = answer(await client.receive())
    assert isinstance(last, ReadResponse)
    assert (last.status, last.data, last.max_lac) == (Status.OK, None, -1)
    assert await client.closed_by_bookie()
    await client.close()


async def test_a_stop_does_not_wait_for_polls(world: BookieWorld) -> None:
    client = await peer_of(world)
    await client.ask(add(0))
    client.send(poll(-1))
    await parked(world)
    async with asyncio.timeout(world.settings.drain_timeout_s):
        await world.stop()
    assert answer(await client.receive()).status is Status.OK
    await client.close()


async def test_a_poll_that_nothing_ends_is_answered_when_its_time_is_over(world: BookieWorld) -> None:
    client = await peer_of(world)
    await client.ask(add(0))
    none = answer(await client.ask(poll(-1, timeout_ms=1)))
    assert isinstance(none, ReadResponse)
    assert (none.status, none.entry, none.data) == (Status.OK, NO_ENTRY, None)
    await client.close()


async def test_what_was_forced_survives_a_power_cut(world: BookieWorld) -> None:
    client = await peer_of(world)
    client.send(*(add(entry, deferred=True) for entry in range(20)))
    answers = [answer(frame) for frame in await client.receive_all(20)]
    assert all(isinstance(one, AddResponse) and one.status is Status.OK for one in answers)
    assert answer(await client.ask(client_codec.v3_force(99, LEDGER))).status is Status.OK
    await client.close()
    await world.crash()
    await world.restart()
    reader = await peer_of(world)
    for entry in range(20):
        assert answer(await reader.ask(client_codec.v3_read(1, LEDGER, EntryId(entry)))).status is Status.OK
    await reader.close()


async def test_entries_are_listed_from_cache_and_from_disk(world: BookieWorld) -> None:
    assert world.running is not None
    client = await peer_of(world)
    for entry in (0, 1, 2, 7):
        await client.ask(add(entry))
    await world.running.storage.flush()
    for entry in (3, 8, 300):
        await client.ask(add(entry))
    listed = answer(await client.ask(client_codec.v3_list_entries(1, LEDGER)))
    assert isinstance(listed, ListEntriesResponse) and listed.availability is not None
    assert list(decode(listed.availability).ranges()) == [(0, 3), (7, 8), (300, 300)]
    await client.close()
