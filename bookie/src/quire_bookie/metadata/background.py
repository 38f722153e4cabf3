"""Tasks that run for as long as their owner. An error nobody foresaw ends the task: it is logged, never swallowed."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any


def start_background(
    work: Coroutine[Any, Any, None], name: str, log: logging.Logger, on_failure: Callable[[], None] = lambda: None
) -> "asyncio.Task[None]":
    """Start `work`; the caller keeps the task and cancels it. `on_failure` runs if it ends by an error."""

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the task %s ended", name, exc_info=error)
            on_failure()

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(ended)
    return task
