"""Bookies killed with SIGKILL for as long as it takes, under a writer whose every acknowledgement is checked after.

20 s by default; `QUIRE_KILL_SECONDS=600` goes on for ten minutes, `QUIRE_KILL_SEED=n` repeats a run's choices.
"""

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.model import LedgerState
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.etcd_cluster import ClusterBookie, EtcdCluster
from tests.support.ledger_load import LedgerLoad, ledger_client

SECONDS = float(os.environ.get("QUIRE_KILL_SECONDS", "20"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + 3 * SECONDS)]
SETTINGS = {"zkTimeout": "3000"}


@pytest.fixture
def chance() -> random.Random:
    """A seed that is printed."""
    seed = int(os.environ.get("QUIRE_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"repeat with QUIRE_KILL_SEED={seed}")
    return random.Random(seed)


@asynccontextmanager
async def cluster_of(folder: Path, bookies: int, **settings: str) -> AsyncIterator[EtcdCluster]:
    """Bookies on an etcd."""
    cluster = await asyncio.to_thread(EtcdCluster, folder)
    try:
        await asyncio.to_thread(lambda: cluster.add_bookies(bookies, **SETTINGS, **settings))
        yield cluster
    finally:
        await asyncio.to_thread(cluster.close)


async def test_bookies_killed_in_a_loop_lose_nothing_that_was_acknowledged(
    tmp_path: Path, chance: random.Random
) -> None:
    kills = 0
    async with cluster_of(tmp_path, 4) as cluster, ledger_client(cluster.etcd.url) as client:
        load = LedgerLoad(client)
        load.start()
        end_s = time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            await load.progress(chance.randrange(1, 400))
            victim = chance.choice(cluster.bookies)
            await asyncio.to_thread(victim.kill)
            kills += 1
            if chance.random() < 0.5:
                await load.progress(chance.randrange(1, 200))  # goes on while it is away
            await asyncio.to_thread(victim.start)
        await load.stop()
        async with ledger_client(cluster.etcd.url) as other:
            await load.check(other)
        failures = Counter(type(error).__name__ for error in load.failures)
        print(f"{kills} kills, {load.total} entries of {len(load.acknowledged)} ledgers; {dict(failures)}")
    assert kills >= 2
    assert load.total > 100 * kills


async def test_all_bookies_killed_at_once_lose_nothing_that_was_acknowledged(
    tmp_path: Path, chance: random.Random
) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        for _ in range(2):
            async with ledger_client(cluster.etcd.url) as client:
                load = LedgerLoad(client)
                load.start()
                await load.progress(chance.randrange(200, 600))
                await asyncio.gather(*(asyncio.to_thread(bookie.kill) for bookie in cluster.bookies))
                await asyncio.gather(*(asyncio.to_thread(bookie.start) for bookie in cluster.bookies))
                await load.progress(100)
                await load.stop()
            async with ledger_client(cluster.etcd.url) as other:
                await load.check(other)


async def test_three_bookies_go_on_without_any_one_of_them_and_the_pause_is_printed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with cluster_of(tmp_path, 3) as cluster, ledger_client(cluster.etcd.url) as client:
        load = LedgerLoad(client, entries_of_a_ledger=10**9)
        load.start()
        await load.progress(500)
        load.failures.clear()  # bookies that have just started may not respond in time to the first creation
        for at, victim in enumerate(cluster.bookies):
            load.watch_pause()
            await load.progress(500)
            usual_s = load.longest_pause_s
            load.watch_pause()
            await asyncio.to_thread(victim.kill)
            await load.progress(1000)
            pause_s = load.longest_pause_s
            print(f"bookie {at} killed: pause {pause_s * 1000:.0f} ms, before {usual_s * 1000:.0f} ms")
            record_property(f"pause_{at}_ms", round(pause_s * 1000))
            await asyncio.to_thread(victim.start)
            # It has to take its place again before the next one goes: then there are two that have everything.
            async with asyncio.timeout(60):
                while victim.bookie_id not in load.replicas:  # noqa: ASYNC110 - another process does it
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1)  # what was measured next would be how slowly it begins
        await load.stop()
        assert not load.failures, str(load.failures[0])
        assert len(load.acknowledged) == 1
        async with ledger_client(cluster.etcd.url) as other:
            await load.check(other)


async def test_the_disk_of_a_bookie_is_wiped_and_autorecovery_restores_every_replica(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, autoRecoveryDaemonEnabled="true") as cluster:
        url = cluster.etcd.url
        async with ledger_client(url) as client:
            load = LedgerLoad(client, entries_of_a_ledger=200)
            load.start()
            await load.progress(900)
            wiped = cluster.bookies[0]
            lost = wiped.bookie_id
            await asyncio.to_thread(wiped.kill)
            await load.progress(100)
            shutil.rmtree(wiped.folder)
            fresh = ClusterBookie(tmp_path / "fresh", cluster.etcd, wiped.settings)
            cluster.bookies.append(fresh)
            await asyncio.to_thread(fresh.start)
            await load.progress(300)
            await load.stop()
            store = await open_metadata_store(url, MetadataSettings())
            await RecoveryControls(store).set_lost_bookie_delay_s(0)
            async with asyncio.timeout(100):
                for ledger in load.acknowledged:
                    while True:
                        metadata = await client.read_metadata(ledger)
                        if not any(lost in segment.ensemble for segment in metadata.segments):
                            break
                        await asyncio.sleep(0.2)
            await store.close()
            for ledger in load.acknowledged:
                assert (await client.read_metadata(ledger)).state is LedgerState.CLOSED
        # What the fresh one holds is all that there is to read now.
        for bookie in cluster.bookies[1:3]:
            await asyncio.to_thread(bookie.kill)
        async with ledger_client(url) as alone:
            await load.check(alone, recover=False)
