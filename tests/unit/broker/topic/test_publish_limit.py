"""The rate of publishing on the loop's clock: how much passes in a second, bursts, and changes of the rate."""

import asyncio
from collections.abc import Callable

import pytest

from quire_broker.policies.rates import PublishRate
from quire_broker.topic.publish_limit import BURST_S, PublishLimit
from tests.sim.loop import SimLoop, simulate


async def _passed(limit: PublishLimit, seconds: float, charge: Callable[[], bool]) -> int:
    """Publish for some seconds, as soon as the limit permits it. Return the number of sends."""
    loop = asyncio.get_running_loop()
    end_s, count = loop.time() + seconds, 0
    while loop.time() < end_s:
        count += 1
        if not charge():
            await asyncio.sleep(limit.ready_s - loop.time())
    return count


@pytest.mark.parametrize("rate", [PublishRate(50, 0), PublishRate(0, 5000), PublishRate(50, 1_000_000)])
def test_as_many_messages_pass_as_the_rate_permits_and_a_burst_of_a_second(rate: PublishRate) -> None:
    async def scenario(loop: SimLoop) -> int:
        limit = PublishLimit(rate)
        return await _passed(limit, 100, lambda: limit.charge(1, 100))

    assert 50 * 100 <= simulate(scenario, seed=1) <= 50 * (100 + BURST_S) + 1


def test_a_batch_counts_its_messages() -> None:
    async def scenario(loop: SimLoop) -> int:
        limit = PublishLimit(PublishRate(50))
        return await _passed(limit, 100, lambda: limit.charge(25, 100))

    assert 2 * 100 <= simulate(scenario, seed=1) <= 2 * (100 + BURST_S) + 1


def test_a_message_beyond_the_rate_passes_and_the_next_one_waits_longer() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, float, int]:
        limit = PublishLimit(PublishRate(0, 10))
        at_once = limit.charge(1, 1010)
        return at_once, limit.ready_s - loop.time(), limit.times

    at_once, wait_s, times = simulate(scenario, seed=1)
    assert (at_once, times) == (False, 1)
    assert 100 <= wait_s < 101


def test_what_was_not_used_for_longer_than_a_second_is_lost() -> None:
    async def scenario(loop: SimLoop) -> list[bool]:
        limit = PublishLimit(PublishRate(8))
        await asyncio.sleep(1000)
        return [limit.charge(1, 1) for _ in range(8)]

    assert simulate(scenario, seed=1) == [True] * 7 + [False]


def test_another_rate_ends_the_wait_and_the_same_one_does_not() -> None:
    async def scenario(loop: SimLoop) -> list[bool]:
        limit, waits = PublishLimit(PublishRate(0, 1)), []
        for rate in (PublishRate(0, 1), PublishRate(0, 2), PublishRate()):
            limit.charge(1, 1000)
            limit.use(rate)
            waits.append(limit.ready_s > loop.time())
        return [*waits, limit.active, limit.charge(1000, 1000)]

    assert simulate(scenario, seed=1) == [True, False, False, False, True]
