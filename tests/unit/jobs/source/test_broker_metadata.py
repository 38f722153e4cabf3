"""Metadata through the HTTP port of a real broker: the same nodes as in its store, and no change of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import MetadataError, MetadataUnavailableError
from quire_bookie.metadata import layout
from quire_bookie.metadata.store import EventKind, Get, Under
from quire_bookie.model import EntryId
from quire_jobs.errors import QuireJobError, SourceUnavailableError
from quire_jobs.source import broker_metadata
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.broker_metadata import BrokerMetadata, open_broker_metadata
from tests.sim.metadata import SimMetadataStore
from tests.support.broker_world import BrokerWorld, running_brokers
from tests.support.ports import free_port

FOLDER = f"{layout.ROOT}/00"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    """A broker and a bookie; 250 more nodes in the store."""
    async with running_brokers(tmp_path, 1) as found:
        for number in range(250):
            await found.sessions[0].put(f"{FOLDER}/{number:04d}", b"\xff%d" % number)
        yield found


@pytest.fixture
async def metadata(world: BrokerWorld) -> AsyncIterator[BrokerMetadata]:
    async with open_broker_metadata(f"http://127.0.0.1:{world.brokers[0].http_port}") as found:
        yield found


@pytest.fixture
def store(world: BrokerWorld) -> SimMetadataStore:
    return world.sessions[0]


async def test_reads_return_what_the_store_returns(metadata: BrokerMetadata, store: SimMetadataStore) -> None:
    key, missing = f"{FOLDER}/0007", f"{FOLDER}/none"
    assert await metadata.get(key) == await store.get(key)
    assert await metadata.get(missing) is None
    assert await metadata.read([Get(missing), Get(key)]) == await store.read([Get(missing), Get(key)])
    assert await metadata.children(FOLDER) == await store.children(FOLDER)
    assert await metadata.count(f"{FOLDER}/") == 250
    for options in ({}, {"page_keys": 100}, {"keys_only": True}):
        pages = [page async for page in metadata.scan(f"{FOLDER}/", **options)]
        assert pages == [page async for page in store.scan(f"{FOLDER}/", **options)]
    assert [page async for page in metadata.scan(f"{FOLDER}/none/")] == []


async def test_a_ledger_is_read_by_a_client_that_knows_only_the_broker(
    world: BrokerWorld, metadata: BrokerMetadata
) -> None:
    writer = await world.clients[0].create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    for payload in (b"one", b"two"):
        await writer.append(payload)
    await writer.close()
    client = await LedgerClient.open(metadata, clock=SystemClock(), chance=SystemChance())
    async with client:
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        async with reader:
            entries = await reader.read(EntryId(0), EntryId(1))
    assert [bytes(entry.payload) for entry in entries] == [b"one", b"two"]


async def test_writes_are_refused(metadata: BrokerMetadata) -> None:
    for attempt in (
        metadata.put(f"{FOLDER}/0007", b""),
        metadata.put_sequential(f"{FOLDER}/x-", b""),
        metadata.delete(f"{FOLDER}/0007"),
        metadata.transact([], []),
    ):
        with pytest.raises(MetadataError, match="cannot be changed"):
            await attempt
    with pytest.raises(MetadataError, match="single nodes"):
        await metadata.read([Under(f"{FOLDER}/", 3)])


async def test_a_watch_asks_its_reader_to_list_again_until_it_is_closed(
    metadata: BrokerMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_metadata, "_WATCH_S", 0.01)
    watch = await metadata.watch(f"{FOLDER}/")
    seen = []
    async for event in watch:
        seen.append((event.kind, event.key))
        if len(seen) == 2:
            await watch.close()
    assert seen == [(EventKind.RESYNC, f"{FOLDER}/")] * 2


async def scanned(lines: bytes, *, status: int = 200) -> list[Any]:
    """Scan a server that answers with these lines."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=lines, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server, BrokerHttp(f"http://127.0.0.1:{server.port}") as brokers:
        return [page async for page in BrokerMetadata(brokers).scan(f"{FOLDER}/")]


NODE = b'{"key": "/ledgers/00/1", "version": 0, "value": "eA=="}\n'


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (NODE, "incomplete"),
        (NODE + b'{"reason": "the members are gone"}\n', "the members are gone"),
        (NODE + b'{"no', "incomplete"),
    ],
)
async def test_a_scan_that_ends_early_is_an_error_and_not_a_shorter_listing(lines: bytes, reason: str) -> None:
    with pytest.raises(MetadataUnavailableError, match=reason):
        await scanned(lines)


async def test_a_line_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metadata, "_LINE_BYTES_MAX", 50)
    with pytest.raises(MetadataError, match="more than 50 bytes"):
        await scanned(NODE + b'{"nodes": 1}\n')


async def test_a_busy_broker_is_asked_again_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metadata, "_RETRIES_S", 0.1)
    with pytest.raises(MetadataUnavailableError, match="4 scans"):
        await scanned(b'{"reason": "4 scans are running"}', status=429)


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refusal_ends_the_job_when_the_metadata_are_opened(status: int) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"reason": "not permitted"}, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", refuse)
    async with TestServer(app) as server:
        with pytest.raises(QuireJobError, match="not permitted"):
            async with open_broker_metadata(f"http://127.0.0.1:{server.port}"):
                pass


async def test_a_broker_that_does_not_answer_is_named() -> None:
    async with asyncio.timeout(30):
        with pytest.raises(SourceUnavailableError, match="does not answer"):
            async with open_broker_metadata(f"http://127.0.0.1:{free_port()}"):
                pass
