"""The metadata store restarted, stopped and killed, and with three members its leader changed and each member replaced,
under writers on real bookies and under a broker.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.settings.metadata import MetadataSettings
from quire_broker.broker_process import start_broker
from quire_broker.server.broker import BrokerSettings, RunningBroker
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.topic.topics import TopicsSettings
from tests.support.broker_wire import Wire, received, stored
from tests.support.etcd_cluster import ClusterBookie, Metadata
from tests.support.etcd_members import EtcdMembers
from tests.support.etcd_server import EtcdServer
from tests.support.ledger_load import LedgerLoad, ledger_client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SETTINGS = {"zkTimeout": "3000"}
BOOKIES = 3


@asynccontextmanager
async def bookies_on(folder: Path, metadata: Metadata, **settings: str) -> AsyncIterator[list[ClusterBookie]]:
    """Some, started side by side."""
    async with AsyncExitStack() as undo:
        bookies = [ClusterBookie(folder / f"b{at}", metadata, SETTINGS | settings) for at in range(BOOKIES)]
        for bookie in bookies:
            undo.callback(bookie.kill)
        await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in bookies))
        yield bookies


async def new_ledgers(load: LedgerLoad, count: int) -> None:
    """Wait until so many more ledgers were made and written to: the metadata can be written again."""
    wanted = len(load.acknowledged) + count
    async with asyncio.timeout(60):
        while len(load.acknowledged) < wanted:  # noqa: ASYNC110 - other processes do it
            await asyncio.sleep(0.05)
    await load.progress(50)


async def all_registered(client: LedgerClient) -> None:
    """Wait until every bookie is."""
    async with asyncio.timeout(60):
        while len(client.writable_bookies) < BOOKIES:  # noqa: ASYNC110 - other processes do it
            await asyncio.sleep(0.05)


async def test_writing_goes_on_while_etcd_is_away_and_new_ledgers_follow_when_it_is_back(
    tmp_path: Path, etcd_server: EtcdServer
) -> None:
    async with bookies_on(tmp_path, etcd_server) as bookies, ledger_client(etcd_server.url) as client:
        open_ledger, many = LedgerLoad(client, entries_of_a_ledger=10**9), LedgerLoad(client, entries_of_a_ledger=100)
        for load in (open_ledger, many):
            load.start()
            await load.progress(300)
        for kill in (True, False):
            await asyncio.to_thread(etcd_server.kill if kill else etcd_server.stop)
            await open_ledger.progress(500)
            await asyncio.sleep(4 if kill else 0.5)  # once beyond the leases, once within
            await open_ledger.progress(100)
            await asyncio.to_thread(etcd_server.start)
            await new_ledgers(many, 3)
        await all_registered(client)
        for load in (open_ledger, many):
            await load.stop()
        assert not open_ledger.failures, str(open_ledger.failures[0])
        assert all(bookie.is_running for bookie in bookies)
        async with ledger_client(etcd_server.url) as other:
            for load in (open_ledger, many):
                await load.check(other)


async def test_leaders_of_etcd_come_and_go_and_nothing_is_lost(tmp_path: Path) -> None:
    members = EtcdMembers(tmp_path / "etcd")
    try:
        await asyncio.to_thread(members.start)
        async with bookies_on(tmp_path, members) as bookies, ledger_client(members.url) as client:
            load = LedgerLoad(client, entries_of_a_ledger=100)
            load.start()
            await load.progress(300)
            await asyncio.to_thread(members.hand_over)
            await new_ledgers(load, 3)
            for _ in range(2):
                leader = await asyncio.to_thread(members.leader)
                await asyncio.to_thread(leader.kill)
                await new_ledgers(load, 3)
                await asyncio.to_thread(leader.start)
                await new_ledgers(load, 1)
            await all_registered(client)
            await load.stop()
            assert all(bookie.is_running for bookie in bookies)
            async with ledger_client(members.url) as other:
                await load.check(other)
    finally:
        await asyncio.to_thread(members.close)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same addresses", "other addresses"])
async def test_every_member_of_etcd_is_replaced_under_load_and_nothing_is_lost(tmp_path: Path, elsewhere: bool) -> None:
    members = EtcdMembers(tmp_path / "etcd")
    refresh_s = 1 if elsewhere else 0
    follows = MetadataSettings(members_refresh_s=refresh_s)
    try:
        await asyncio.to_thread(members.start)
        former, first = members.ids(), members.endpoint
        async with (
            bookies_on(tmp_path, members, metadataMembersRefreshSeconds=str(refresh_s)) as bookies,
            ledger_client(members.url, metadata_settings=follows) as client,
        ):
            open_ledger = LedgerLoad(client, entries_of_a_ledger=10**9)
            many = LedgerLoad(client, entries_of_a_ledger=100)
            for load in (open_ledger, many):
                load.start()
                await load.progress(300)
            for number in range(len(members.members)):
                await asyncio.to_thread(members.replace, number, elsewhere=elsewhere)
                await new_ledgers(many, 3)
            assert not set(members.ids().values()) & set(former.values())
            assert (members.endpoint != first) == elsewhere
            await all_registered(client)
            for load in (open_ledger, many):
                await load.stop()
            assert not open_ledger.failures, str(open_ledger.failures[0])
            assert all(bookie.is_running for bookie in bookies)
            async with ledger_client(members.url) as other:
                for load in (open_ledger, many):
                    await load.check(other)
    finally:
        await asyncio.to_thread(members.close)


@asynccontextmanager
async def broker_on(etcd: EtcdServer, *, operation_timeout_s: float = 2.0) -> AsyncIterator[RunningBroker]:
    """In this process, with a session of three seconds and ledgers that are full after 100 entries."""
    metadata = await open_metadata_store(
        etcd.url, MetadataSettings(session_timeout_s=3.0, operation_timeout_s=operation_timeout_s)
    )
    clock, chance = SystemClock(), SystemChance()
    client = await LedgerClient.open(metadata, clock=clock, chance=chance)
    ledger = ManagedLedgerSettings(ledger_entries_max=100, rollover_age_min_s=0.0)
    settings = BrokerSettings(
        listen="127.0.0.1", advertise="127.0.0.1", port=0, http_port=0, topics=TopicsSettings(ledger=ledger)
    )
    broker = await start_broker(settings, metadata=metadata, ledger_client=client, clock=clock, chance=chance)
    try:
        yield broker
    finally:
        await broker.stop()
        await client.close()
        await metadata.close()


async def session_lost(broker: RunningBroker, times: int) -> None:
    """Wait until the broker's session was lost so often."""
    async with asyncio.timeout(30):
        while broker.metadata.stats.sessions_lost < times:  # type: ignore[attr-defined]  # noqa: ASYNC110 - etcd does it
            await asyncio.sleep(0.05)


async def certain_again(broker: RunningBroker) -> None:
    """Wait until every bundle is the broker's beyond doubt."""
    async with asyncio.timeout(60):
        while not all(broker.owners.certain(bundle) for bundle in broker.owners.held):  # noqa: ASYNC110 - etcd does it
            await asyncio.sleep(0.05)


async def test_a_broker_serves_its_topics_while_etcd_is_away_and_after_it_is_back(
    tmp_path: Path, etcd_server: EtcdServer
) -> None:
    async with bookies_on(tmp_path, etcd_server), broker_on(etcd_server) as broker:
        wire = await Wire.open(broker)
        await wire.lookup()
        await wire.produce()
        await stored(wire, range(150))
        (topic,) = broker.topics.loaded
        os.kill(etcd_server.pid, signal.SIGSTOP)
        await session_lost(broker, 1)
        await stored(wire, range(150, 450))
        assert len(topic.ledger.ledgers) == 2, "the open ledger goes on beyond its bound"
        os.kill(etcd_server.pid, signal.SIGCONT)  # it ends the lease: another one could take the bundles
        await certain_again(broker)
        await asyncio.to_thread(etcd_server.kill)
        await session_lost(broker, 2)
        await stored(wire, range(450, 600))
        await asyncio.to_thread(etcd_server.start)  # it knows the lease still
        await certain_again(broker)
        await stored(wire, range(600, 700))
        assert broker.topics.loaded == [topic], "no topic was closed"
        reader = await Wire.open(broker)
        await reader.lookup()
        assert await received(reader, 700) == list(range(700))
        assert len(topic.ledger.ledgers) > 2


async def test_admin_requests_are_answered_before_an_operation_of_etcd_ends(
    tmp_path: Path, etcd_server: EtcdServer
) -> None:
    async with bookies_on(tmp_path, etcd_server), broker_on(etcd_server, operation_timeout_s=60.0) as broker:
        os.kill(etcd_server.pid, signal.SIGSTOP)
        try:
            async with aiohttp.ClientSession(broker.urls.http) as session:
                read = await session.get("/admin/v2/namespaces/public")
                made = await session.put("/admin/v2/namespaces/public/new")
                for response in (read, made):
                    assert response.status == 503
                    assert "metadata store: no response in 2 s" in (await response.json())["reason"]
        finally:
            os.kill(etcd_server.pid, signal.SIGCONT)
        async with aiohttp.ClientSession(broker.urls.http) as session:
            names = await session.get("/admin/v2/namespaces/public")
            assert names.status == 200
