"""What cursors do for many entries at once, and together with other cursors."""

import asyncio
import random

import pytest

from quire_broker.managed_ledger import Cursor, Position
from tests.unit.broker.managed_ledger.cursors_at_work import with_cursor
from tests.unit.broker.managed_ledger.world import World, append, numbered, run


@pytest.mark.parametrize("seed", range(20))
def test_many_acknowledgments_at_once_have_the_effect_of_each_alone(seed: int) -> None:
    async def scenario(world: World) -> None:
        process, ledger, together = await with_cursor(world, 40)
        alone: Cursor = await process.run(ledger.open_cursor("alone"))
        chance = random.Random(seed)
        ledger_ids = [record.ledger_id for record in ledger.ledgers]
        entries = [Position(ledger_id, entry) for ledger_id in ledger_ids for entry in range(-1, 45)]
        entries = [position for position in entries if position <= ledger.last_confirmed]
        while entries:
            count = chance.randint(1, 9)
            wanted = entries[:count] if chance.random() < 0.6 else chance.choices(entries[:25], k=count)
            entries = [position for position in entries if position not in wanted]
            together.acknowledge(wanted)
            for position in wanted:
                alone.acknowledge([position])
            assert together.mark_delete == alone.mark_delete
            assert list(together.acknowledged_ranges) == list(alone.acknowledged_ranges)
            assert together.backlog == alone.backlog
        assert together.backlog == 0

    run(scenario, ledger_entries_max=10 if seed % 2 else 1000)


def test_two_cursors_share_a_read_of_the_cache_in_one_turn_of_the_loop() -> None:
    async def scenario(world: World) -> None:
        process, ledger, one = await with_cursor(world, 3)
        two: Cursor = await process.run(ledger.open_cursor("two"))
        await append(ledger, *numbered(3, 3))
        first = one.read_cached(10, 1 << 20)
        assert [bytes(entry.data) for entry in first] == numbered(6)
        second = two.read_cached(10, 1 << 20)
        assert second is first
        assert one.read_position == two.read_position == Position(3, 6)
        assert not one.has_more
        two.rewind()
        assert two.read_cached(2, 1 << 20) is not first, "fewer are wanted"
        two.rewind()
        two.acknowledge([Position(3, 1)])
        assert [entry.position.entry_id for entry in two.read_cached(10, 1 << 20)] == [0, 2, 3, 4, 5]
        assert len(first) == 6, "what others share is not changed"
        await asyncio.sleep(0)
        one.rewind()
        assert one.read_cached(10, 1 << 20) is not first, "the next turn reads again"
        await append(ledger, *numbered(1, 6))
        assert [entry.position.entry_id for entry in one.read_cached(10, 1 << 20)] == [6]
        await process.run(one.close())
        assert not one.read_cached(10, 1 << 20)

    run(scenario)
