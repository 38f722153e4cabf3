"""Observes this process while hostile input is served: errors in the log, lost exceptions, dead tasks, long steps.

A step is one callback of the event loop. Its cost is the processor time of the loop's thread, which does not depend on
other load of the machine.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STEP_CPU_S_MAX = 1.0
REPORTS = {"quire.server.adds"}
"""Loggers whose errors report the behaviour of a client: entries of another ledger under an id in use."""
TEXT_MAX = 4000
"""Maximum characters of a log line with its trace in a finding."""


class Findings(logging.Handler):
    """Collects faults of the process. `check` raises them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []
        self.longest_step_s = 0.0
        self.expected = ""
        """Text of errors that are no faults, once it is set."""
        self._format = logging.Formatter("%(name)s: %(message)s")
        self._alive: list[asyncio.Task[Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Record errors of the log."""
        if record.exc_info or (record.levelno >= logging.ERROR and record.name not in REPORTS):
            text = self._format.format(record)
            if not (self.expected and self.expected in text):
                self.found.append(text[:TEXT_MAX])

    def handle_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an exception that no code awaited."""
        self.found.append(f"{context.get('message')}: {context.get('exception')!r} in {context}"[:TEXT_MAX])

    def step(self, seconds: float, what: object) -> None:
        """Record the cost of a step."""
        self.longest_step_s = max(self.longest_step_s, seconds)
        if seconds > STEP_CPU_S_MAX:
            self.found.append(f"a step of the event loop took {seconds:.1f} s of processor time: {what!r}"[:TEXT_MAX])

    def keep_alive(self, tasks: set["asyncio.Task[Any]"]) -> None:
        """Require that these tasks do not end."""
        self._alive = sorted(tasks, key=lambda task: task.get_name())

    def check(self) -> None:
        """Raise AssertionError with all faults found since the last call."""
        gc.collect(0)  # a task reports an unretrieved exception when it is collected
        found, self.found = self.found, []
        found += [f"the task {task.get_name()} has ended: {task!r}" for task in self._alive if task.done()]
        self._alive = [task for task in self._alive if not task.done()]
        assert not found, "\n".join(found)


@contextmanager
def watched(loop: asyncio.AbstractEventLoop) -> Iterator[Findings]:
    """Observe the log and each step of the loop."""
    findings, root, run = Findings(), logging.getLogger(), asyncio.Handle._run
    level = root.level

    def timed(self: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(self)
        findings.step(time.thread_time() - began_s, self)

    root.addHandler(findings)
    root.setLevel(logging.INFO)
    loop.set_exception_handler(findings.handle_loop)
    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield findings
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        root.removeHandler(findings)
        root.setLevel(level)
        loop.set_exception_handler(None)
