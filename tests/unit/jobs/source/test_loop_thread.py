"""Iteration over items that a loop in another thread makes."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

pytest.importorskip("pyspark")

from quire_jobs.source.loop_thread import LoopThread


def test_items_come_in_order_and_one_is_ahead() -> None:
    made: list[int] = []

    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(5):
            made.append(number)
            yield number

    with LoopThread("test") as loop:
        found = []
        for number in loop.iterate(numbers):
            found.append(number)
            loop.run(lambda: asyncio.sleep(0))
            assert len(made) <= number + 2
        assert found == made == [0, 1, 2, 3, 4]


def test_an_error_arrives_after_the_items_before_it() -> None:
    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        raise ValueError("broken")

    with LoopThread("test") as loop:
        stream = loop.iterate(failing)
        assert next(stream) == 1
        with pytest.raises(ValueError, match="broken"):
            next(stream)


def test_a_caller_that_stops_early_closes_the_generator() -> None:
    ended: list[str] = []

    async def endless() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
            yield 2
        finally:
            ended.append("closed")

    with LoopThread("test") as loop:
        stream = loop.iterate(endless)
        assert next(stream) == 1
        stream.close()  # type: ignore[attr-defined]
        assert ended == ["closed"]
