"""The shared part of all journal submits: one write in flight at a time, and the call of `done` at its end.

Owns the state of the submission, not the file: the adapters that build on this write the bytes. `done` is never called
inside `submit`, and exactly once per submission.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from quire_bookie.limits import JOURNAL_ALIGNMENT_BYTES

Done: TypeAlias = Callable[[BaseException | None], None]


class JournalSubmission:
    """The common part of `JournalFile` implementations. Open and use it on one event loop."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._done: Done | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def path(self) -> str:
        """The path with which it was opened."""
        return self._path

    @property
    def alignment_bytes(self) -> int:
        """A page, which no device's block exceeds: acknowledged bytes never share a block with later ones."""
        return JOURNAL_ALIGNMENT_BYTES

    def _begin(self, done: Done) -> None:
        """Start a submission; `_finish` must follow, in a later iteration of the loop."""
        assert self._done is None, "one submission is in flight at a time"
        self._done = done
        self._idle.clear()

    def _finish(self, error: BaseException | None) -> None:
        done, self._done = self._done, None
        self._idle.set()
        if done is not None:
            done(error)

    async def _settled(self) -> None:
        """Wait until nothing is in flight."""
        await self._idle.wait()
