"""An event loop in a thread of its own, for Spark's blocking calls. Owns the thread; knows nothing of what runs there.

The loop goes on while Spark works on what it got: connections are kept alive, answers are taken, nothing times out
because a consumer is slow. What runs ahead is bounded: one item of each iteration.
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
    """Use it with `with`: the thread ends with the block."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        # A daemon: a worker that Spark kills in the middle of a task must not hang on it.
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
        """Wait for `work()`, run in the loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def iterate(self, make: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """The items of an asynchronous generator; the next one is made while the caller uses the one before."""
        stream = make()
        running: set[asyncio.Task[Any]] = set()

        async def following() -> tuple[T] | None:
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
            # A generator that still runs cannot be closed: whoever stops early cancels what runs ahead first.
            for task in list(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await stream.aclose()

        ahead = asyncio.run_coroutine_threadsafe(following(), self._loop)
        try:
            while (found := ahead.result()) is not None:
                ahead = asyncio.run_coroutine_threadsafe(following(), self._loop)
                yield found[0]
        finally:
            self.run(end)


_shared: dict[int, LoopThread] = {}
_sharing = threading.Lock()


def shared_loop() -> LoopThread:
    """The loop of this process for work that comes again and again: tasks of a worker, steps of a driver. Never ends.

    gRPC remembers every loop that it ever served until its last channel is collected: in a process that makes a loop
    for each piece of work, it calls into closed ones.
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
