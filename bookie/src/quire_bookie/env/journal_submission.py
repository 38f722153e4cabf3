"""What every way to submit to the journal shares: one write in flight at a time, and who is told of its end.

Owns the state of the submission, not the file: how bytes get there is for the adapters that build on this. `done` is
never called inside `submit`, and once for each.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from quire_bookie.limits import JOURNAL_ALIGNMENT_BYTES

Done: TypeAlias = Callable[[BaseException | None], None]


class JournalSubmission:
    """The part of a `JournalFile` that is the same for all. Open and use it on one event loop."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._done: Done | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def path(self) -> str:
        """The path it was opened with."""
        return self._path

    @property
    def alignment_bytes(self) -> int:
        """A page, which no device's block exceeds: what is acknowledged never shares one with what comes later."""
        return JOURNAL_ALIGNMENT_BYTES

    def _begin(self, done: Done) -> None:
        """A submission begins; `_finish` must follow, in a later step of the loop."""
        assert self._done is None, "one submission is in flight at a time"
        self._done = done
        self._idle.clear()

    def _finish(self, error: BaseException | None) -> None:
        done, self._done = self._done, None
        self._idle.set()
        if done is not None:
            done(error)

    async def _settled(self) -> None:
        """Until nothing is in flight."""
        await self._idle.wait()
