"""Compare-and-set on a node whose responses get lost."""

import asyncio
import random

import pytest

from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import BadVersionError, MetadataUnavailableError, MetadataUnknownError
from quire_bookie.metadata.store import Put
from quire_broker.managed_ledger.nodes.stored_node import StoredNode
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.broker.managed_ledger.world import SeededChance


def _node(server: SimMetadata) -> StoredNode:
    return StoredNode(SimMetadataStore(server), "/a/b", Backoff((0.01, 0.1), SeededChance(1)))


@pytest.mark.parametrize("seed", range(20))
def test_every_write_takes_effect_exactly_once_with_any_lost_responses(seed: int) -> None:
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


class _LateStore(SimMetadataStore):
    """A store whose first write gets no response and takes effect only during the second one."""

    late: asyncio.Task[int] | None = None

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        write = super().put

        async def after(delay_s: float) -> int:
            await asyncio.sleep(delay_s)
            return await write(key, value, expected=expected, ephemeral=ephemeral)

        if self.late is None:
            self.late = asyncio.create_task(after(0.5))
            raise MetadataUnknownError("no answer")
        return await after(1.0)


def test_a_write_that_took_effect_late_is_no_other_writer() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        node = StoredNode(_LateStore(server), "/a/b", Backoff((0.01, 0.1), SeededChance(1)))
        await node.write(b"one")
        assert server.nodes["/a/b"].value == b"one"
        assert node.version == server.nodes["/a/b"].version == 0

    simulate(scenario, seed=1)
