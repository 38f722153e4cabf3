"""Tests of the pace of compaction: rate, budget and pauses, on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from quire_bookie import limits
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.server.upkeep.compaction_pace import LatencyWatch, RatePace
from tests.sim.loop import SimLoop, simulate


def simulated(work: Callable[[], Coroutine[None, None, None]]) -> None:
    async def main(_loop: SimLoop) -> None:
        await work()

    simulate(main, seed=1)


def pace(
    *,
    rate: float = 0.0,
    by_bytes: bool = True,
    until_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    slow: Callable[[], bool] = lambda: False,
) -> RatePace:
    return RatePace(rate=rate, by_bytes=by_bytes, until_s=until_s, stop=stop, slow=slow)


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(("by_bytes", "expected_s"), [(True, 10.0), (False, 2.0)])
def test_the_rate_is_by_bytes_or_by_entries(by_bytes: bool, expected_s: float) -> None:
    async def work() -> None:
        start = now_s()
        one = pace(rate=100.0, by_bytes=by_bytes)
        for _ in range(10):
            await one.spend(100, 20)
        assert now_s() - start == pytest.approx(expected_s)

    simulated(work)


def test_without_a_rate_it_only_yields_to_the_loop() -> None:
    async def work() -> None:
        start = now_s()
        await pace().spend(1 << 40, 1 << 20)
        assert now_s() == start

    simulated(work)


def test_lost_time_is_not_caught_up() -> None:
    async def work() -> None:
        one = pace(rate=100.0)
        await one.spend(100, 1)
        await asyncio.sleep(1000)
        start = now_s()
        await one.spend(500, 1)
        assert now_s() - start == pytest.approx(5.0)

    simulated(work)


def test_it_stops_when_its_budget_is_used_up_even_while_it_waits() -> None:
    async def work() -> None:
        start = now_s()
        one = pace(rate=1.0, until_s=start + 7.5)
        assert not one.stopping
        await one.spend(1000, 1)
        assert one.stopping
        assert now_s() - start < 10

    simulated(work)


def test_it_stops_when_it_is_suspended_even_while_it_waits() -> None:
    async def work() -> None:
        start = now_s()
        one = pace(rate=1.0, stop=lambda: now_s() > start + 20)
        await one.spend(1000, 1)
        assert one.stopping
        assert now_s() - start < 25

    simulated(work)


def test_it_pauses_while_client_requests_are_slow() -> None:
    async def work() -> None:
        start = now_s()
        one = pace(slow=lambda: now_s() < start + 5.5)
        await one.spend(10, 1)
        assert now_s() - start == pytest.approx(6.0)
        assert one.pauses == 6

    simulated(work)


def test_a_bookie_that_is_always_slow_is_still_compacted_slowly() -> None:
    async def work() -> None:
        start = now_s()
        one = pace(slow=lambda: True)
        await one.spend(10, 1)
        assert now_s() - start == pytest.approx(limits.COMPACTION_PAUSES_MAX * limits.COMPACTION_PAUSE_S)
        assert not one.stopping

    simulated(work)


def test_slow_is_a_p99_above_the_bound_since_the_last_result() -> None:
    adds, reads = LatencyHistogram(), LatencyHistogram()
    watch = LatencyWatch(lambda: (adds, reads), 0.1, 1.0)
    adds.observe(5.0, 1000)
    watch.begin(10.0)
    adds.observe(0.001, 1000)
    assert not watch.is_slow(11.0), "earlier slow requests do not count"
    adds.observe(0.001, 950)
    adds.observe(0.5, 50)
    assert not watch.is_slow(11.9), "a result is valid for its period"
    assert watch.is_slow(12.0)
    assert watch.is_slow(12.5), "and so does this one"
    assert not watch.is_slow(13.0), "without requests none is slow"
    reads.observe(1.0, 30)
    assert watch.is_slow(14.0), "reads count as well"


def test_a_few_slow_requests_prove_nothing() -> None:
    adds = LatencyHistogram()
    watch = LatencyWatch(lambda: (adds,), 0.1)
    watch.begin(0.0)
    adds.observe(5.0, 19)
    assert not watch.is_slow(10.0)


def test_a_bound_of_zero_never_pauses() -> None:
    adds = LatencyHistogram()
    watch = LatencyWatch(lambda: (adds,), 0.0)
    watch.begin(0.0)
    adds.observe(5.0, 1000)
    assert not watch.is_slow(10.0)


def test_histograms_that_were_replaced_are_followed() -> None:
    held = [LatencyHistogram()]
    held[0].observe(1.0, 100)
    watch = LatencyWatch(lambda: held, 0.1)
    watch.begin(0.0)
    held[0] = LatencyHistogram()
    assert not watch.is_slow(10.0)
    held[0].observe(1.0, 100)
    assert watch.is_slow(20.0)
