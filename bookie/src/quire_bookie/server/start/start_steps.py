"""How long each step of a bookie's start took: for the log, and kept as a metric. Decides nothing.

Steps may overlap (index and journals are opened together), so their sum may be more than the whole.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

_log = logging.getLogger("quire.server.start")


class StartSteps:
    """Seconds by the name of a step, in the order in which they ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure what happens inside, also when it fails. A name that comes again is added up."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            yield
        finally:
            self.note(name, loop.time() - began_s)

    def note(self, name: str, took_s: float) -> None:
        """Take a step that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + took_s
        _log.debug("start: %s took %.3f s", name, took_s)

    def text(self) -> str:
        """All of them in one line, for people."""
        return ", ".join(f"{name} {took_s:.3f}" for name, took_s in self.seconds.items())
