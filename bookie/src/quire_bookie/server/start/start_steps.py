"""Measures how long each step of a bookie's start took, for the log and a metric. Decides nothing.

Steps may overlap (index and journals are opened together), so their sum may exceed the whole.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

_log = logging.getLogger("quire.server.start")


class StartSteps:
    """Collects the seconds of each step by name, in the order in which the steps ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the body, even if it fails. Times of a repeated name add up."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            yield
        finally:
            self.note(name, loop.time() - began_s)

    def note(self, name: str, took_s: float) -> None:
        """Add a step that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + took_s
        _log.debug("start: %s took %.3f s", name, took_s)

    def text(self) -> str:
        """Return all steps in one line, for the log."""
        return ", ".join(f"{name} {took_s:.3f}" for name, took_s in self.seconds.items())
