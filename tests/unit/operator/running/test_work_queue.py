"""The work queue."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from quire_operator.errors import UnreachableError
from quire_operator.running.work_queue import Key, WorkQueue

A, B = Key("Bookie", "ns", "a"), Key("Bookie", "ns", "b")


@asynccontextmanager
async def working(
    queue: WorkQueue, work: Callable[[Key], Awaitable[float | None]], at_once: int = 2
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

    async def work(key: Key) -> None:
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

    async def work(_: Key) -> None:
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

    async def work(key: Key) -> None:
        if key == A:
            await never.wait()
        other.set()

    async with working(queue, work):
        await queue.add(A)
        await queue.add(A)
        await queue.add(B)
        await other.wait()


async def test_a_failed_reconciliation_is_retried_and_counted() -> None:
    queue, well, tries = WorkQueue(back_off_s=0.001), asyncio.Event(), 0

    async def work(_: Key) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise UnreachableError("away")
        well.set()

    async with working(queue, work, at_once=1):
        await queue.add(A)
        await well.wait()
    assert (queue.stats.passes, queue.stats.failures) == (2, 1)


async def test_the_next_time_is_returned_and_a_change_brings_it_forward() -> None:
    queue, first, second = WorkQueue(), asyncio.Event(), asyncio.Event()

    async def work(_: Key) -> float:
        (second if first.is_set() else first).set()
        return 3600.0

    async with working(queue, work, at_once=1):
        await queue.add(A)
        await first.wait()
        await queue.add(A)
        await second.wait()
    assert queue.stats.passes == 2


async def test_an_unexpected_error_is_retried_and_stops_no_other_key() -> None:
    queue, passes, both = WorkQueue(back_off_s=0.001), [], asyncio.Event()

    async def work(key: Key) -> None:
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
