"""Runs an event loop in its own thread, for Spark's blocking calls. Owns the thread, not the work in it.

The loop keeps running while Spark processes results: connections stay alive, responses are read, and a slow consumer
causes no timeouts. Reading ahead is bounded to one item per iteration.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread. Use it with `with`: the thread ends with the block."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        # A daemon thread: it must not keep a worker alive that Spark kills in the middle of a task.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(_cancel_others)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work()` in the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def iterate(self, make: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Yield the items of an asynchronous generator; the next one is made while the caller uses the current one."""
        stream = make()
        running: set[asyncio.Task[Any]] = set()

        async def next_item() -> tuple[T] | None:
            task = asyncio.current_task()
            assert task is not None
            running.add(task)
            try:
                return (await anext(stream),)
            except StopAsyncIteration:
                return None
            finally:
                running.discard(task)

        async def end() -> None:
            # A running generator cannot be closed: a caller that stops early must first cancel the reads ahead.
            for task in list(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await stream.aclose()

        ahead = asyncio.run_coroutine_threadsafe(next_item(), self._loop)
        try:
            while (found := ahead.result()) is not None:
                ahead = asyncio.run_coroutine_threadsafe(next_item(), self._loop)
                yield found[0]
        finally:
            self.run(end)


_shared: dict[int, LoopThread] = {}
_sharing = threading.Lock()


def shared_loop() -> LoopThread:
    """Return the loop of this process, for repeated work: tasks of a worker, steps of a driver. It never ends.

    gRPC keeps every loop that it ever used until its last channel is collected. In a process that makes a loop for each
    piece of work, gRPC would call into closed loops.
    """
    with _sharing:
        process = os.getpid()  # a loop does not survive a fork
        if process not in _shared:
            _shared[process] = LoopThread("quire").__enter__()
        return _shared[process]


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
