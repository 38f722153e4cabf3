"""The auditor's election: one leader at a time, the next after its session, and the value of Pulsar's driver."""

import asyncio
import random

from quire_bookie.metadata.election import LEADER, Election, current_leader
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.golden_etcd import history


def test_the_value_is_that_of_pulsars_driver() -> None:
    async def work(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        store = SimMetadataStore(server)
        await Election(store, "127.0.0.1:3185").win()
        golden = next(change for change in history() if change.key == LEADER)
        assert server.nodes[LEADER].value == golden.value
        assert await current_leader(store) == "127.0.0.1:3185"

    simulate(work, seed=1)


def test_the_next_candidate_leads_when_the_session_of_the_first_ends() -> None:
    async def work(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        stores = [SimMetadataStore(server) for _ in range(3)]
        first, second, third = (Election(store, f"b{n}") for n, store in enumerate(stores))
        await first.win()
        waiting = [asyncio.ensure_future(second.win()), asyncio.ensure_future(third.win())]
        await asyncio.sleep(5)
        assert not any(task.done() for task in waiting)
        await stores[0].close()
        await asyncio.sleep(1)
        assert [task.done() for task in waiting].count(True) == 1
        assert [await second.still_leads(), await third.still_leads()].count(True) == 1
        for task in waiting:
            task.cancel()

    simulate(work, seed=1)


def test_a_leader_that_lost_its_session_detects_it() -> None:
    async def work(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        store = SimMetadataStore(server)
        election = Election(store, "b1")
        await election.win()
        assert await election.still_leads()
        store.expire()
        assert not await election.still_leads()
        await election.win()
        assert await election.still_leads()
        await election.resign()
        assert await current_leader(store) is None

    simulate(work, seed=1)


def test_a_restarted_leader_replaces_its_own_stale_node() -> None:
    async def work(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        await Election(SimMetadataStore(server), "b1").win()
        began = loop.time()
        await Election(SimMetadataStore(server), "b1").win()
        assert loop.time() - began < 1.0

    simulate(work, seed=1)


def test_an_election_survives_outages_and_lost_responses() -> None:
    async def work(loop: SimLoop) -> None:
        for seed in range(20):
            server = SimMetadata(random.Random(seed), unknown_chance=0.4)
            stores = [SimMetadataStore(server) for _ in range(3)]
            elections = [Election(store, f"b{n}") for n, store in enumerate(stores)]
            server.away = True
            tasks = [asyncio.ensure_future(election.win()) for election in elections]
            await asyncio.sleep(3)
            server.away = False
            done, pending = await asyncio.wait(tasks, timeout=200, return_when=asyncio.FIRST_COMPLETED)
            server.unknown_chance = 0.0
            leading = [await election.still_leads() for election in elections]
            assert len(done) == 1 and leading.count(True) == 1
            assert leading[tasks.index(next(iter(done)))]
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    simulate(work, seed=1)
