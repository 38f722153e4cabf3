"""Compare-and-set on a node whose answers get lost."""

import random

import pytest

from quire_bookie.errors import BadVersionError, MetadataUnavailableError
from quire_bookie.metadata.store import Put
from quire_broker.managed_ledger.patience import Backoff
from quire_broker.managed_ledger.stored_node import StoredNode
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.managed_ledger.world import SeededChance


def _node(server: SimMetadata) -> StoredNode:
    return StoredNode(SimMetadataStore(server), "/a/b", Backoff((0.01, 0.1), SeededChance(1)))


@pytest.mark.parametrize("seed", range(20))
def test_every_write_takes_effect_exactly_once_whatever_answers_are_lost(seed: int) -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(seed), unknown_chance=0.6)
        node = _node(server)
        assert await node.load() is None
        for number in range(20):
            also = [Put(f"/record/{number}", b"")] if number % 2 else []
            await node.write(b"%d" % number, also)
            assert server.nodes["/a/b"].value == b"%d" % number
            assert server.nodes["/a/b"].version == node.version == number
        await node.remove([Put("/record/end", b"")])
        assert "/a/b" not in server.nodes
        assert "/record/end" in server.nodes

    simulate(scenario, seed=seed)


def test_another_writer_is_noticed_and_nothing_is_written_over_it() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        first, second = _node(server), _node(server)
        await first.write(b"one")
        await second.load()
        await second.write(b"two")
        with pytest.raises(BadVersionError):
            await first.write(b"three")
        with pytest.raises(BadVersionError):
            await first.remove()
        assert server.nodes["/a/b"].value == b"two"

    simulate(scenario, seed=1)


def test_a_store_that_is_away_is_reported_as_not_done() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1), away=True)
        node = _node(server)
        with pytest.raises(MetadataUnavailableError):
            await node.write(b"one")
        server.away = False
        await node.write(b"two")
        assert node.version == 0

    simulate(scenario, seed=1)
