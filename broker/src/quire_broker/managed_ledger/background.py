"""Tasks that a managed ledger runs beside its callers, and the pauses between their attempts.

Every task has an owner here and is gone after `close`. An error that nobody awaits is logged and counted, never lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from quire_bookie.env.chance import Chance
from quire_bookie.errors import MetadataUnavailableError, QuireError

_log = logging.getLogger("quire.managed_ledger")
T = TypeVar("T")


class Background:
    """A set of running tasks. `failures`: how many ended with an error."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failures = 0

    def spawn(self, work: Coroutine[Any, Any, T], what: str) -> "asyncio.Task[T]":
        """Run `work` until it ends or `close` cancels it; `what` names it in the log."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.failures += 1
            if isinstance(error, QuireError):
                _log.warning("%s failed: %s", task.get_name(), error)
            else:
                _log.error("%s failed", task.get_name(), exc_info=error)

    async def settle(self, patience_s: float) -> None:
        """Wait for what runs, but not longer than `patience_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)

    async def close(self) -> None:
        """Cancel what runs and wait for its end. A task that calls this is spared."""
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Backoff:
    """Growing pauses, with jitter, in seconds between the two bounds."""

    def __init__(self, bounds_s: tuple[float, float], chance: Chance) -> None:
        self._bounds_s = bounds_s
        self._chance = chance
        self._next_s = bounds_s[0]

    def grow(self) -> float:
        """The next pause; each is about twice the one before."""
        pause_s = self._chance.uniform(self._next_s / 2, self._next_s)
        self._next_s = min(self._bounds_s[1], self._next_s * 2)
        return pause_s

    async def wait(self) -> None:
        """Pause."""
        await asyncio.sleep(self.grow())


async def patiently(action: Callable[[], Awaitable[T]], backoff: Backoff, patience_s: float) -> T:
    """The result of `action`, tried again while the metadata store is away, for `patience_s`; then its error."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            return await action()
        except MetadataUnavailableError:
            pause_s = backoff.grow()
            if loop.time() + pause_s > deadline:
                raise
            await asyncio.sleep(pause_s)
