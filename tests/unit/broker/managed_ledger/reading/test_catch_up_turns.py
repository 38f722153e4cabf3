"""Turns of reads far behind the tail."""

import asyncio

import pytest

from quire_broker.managed_ledger.reading.catch_up_turns import CatchUpTurns
from tests.sim.loop import simulate

_WAIT_MAX_S = 1.0


class Reading:
    """Reads that take 0.25 s each, and how many of them had a turn at once."""

    def __init__(self, at_once_max: int) -> None:
        self.turns = CatchUpTurns(at_once_max, _WAIT_MAX_S)
        self.running = self.most = 0
        self.order: list[int] = []

    async def read(self, number: int, takes_s: float = 0.25) -> None:
        async with self.turns.turn():
            self.order.append(number)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(takes_s)
            finally:
                self.running -= 1


def test_no_more_than_the_bound_run_at_once_and_in_order() -> None:
    async def scenario() -> None:
        reading = Reading(2)
        await asyncio.gather(*(reading.read(number) for number in range(8)))
        assert reading.most == 2
        assert reading.order == list(range(8))
        assert (reading.turns.stats.reads, reading.turns.stats.waits) == (8, 6)

    simulate(lambda _: scenario(), seed=1)


def test_a_read_that_is_not_answered_stops_the_others_only_for_a_limited_time() -> None:
    async def scenario() -> None:
        reading = Reading(1)
        silent = asyncio.ensure_future(reading.read(0, 1e6))
        await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(reading.read(number) for number in range(1, 4)))
        assert asyncio.get_running_loop().time() - began_s <= 3 * _WAIT_MAX_S
        silent.cancel()
        with pytest.raises(asyncio.CancelledError):
            await silent
        reading.most = 0
        await asyncio.gather(*(reading.read(number) for number in range(4, 8)))
        assert reading.most == 1, "late turns count until their end"

    simulate(lambda _: scenario(), seed=1)


@pytest.mark.parametrize("cancelled", range(5))
def test_a_cancelled_read_gives_its_turn_to_the_next_one(cancelled: int) -> None:
    async def scenario() -> None:
        reading = Reading(2)
        tasks = [asyncio.ensure_future(reading.read(number)) for number in range(5)]
        await asyncio.sleep(0.1)
        tasks[cancelled].cancel()
        await asyncio.wait(tasks)
        assert set(range(5)) - {cancelled} <= set(reading.order)
        reading.order, reading.most = [], 0
        await asyncio.gather(*(reading.read(number) for number in range(4)))
        assert (reading.order, reading.most) == ([0, 1, 2, 3], 2), "no turn is lost or added"

    simulate(lambda _: scenario(), seed=1)
