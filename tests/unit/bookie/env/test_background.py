"""Background tasks: an unforeseen error is seen, an ordinary end is not."""

import asyncio
import inspect
import logging

import pytest

from quire_bookie.env.background import Background, start_background
from quire_bookie.errors import QuireError

log = logging.getLogger("quire.test")


async def test_an_unforeseen_error_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    told = asyncio.Event()

    async def work() -> None:
        raise RuntimeError("a mistake")

    start_background(work(), "the-task", log, told.set)
    async with asyncio.timeout(60):
        await told.wait()
    assert "the-task" in caplog.text
    assert "a mistake" in caplog.text


async def test_an_end_and_a_cancellation_are_no_errors(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    tasks = [start_background(work(seconds), "t", log, lambda: told.append(1)) for seconds in (0, 1000)]
    await tasks[0]
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert told == []
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


async def test_closing_ends_what_runs_also_what_ending_tasks_start_but_not_the_one_that_closes() -> None:
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


async def test_settling_waits_no_longer_than_told() -> None:
    background = Background()
    background.start(asyncio.Event().wait(), "for ever")
    await background.settle(0.0)
    assert len(background) == 1
    await background.close()
