"""Journal submit with a thread: one durable write per group, for machines without Linux AIO.

Owns one file handle and one thread. Must never use the event loop except through `call_soon_threadsafe`. The thread
competes with the loop for the interpreter lock: opening such a file lowers the interpreter's switch interval to
0.5 ms for the whole process (measured: docs/decisions/0002-journal-submit.md).
"""

import os
import queue
import sys
import threading
from collections.abc import Sequence

from quire_bookie.env.durable import BUFFERS_PER_CALL_MAX, sync_all, sync_data, write_all
from quire_bookie.env.journal_submission import Done, JournalSubmission
from quire_bookie.model import Buffer

SWITCH_INTERVAL_S = 0.0005
_Job = tuple[int, Sequence[Buffer]]


def write_durably(fd: int, offset: int, buffers: Sequence[Buffer], *, synced: bool = True) -> None:
    """Block until all bytes are durable. OSError of the system; the state is then unknown.

    Without `synced`, block until all bytes are written.
    """
    flags = getattr(os, "RWF_DSYNC", 0) if synced else 0
    if len(buffers) > BUFFERS_PER_CALL_MAX:
        buffers = [b"".join(buffers)]  # one durable write
    write_all(fd, offset, buffers, flags)
    if synced and not flags:
        sync_data(fd)


class ThreadJournalFile(JournalSubmission):
    """Implements `JournalFile` for a preallocated file. Open and use it on one event loop."""

    def __init__(self, path: str, *, synced: bool = True) -> None:
        super().__init__(path)
        self._synced = synced
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._thread = threading.Thread(target=self._work, name="journal-submit", daemon=True)
        self._thread.start()

    def submit(self, offset: int, buffers: Sequence[Buffer], done: Done) -> None:
        """Write `buffers` at `offset`; `done` runs on the loop once they are durable or have failed."""
        self._begin(done)
        self._jobs.put((offset, buffers))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            offset, buffers = job
            failure: OSError | None = None
            try:
                write_durably(self._fd, offset, buffers, synced=self._synced)
            except OSError as error:
                failure = error
            try:
                self._loop.call_soon_threadsafe(self._finish, failure)
            except RuntimeError:
                return  # the loop is closed: no caller waits any more

    async def close(self) -> None:
        """Wait for the submission in flight, then end the thread and close the file."""
        await self._settled()
        self._jobs.put(None)
        self._thread.join()  # it is idle: returns at once
        try:
            if not self._synced:
                await self._loop.run_in_executor(None, sync_all, self._fd)
        finally:
            os.close(self._fd)
