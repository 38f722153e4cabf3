"""The tasks that belong to nobody's await: one owner that names, watches and ends them."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("quire.broker.background")


class Background:
    """Runs coroutines until they end or until `close`. An unexpected error is logged and counted, and ends that one."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.failures = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, object], what: str) -> None:
        """Run `work`; after `close` it is dropped unstarted."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(self._guard(work, what), name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[Any, Any, object], what: str) -> None:
        try:
            await work
        except Exception:
            self.failures += 1
            log.exception("%s failed", what)

    async def drain(self) -> None:
        """Wait for what runs now, and for what that starts."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        self._closed = True
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(self._tasks)
