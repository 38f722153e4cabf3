"""Writes the pieces of one log to its file, several at once, and tracks their outcome.

Owns the tasks that write. Bounded: the caller waits while the maximum is in flight. The first error is kept until
`reset`, unless a final error replaces a *no space*; after an error nothing is written or synced. Never returns from
`settle` while a write is running, as the file may be truncated or closed afterwards.
"""

import asyncio

from quire_bookie.env.disk import DiskFile
from quire_bookie.errors import DiskFullError, QuireError, StorageError
from quire_bookie.storage.logs.log_window import LogWindow, Piece


class LogWrites:
    """Owns the writes to one file."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self.out_of_space = False
        """Whether a write or a sync found no space since the last `reset`."""

    async def begin(self, window: LogWindow, end: int, at_once_max: int) -> None:
        """Start to write the bytes before the offset `end`; wait while `at_once_max` pieces are in flight.

        Raises an earlier error; `finish` raises later ones.
        """
        await self._begin(window, window.take(end), at_once_max)
        await asyncio.sleep(0)  # lets the first write start now, not when the caller next awaits
        self._raise()

    async def finish(self, window: LogWindow, end: int, at_once_max: int) -> None:
        """Write everything before the offset `end`, and sync once all pieces are written. Raises their errors."""
        pieces = window.take(end)
        await self._begin(window, pieces[:-1], at_once_max)
        for last in pieces[-1:]:  # without a task, as a small flush is one piece
            await self._write(window, last)
        await self.settle()
        self._raise()
        assert not self._tasks, "every piece is written before the sync"
        try:
            await self._file.sync()
        except (QuireError, OSError) as error:
            self._note(error)
            raise

    async def settle(self) -> None:
        """Wait until no write is running, regardless of errors."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def raise_final(self) -> None:
        """Raise an error other than *no space*: the file's state is then unknown, and truncating it does not help."""
        if not isinstance(self._error, DiskFullError):
            self._raise()

    def reset(self) -> None:
        """Clear the error for a new attempt. No write may be running."""
        assert not self._tasks, "pieces are still being written"
        self._error, self.out_of_space = None, False

    async def _begin(self, window: LogWindow, pieces: list[Piece], at_once_max: int) -> None:
        loop = asyncio.get_running_loop()
        begun = 0
        try:
            for piece in pieces:
                while len(self._tasks) >= at_once_max:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                task = loop.create_task(self._write(window, piece), name="storage-log-write")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                begun += 1
        finally:
            for piece in pieces[begun:]:  # the caller was cancelled: these are not written
                self._note(self._abandoned())
                window.forget(piece)

    async def _write(self, window: LogWindow, piece: Piece) -> None:
        """Write a piece, unless an earlier one failed; keep an error."""
        written = False
        try:
            if self._error is None:
                await self._file.write(piece.offset, [piece.data])
                written = True
        except (QuireError, OSError) as error:
            self._note(error)
        finally:
            if not written and self._error is None:
                self._error = self._abandoned()
            window.forget(piece)

    def _abandoned(self) -> StorageError:
        return StorageError(f"{self._file.path}: a write was abandoned")

    def _note(self, error: BaseException) -> None:
        if isinstance(error, DiskFullError):
            self.out_of_space = True
        if self._error is None or isinstance(self._error, DiskFullError):
            self._error = error

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
