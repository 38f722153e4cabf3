"""Owns tasks that no caller awaits: each has an owner that names, watches and ends it.

An error of such a task is logged and counted, never lost. Independent of the tasks' work.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from quire_bookie.errors import QuireError

RESTART_PAUSE_S = 1.0
"""Pause before a kept task restarts; doubled with each failure in a row."""
RESTART_PAUSE_MAX_S = 60.0
SETTLED_S = 30.0
"""A kept task that has run this long since its last failure counts as healthy again."""
_log = logging.getLogger("quire.background")
T = TypeVar("T")


def start_background(
    work: Coroutine[Any, Any, None], name: str, log: logging.Logger, on_failure: Callable[[], None] = lambda: None
) -> "asyncio.Task[None]":
    """Start `work`, which runs as long as its owner; the caller keeps the task and cancels it.

    An error ends it: it is logged, and `on_failure` runs.
    """

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the task %s ended", name, exc_info=error)
            on_failure()

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(ended)
    return task


class Background:
    """Owns the running tasks of one owner. `failures`: how many ended with an error."""

    def __init__(self, log: logging.Logger = _log) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.failures = 0
        self.down: dict[str, str] = {}
        """Kept tasks that failed and have not settled since, with their last error."""

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T], what: str) -> "asyncio.Task[T]":
        """Run `work` until it ends or `close` cancels it; `what` names it in the log. The task may be awaited."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self.adopt(task)
        return task

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        """Own a task that another one began and does not await any more."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def start(self, work: Coroutine[Any, Any, object], what: str) -> None:
        """Run `work`; after `close` it is dropped unstarted."""
        if self._closed:
            work.close()
        else:
            self.spawn(work, what)

    def keep(self, make: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        """Run `make()`, and again after each error, until `close`. For work that must not end before its owner."""
        self.start(self._keep(make, what), what)

    async def _keep(self, make: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        loop, pause_s = asyncio.get_running_loop(), RESTART_PAUSE_S
        while True:
            begun = loop.time()
            settled = loop.call_later(SETTLED_S, self.down.pop, what, None)
            try:
                await make()
            except Exception as error:  # noqa: BLE001  root of the task: a defect, or an unexpected error
                self.failures += 1
                self.down[what] = f"{type(error).__name__}: {error}"
                if loop.time() - begun >= SETTLED_S:
                    pause_s = RESTART_PAUSE_S
                self._log.exception("%s failed, restarting it in %g s", what, pause_s)
            else:
                self.down.pop(what, None)
                return
            finally:
                settled.cancel()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_PAUSE_MAX_S)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        self.failures += 1
        if isinstance(error, QuireError):
            self._log.warning("%s failed: %s", task.get_name(), error)
        else:
            self._log.error("%s failed", task.get_name(), exc_info=error)

    async def drain(self) -> None:
        """Wait for the running tasks, and for those that they start."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def settle(self, patience_s: float) -> None:
        """Wait for the running tasks, but not longer than `patience_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)

    async def close(self) -> None:
        """Cancel the running tasks and wait for their end. A task that calls this is not cancelled."""
        self._closed = True
        current = asyncio.current_task()
        while tasks := [task for task in self._tasks if task is not current]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
