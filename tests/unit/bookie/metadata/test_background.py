"""Background tasks: an unforeseen error is seen, an ordinary end is not."""

import asyncio
import logging

import pytest

from quire_bookie.metadata.background import start_background

log = logging.getLogger("quire.test")


async def test_an_unforeseen_error_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    told = asyncio.Event()

    async def work() -> None:
        raise RuntimeError("a mistake")

    start_background(work(), "the-task", log, told.set)
    async with asyncio.timeout(10):
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
