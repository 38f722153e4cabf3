"""Runs one test's coroutine on a loop of the test's choice."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run_on(loop: str, work: Coroutine[Any, Any, T], timeout_s: float = 30.0) -> T:
    """The result of `work` on the named kind of loop. Errors that a callback or a task lost fail the test."""
    lost: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        async with asyncio.timeout(timeout_s):
            return await work

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        result = runner.run(watched())
    assert not lost, lost
    return result
