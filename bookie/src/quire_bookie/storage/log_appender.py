"""One stream of appended records, the flushes' or the compaction's: one log after the other, where there is room.

Owns the log being written, the ones left before they were sealed, and what of them is not committed yet: `end_flush`
makes it durable, `committed` keeps it once the index names it, `rewind` takes all of it back. Leaves a folder that has
no room, and in one attempt never goes back to a folder in which a write found no space. A log that was left is sealed
as soon as its folder allows it, and never continued: of two logs of one stream the higher id has the newer records.
"""

import logging
from typing import Final, Protocol

from quire_bookie.errors import DiskFullError
from quire_bookie.storage.entry_log import LogWriter
from quire_bookie.storage.index_keys import log_key
from quire_bookie.storage.log_catalog import LogState, encode_log_state
from quire_bookie.storage.log_directories import LogDirectories
from quire_bookie.storage.settings import StorageStats

_log = logging.getLogger("quire.storage.logs")
_ORIGINS_MAX: Final = 64


class LogBook(Protocol):
    """What an appender needs of the set of all logs."""

    @property
    def next_log(self) -> int:
        """Id that the next log will get."""
        ...

    def directory_of(self, log: int) -> str:
        """The folder of a log."""
        ...

    async def create_log(self, directory: str) -> LogWriter:
        """A new log; DiskFullError."""
        ...

    async def remove_created(self, log: int) -> None:
        """Take back a log that no commit names."""
        ...

    async def sync_directories(self, paths: set[str]) -> None:
        """Make created and removed names durable."""
        ...

    def note_committed(self, state: LogState) -> None:
        """The index has this state."""
        ...


class LogAppender:
    """For one user at a time; the flushes' one is for the holder of the write lock.

    `floor_bytes`: what every file system keeps free; None takes the storage's reserve.
    """

    def __init__(
        self,
        book: LogBook,
        directories: LogDirectories,
        log_bytes_max: int,
        stats: StorageStats,
        floor_bytes: int | None = None,
    ) -> None:
        self._book = book
        self._directories = directories
        self._log_bytes_max = log_bytes_max
        self._stats = stats
        self._floor_bytes = directories.reserved_bytes if floor_bytes is None else floor_bytes
        self._writer: LogWriter | None = None
        self._left: list[LogWriter] = []
        self._excluded: set[str] = set()
        self._found_full = False
        self._opened: list[int] = []
        self._finished: list[tuple[LogWriter, LogState]] = []
        self._total_bytes = 0
        self._origins: dict[int, int] = {}

    @property
    def next_log(self) -> int:
        """Id that the next log will get; goes into the index with each commit."""
        return self._book.next_log

    def adopt(self, writer: LogWriter) -> None:
        """Go on with an unsealed log, the newest so far; older ones are sealed by the next flush."""
        self.leave_log()
        self._writer = writer

    def leave_log(self) -> None:
        """The next record goes to a new log, with a higher id than any until now."""
        if self._writer is not None:
            self._left.append(self._writer)
            self._writer = None

    async def begin(self) -> None:
        """A new attempt: look at the space, and try every folder again."""
        self._excluded.clear()
        await self._directories.look()

    def check_room(self, needed_bytes: int) -> None:
        """Refuse before the last bytes are gone: what gives space back needs them. DiskFullError."""
        room = self._directories.room_bytes(self._excluded, self._floor_bytes)
        if room < needed_bytes:
            raise DiskFullError(
                f"{needed_bytes} bytes to write, and room for {room} beside the reserve of "
                f"{self._floor_bytes} bytes: {self._directories.describe()}"
            )

    async def writer_with_room(self, size_bytes: int) -> LogWriter:
        """The log to append `size_bytes` to; DiskFullError when no folder has the room."""
        while True:
            writer = self._writer
            if writer is None:
                writer = self._writer = await self._create(size_bytes)
            path = self._book.directory_of(writer.log)
            if path in self._excluded:
                self.leave_log()  # not even sealed: that would want space in a folder that has none
            elif not writer.is_empty and writer.room(self._log_bytes_max) < size_bytes:
                await self._seal(writer)
                self._writer = None
            elif self._directories.take(path, size_bytes, self._floor_bytes):
                return writer
            else:
                self.leave_log()  # what is left there is the reserve, which is enough to seal it

    async def end_flush(self) -> list[tuple[bytes, bytes]]:
        """Make everything appended durable; returns the log states to commit with the index."""
        if self._writer is not None and self._writer.is_dirty:
            self._finished.append((self._writer, await self._writer.end_flush()))
        for writer in list(self._left):
            path = self._book.directory_of(writer.log)
            if writer.is_dirty or not self._directories[path].out_of_space:
                await self._seal(writer)
                self._left.remove(writer)
        await self._book.sync_directories({self._book.directory_of(log) for log in self._opened})
        return [(log_key(state.log), encode_log_state(state)) for _writer, state in self._finished]

    async def committed(self) -> None:
        """The states of `end_flush` are in the index."""
        finished, self._finished, self._opened = self._finished, [], []
        for writer, state in finished:
            self._book.note_committed(state)
            self._total_bytes += state.durable_bytes - writer.committed.durable_bytes
            self._origins[state.log] = self._total_bytes - state.durable_bytes
            if len(self._origins) > _ORIGINS_MAX:
                del self._origins[min(self._origins)]
            writer.commit(state)
            if state.sealed:
                await writer.close()
        if self._writer is not None and self._directories.has_better_than(self._book.directory_of(self._writer.log)):
            self.leave_log()

    async def rewind(self) -> bool:
        """Take back an unfinished flush: the space of its records is free again. Readers never saw them.

        True: a folder was found full, and another one may have the room: try again.
        """
        touched = {writer.log: writer for writer, _state in self._finished}
        touched |= {writer.log: writer for writer in self._left}
        if self._writer is not None:
            touched[self._writer.log] = self._writer
        opened, self._opened, self._finished, self._left, self._writer = self._opened, [], [], [], None
        for log, writer in sorted(touched.items()):
            if writer.out_of_space:
                self._exclude(self._book.directory_of(log))
            if log in opened:
                await writer.close()
            else:
                if writer.offset != writer.committed.durable_bytes:
                    await writer.rewind()
                self.adopt(writer)
        folders = {self._book.directory_of(log) for log in opened}
        for log in opened:
            await self._book.remove_created(log)
        await self._book.sync_directories(folders)
        found_full, self._found_full = self._found_full, False
        if found_full:
            await self._directories.look()
        return found_full

    def bytes_since(self, log: int, offset: int) -> int | None:
        """How much was appended since a place was written; None: long ago, or not by this appender."""
        origin = self._origins.get(log)
        return None if origin is None else self._total_bytes - origin - offset

    async def close(self) -> None:
        """Release the handles. The logs stay unsealed; the next start goes on with the newest and seals the others."""
        for writer in (*self._left, self._writer):
            if writer is not None:
                await writer.close()

    async def _create(self, size_bytes: int) -> LogWriter:
        path = self._directories.choose(size_bytes, self._excluded, self._floor_bytes)
        if path is None:
            raise DiskFullError(f"no folder has room for {size_bytes} bytes more: {self._directories.describe()}")
        try:
            writer = await self._book.create_log(path)
        except DiskFullError:
            self._exclude(path)
            raise
        self._opened.append(writer.log)
        return writer

    async def _seal(self, writer: LogWriter) -> None:
        self._finished.append((writer, await writer.seal()))
        self._stats.logs_sealed += 1

    def _exclude(self, path: str) -> None:
        if path not in self._excluded:  # only then another attempt differs from this one
            _log.warning("%s is full: entry logs go to other folders, if there are any with room", path)
            self._found_full = True
            self._excluded.add(path)
        self._directories.note_out_of_space(path)
