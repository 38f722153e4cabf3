"""The work queue."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import kopf

from quire_operator.running import work_queue
from quire_operator.running.work_queue import Key, WorkQueue
from tests.sim.loop import SimLoop, simulate

A, B = Key("Bookie", "ns", "a"), Key("Bookie", "ns", "b")


@asynccontextmanager
async def working(
    queue: WorkQueue, work: Callable[[Key, int], Awaitable[float | None]], at_once: int = 2
) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(queue.run(work)) for _ in range(at_once)]
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_key_that_was_added_several_times_is_processed_once() -> None:
    queue, done = WorkQueue(), []
    for _ in range(5):
        await queue.add(A)
    await queue.add(B)
    both = asyncio.Event()

    async def work(key: Key, _: int) -> None:
        done.append(key)
        if len(done) == 2:
            both.set()

    async with working(queue, work):
        await both.wait()
    assert sorted(done) == [A, B]


async def test_a_key_is_never_processed_concurrently_and_is_processed_again_if_added_meanwhile() -> None:
    queue = WorkQueue()
    began, go_on, twice = asyncio.Event(), asyncio.Event(), asyncio.Event()
    running = most = passes = 0

    async def work(_: Key, retry: int) -> None:
        nonlocal running, most, passes
        running, passes = running + 1, passes + 1
        most = max(most, running)
        began.set()
        await go_on.wait()
        running -= 1
        if passes == 2:
            twice.set()

    async with working(queue, work, at_once=3):
        await queue.add(A)
        await began.wait()
        await queue.add(A)
        await queue.add(A)
        await asyncio.sleep(0)
        assert most == 1
        go_on.set()
        await twice.wait()
    assert (most, passes) == (1, 2)


async def test_a_busy_key_does_not_block_others() -> None:
    queue, other = WorkQueue(), asyncio.Event()
    never = asyncio.Event()

    async def work(key: Key, _: int) -> None:
        if key == A:
            await never.wait()
        other.set()

    async with working(queue, work):
        await queue.add(A)
        await queue.add(A)
        await queue.add(B)
        await other.wait()


def attempts(
    outcomes: list[Exception | None], until_s: float, again: Callable[[WorkQueue], Awaitable[None]]
) -> list[tuple[float, int]]:
    """Return virtual time and retry number of each attempt, of which the first ones end as given."""
    queue, found = WorkQueue(), list[tuple[float, int]]()

    async def work(_: Key, retry: int) -> None:
        found.append((asyncio.get_running_loop().time(), retry))
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome

    async def scenario(loop: SimLoop) -> None:
        began_s = loop.time()
        running = asyncio.ensure_future(queue.run(work))
        await queue.add(A)
        await again(queue)
        await asyncio.sleep(until_s)
        running.cancel()
        found[:] = [(round(at_s - began_s, 3), retry) for at_s, retry in found]

    simulate(scenario, seed=1)
    assert queue.stats.passes == len(found)
    return found


async def nothing(_: WorkQueue) -> None:
    """Add no key."""


def test_a_temporary_error_is_retried_after_its_delay() -> None:
    outcomes: list[Exception | None] = [kopf.TemporaryError("away", delay=7.0), kopf.TemporaryError("away", delay=2.0)]
    assert attempts(outcomes, 60.0, nothing) == [(0.0, 0), (7.0, 1), (9.0, 2)]


def test_a_permanent_error_is_retried_only_after_a_change() -> None:
    async def change(queue: WorkQueue) -> None:
        await asyncio.sleep(40.0)
        await queue.add(A)

    assert attempts([kopf.PermanentError("broken")], 10.0, nothing) == [(0.0, 0)]
    assert attempts([kopf.PermanentError("broken")], 10.0, change) == [(0.0, 0), (40.0, 1)]


def test_a_permanent_error_is_retried_in_the_end_as_no_watch_may_report_what_mends_it() -> None:
    after_s = work_queue.RESYNC_S
    assert attempts([kopf.PermanentError("broken")], 2 * after_s, nothing) == [(0.0, 0), (after_s, 1)]


def test_another_error_is_retried_with_a_doubled_delay() -> None:
    outcomes: list[Exception | None] = [KeyError("running"), KeyError("running"), KeyError("running")]
    assert attempts(outcomes, 60.0, nothing) == [(0.0, 0), (0.5, 1), (1.5, 2), (3.5, 3)]


def test_a_success_begins_the_delays_anew() -> None:
    async def change(queue: WorkQueue) -> None:
        await asyncio.sleep(10.0)
        await queue.add(A)

    outcomes: list[Exception | None] = [KeyError("running"), None, KeyError("running")]
    assert attempts(outcomes, 60.0, change) == [(0.0, 0), (0.5, 1), (10.0, 0), (10.5, 1)]


def test_delays_have_a_maximum() -> None:
    assert work_queue.back_off_s(1_000_000) == work_queue.BACK_OFF_S_MAX


async def test_the_next_time_is_returned_and_a_change_brings_it_forward() -> None:
    queue, first, second = WorkQueue(), asyncio.Event(), asyncio.Event()

    async def work(_: Key, retry: int) -> float:
        (second if first.is_set() else first).set()
        return 3600.0

    async with working(queue, work, at_once=1):
        await queue.add(A)
        await first.wait()
        await queue.add(A)
        await second.wait()
    assert queue.stats.passes == 2


async def test_an_unexpected_error_is_retried_and_stops_no_other_key() -> None:
    queue, passes, both = WorkQueue(), [], asyncio.Event()

    async def work(key: Key, _: int) -> None:
        passes.append(key)
        if key == A:
            raise KeyError("running")
        if passes.count(A) > 1:
            both.set()

    await queue.add(A)
    async with working(queue, work, at_once=1):
        while not both.is_set():
            await queue.add(B)
            await asyncio.sleep(0.001)
    assert queue.stats.failures >= 2
