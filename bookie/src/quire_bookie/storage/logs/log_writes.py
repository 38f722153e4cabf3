"""The pieces of one log on their way to its file: several at once, and what became of them.

Owns the tasks that write. Bounded: who begins a piece waits while as many are under way as may be. The first error is
kept until `reset`, but one that is final rather than that there is no space: nothing is written or synced after it.
Never returns from `settle` while something is still being written: the file may be cut or closed then.
"""

import asyncio

from quire_bookie.env.disk import DiskFile
from quire_bookie.errors import DiskFullError, QuireError, StorageError
from quire_bookie.storage.logs.log_window import LogWindow, Piece


class LogWrites:
    """Of one file."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self.out_of_space = False
        """A write or a sync found no space since the last `reset`."""

    async def begin(self, window: LogWindow, end: int, at_once_max: int) -> None:
        """Begin to write what lies before the offset `end`; waits while `at_once_max` pieces are under way.

        Raises what failed so far; the rest is found by `finish`.
        """
        await self._begin(window, window.take(end), at_once_max)
        await asyncio.sleep(0)  # the first one begins now, and not when the caller next waits for something
        self._raise()

    async def finish(self, window: LogWindow, end: int, at_once_max: int) -> None:
        """Write everything before the offset `end`, and sync once all that was begun is written. Raises its errors."""
        pieces = window.take(end)
        await self._begin(window, pieces[:-1], at_once_max)
        for last in pieces[-1:]:  # needs no task: a small flush is one piece
            await self._write(window, last)
        await self.settle()
        self._raise()
        try:
            await self._file.sync()
        except (QuireError, OSError) as error:
            self._note(error)
            raise

    async def settle(self) -> None:
        """Until nothing is being written, whatever fails."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def raise_final(self) -> None:
        """Raise an error that is not *no space*: nothing is known of the file after it, and cutting it helps nobody."""
        if not isinstance(self._error, DiskFullError):
            self._raise()

    def reset(self) -> None:
        """Another attempt begins. Nothing is under way."""
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
            for piece in pieces[begun:]:  # of a caller that was cancelled: these will never be written
                self._note(self._abandoned())
                window.forget(piece)

    async def _write(self, window: LogWindow, piece: Piece) -> None:
        """To its end; an error is kept, and a piece after it is not written."""
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
