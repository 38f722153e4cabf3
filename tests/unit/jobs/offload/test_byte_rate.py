import asyncio
from itertools import zip_longest

import pytest

from quire_jobs.offload.byte_rate import ByteRate
from tests.sim.loop import SimLoop


def seconds_for(rate: ByteRate, *sizes: int, pauses_s: tuple[float, ...] = ()) -> float:
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
    assert seconds_for(ByteRate(100), *[10] * 101) == pytest.approx(10.0)


def test_after_a_piece_larger_than_the_bucket_the_next_waits_longer() -> None:
    assert seconds_for(ByteRate(100), 1000, 100) == pytest.approx(10.9)


def test_pauses_save_up_a_tenth_of_a_second_and_no_more() -> None:
    assert seconds_for(ByteRate(100), 1, 1, 100, 100, pauses_s=(60, 60)) == pytest.approx(121.9)


def test_without_a_rate_nothing_waits() -> None:
    assert seconds_for(ByteRate(None), *[1 << 30] * 10) == 0.0
