"""Background tasks: an unexpected error is reported, a normal end is not."""

import asyncio
import inspect
import logging
from itertools import pairwise

import pytest

from quire_bookie.env.background import SETTLED_S, Background, start_background
from quire_bookie.errors import QuireError
from tests.sim.loop import SimLoop, simulate

log = logging.getLogger("quire.test")


async def test_an_unexpected_error_is_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    failed = asyncio.Event()

    async def work() -> None:
        raise RuntimeError("a mistake")

    start_background(work(), "the-task", log, failed.set)
    async with asyncio.timeout(60):
        await failed.wait()
    assert "the-task" in caplog.text
    assert "a mistake" in caplog.text


async def test_an_end_and_a_cancellation_are_not_errors(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    tasks = [start_background(work(seconds), "t", log, lambda: calls.append(1)) for seconds in (0, 1000)]
    await tasks[0]
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert calls == []
    assert caplog.text == ""


async def test_a_task_of_an_owner_may_be_awaited_and_its_error_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    background = Background(log)

    async def work(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    assert await background.spawn(work(None), "fine") == 7
    background.start(work(QuireError("foreseen")), "first")
    background.start(work(RuntimeError("a mistake")), "second")
    await background.drain()
    assert background.failures == 2
    assert len(background) == 0
    levels = {record.getMessage(): record.levelname for record in caplog.records}
    assert levels == {"first failed: foreseen": "WARNING", "second failed": "ERROR"}


async def test_closing_ends_running_tasks_and_those_that_they_start_but_not_the_caller() -> None:
    background = Background()
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if name == "parent":
                background.spawn(work("child"), "child")

    async def closing() -> None:
        await background.close()
        ended.append("closed")

    background.start(work("parent"), "parent")
    await asyncio.sleep(0)
    await background.spawn(closing(), "closing")
    assert ended[0] == "parent"
    assert ended[-1] == "closed"
    assert len(background) == 0
    late = work("late")
    background.start(late, "late")
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED, "dropped unstarted"
    assert len(background) == 0


async def test_settling_waits_no_longer_than_its_limit() -> None:
    background = Background()
    background.start(asyncio.Event().wait(), "for ever")
    await background.settle(0.0)
    assert len(background) == 1
    await background.close()


def test_a_kept_task_restarts_after_each_error_and_is_reported_until_it_settles() -> None:
    async def scenario(loop: SimLoop) -> None:
        background = Background()
        begun: list[float] = []

        async def work() -> None:
            begun.append(loop.time())
            await asyncio.sleep(1.0)
            if len(begun) <= 3:
                raise ValueError("a defect")
            await asyncio.Event().wait()

        background.keep(work, "watch")
        await asyncio.sleep(2.0)
        assert background.down == {"watch": "ValueError: a defect"}
        await asyncio.sleep(11.0)
        assert [after - before for before, after in pairwise(begun)] == [2.0, 3.0, 5.0]
        assert background.failures == 3
        assert "watch" in background.down, "it has not run for long"
        await asyncio.sleep(SETTLED_S)
        assert background.down == {}
        await background.close()
        assert len(background) == 0

    simulate(scenario, seed=1)


async def test_a_kept_task_that_ends_by_itself_is_not_restarted() -> None:
    background = Background()
    begun = []

    async def work() -> None:
        begun.append(1)

    background.keep(work, "once")
    await background.drain()
    assert begun == [1]
    assert background.down == {}
