import asyncio
from itertools import zip_longest

import pytest

from quire_bookie.env.rate_limit import RateLimit
from tests.sim.loop import SimLoop


def seconds_for(rate: RateLimit, *sizes: int, pauses_s: tuple[float, ...] = ()) -> float:
    """Return the virtual seconds until pieces of these sizes have passed, with pauses after the first of them."""

    async def work() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for size, pause_s in zip_longest(sizes, pauses_s, fillvalue=0):
            await rate.take(int(size))
            await asyncio.sleep(pause_s)
        return loop.time() - began

    loop = SimLoop(1)
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


def test_after_a_tenth_of_a_second_bytes_pass_at_the_rate() -> None:
    assert seconds_for(RateLimit(100), *[10] * 101) == pytest.approx(10.0)


def test_after_a_piece_larger_than_the_bucket_the_next_waits_longer() -> None:
    assert seconds_for(RateLimit(100), 1000, 100) == pytest.approx(10.9)


def test_pauses_save_up_a_tenth_of_a_second_and_no_more() -> None:
    assert seconds_for(RateLimit(100), 1, 1, 100, 100, pauses_s=(60, 60)) == pytest.approx(121.9)


def test_without_a_rate_nothing_waits() -> None:
    assert seconds_for(RateLimit(0), *[1 << 30] * 10) == 0.0


def test_without_a_burst_each_piece_waits_for_its_own_time() -> None:
    assert seconds_for(RateLimit(100, burst_s=0), 100, 50, pauses_s=(60,)) == pytest.approx(61.5)


def test_callers_that_share_a_limit_pass_in_the_order_of_their_calls() -> None:
    async def work() -> list[tuple[int, float]]:
        loop, limit, passed = asyncio.get_running_loop(), RateLimit(10), list[tuple[int, float]]()
        began = loop.time()

        async def caller(number: int) -> None:
            await limit.take(10)
            passed.append((number, round(loop.time() - began, 6)))

        await asyncio.gather(*map(caller, range(3)))
        return passed

    loop = SimLoop(1)
    try:
        assert loop.run_until_complete(work()) == [(0, 0.9), (1, 1.9), (2, 2.9)]
    finally:
        loop.close()


def test_what_may_pass_at_once_and_the_wait_for_the_next_unit() -> None:
    async def work() -> list[tuple[float, float]]:
        rate, found = RateLimit(4, burst_s=2), []
        for units in (0, 6, 2, 4):
            rate.reserve(units)
            found.append((rate.saved(), rate.wait_s()))
        await asyncio.sleep(1.25)
        found.append((rate.saved(), rate.wait_s()))
        await asyncio.sleep(100)
        return [*found, (rate.saved(), rate.wait_s()), (RateLimit(0).saved(), RateLimit(0).wait_s())]

    loop = SimLoop(1)
    try:
        found = loop.run_until_complete(work())
    finally:
        loop.close()
    assert found == [(8, 0), (2, 0), (0, 0.25), (-4, 1.25), (1, 0), (8, 0), (float("inf"), 0)]


def test_before_its_first_use_a_bucket_is_full() -> None:
    assert RateLimit(4, burst_s=2).saved() == 8
