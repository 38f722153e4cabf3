"""Real bookies and a real etcd behind networks that cut, hold, delay and tear: what was acknowledged is there."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire_bookie.model import BookieId
from tests.support.etcd_cluster import ClusterBookie
from tests.support.etcd_server import EtcdServer
from tests.support.ledger_load import LedgerLoad, ledger_client
from tests.support.relay import BOTH, Relay, Way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BOOKIES = 4
SETTINGS = {"zkTimeout": "3000"}


@dataclass(frozen=True)
class Through:
    """An etcd behind a relay."""

    relay: Relay

    @property
    def endpoint(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.relay.port}"


@dataclass(frozen=True)
class Network:
    """Bookies with the relays before them, and those between each of them and etcd."""

    bookies: list[ClusterBookie]
    before: list[Relay]
    to_etcd: list[Relay]

    def place_of(self, bookie: BookieId) -> int:
        """Its index in the lists."""
        return next(at for at, one in enumerate(self.bookies) if one.bookie_id == bookie)


@asynccontextmanager
async def network(folder: Path, etcd: EtcdServer) -> AsyncIterator[Network]:
    """Everything started; nothing broken."""
    async with AsyncExitStack() as undo:
        to_etcd = [Relay(etcd.port) for _ in range(BOOKIES)]
        for relay in to_etcd:
            await relay.open()
            undo.push_async_callback(relay.close)
        bookies = [ClusterBookie(folder / f"b{at}", Through(relay), SETTINGS) for at, relay in enumerate(to_etcd)]
        for bookie in bookies:
            undo.callback(bookie.kill)
        await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in bookies))
        before = [Relay(bookie.port) for bookie in bookies]
        for relay in before:
            await relay.open()
            undo.push_async_callback(relay.close)
        yield Network(bookies, before, to_etcd)


Fault = Callable[[Relay, Relay], Awaitable[None]]
"""What is done to the relay before a bookie and to the one between it and etcd."""


async def _cut(before: Relay, _: Relay) -> None:
    await before.cut()


async def _refuse(before: Relay, _: Relay) -> None:
    await before.cut(refuse=True)


async def _hold_requests(before: Relay, _: Relay) -> None:
    before.hold({Way.TO})


async def _hold_answers(before: Relay, _: Relay) -> None:
    before.hold({Way.BACK})


async def _hold_both(before: Relay, to_etcd: Relay) -> None:
    before.hold(BOTH)
    to_etcd.hold(BOTH)


async def _delay(before: Relay, _: Relay) -> None:
    before.delay(0.1)


async def _delay_answers(before: Relay, _: Relay) -> None:
    before.delay(0.3, {Way.BACK})


async def _tear_requests(before: Relay, _: Relay) -> None:
    before.tear({Way.TO})


async def _tear_answers(before: Relay, _: Relay) -> None:
    before.tear({Way.BACK})


async def _cut_from_etcd(_: Relay, to_etcd: Relay) -> None:
    await to_etcd.cut(refuse=True)


async def _tear_from_etcd(_: Relay, to_etcd: Relay) -> None:
    to_etcd.tear()


FAULTS: tuple[Fault, ...] = (
    _cut,
    _refuse,
    _hold_requests,
    _hold_answers,
    _hold_both,
    _delay,
    _delay_answers,
    _tear_requests,
    _tear_answers,
    _cut_from_etcd,
    _tear_from_etcd,
)


async def test_whatever_one_link_after_the_other_does_writing_goes_on_and_nothing_is_lost(
    tmp_path: Path, etcd_server: EtcdServer
) -> None:
    seed = int(os.environ.get("QUIRE_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"repeat with QUIRE_KILL_SEED={seed}")
    chance = random.Random(seed)
    async with network(tmp_path, etcd_server) as net:
        relays = {bookie.port: relay for bookie, relay in zip(net.bookies, net.before, strict=True)}
        async with ledger_client(etcd_server.url, relays) as client:
            load = LedgerLoad(client, entries_of_a_ledger=1_000)
            load.start()
            await load.progress(200)
            for fault in chance.sample(FAULTS, len(FAULTS)):
                at = net.place_of(chance.choice(load.ensemble))
                load.watch_pause()
                await fault(net.before[at], net.to_etcd[at])
                await load.progress(300)
                await asyncio.sleep(chance.random())
                await load.progress(1)
                print(f"{fault.__name__} at {at}: longest pause {load.longest_pause_s * 1000:.0f} ms")
                await net.before[at].heal()
                await net.to_etcd[at].heal()
            await load.stop()
        assert all(bookie.is_running for bookie in net.bookies)
        async with ledger_client(etcd_server.url) as direct:
            await load.check(direct)
    assert load.total > 300 * len(FAULTS)


async def test_a_cluster_cut_from_etcd_goes_on_with_its_open_ledger(tmp_path: Path, etcd_server: EtcdServer) -> None:
    async with network(tmp_path, etcd_server) as net:
        relay = Relay(etcd_server.port)
        await relay.open()
        async with ledger_client(f"etcd://127.0.0.1:{relay.port}") as client:
            load = LedgerLoad(client, entries_of_a_ledger=10**9)
            load.start()
            await load.progress(100)
            for each in (relay, *net.to_etcd):
                await each.cut(refuse=True)
            await load.progress(300)
            for each in (relay, *net.to_etcd):
                await each.heal()
            await load.progress(100)
            await load.stop()
            assert not load.failures, str(load.failures[0])
            assert len(load.acknowledged) == 1
        await relay.close()
        async with ledger_client(etcd_server.url) as direct:
            await load.check(direct)
