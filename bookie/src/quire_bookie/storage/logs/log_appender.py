"""One stream of appended records, the flushes' or the compaction's, into a log in each of the folders that it may use.

Owns the logs being written, the ones left before they were sealed, and what of them is not committed yet: `end_flush`
makes it durable, `committed` keeps it once the index names it, `rewind` takes all of it back. Leaves a folder that has
no room, and in one attempt never goes back to a folder in which a write found no space. A log that was left is sealed
as soon as its folder allows it, and never continued.

Flushes take turns with the folders: from a whole piece of 4 MiB on the next records go to the next folder while the
pieces are written, and each flush begins where the one before did not end. So the folders fill evenly, their devices
write and sync at the same time, and a small flush syncs one file. Which of two records is newer, ages say (`log_ages`).
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from quire_bookie.errors import DiskFullError
from quire_bookie.limits import ENTRY_LOG_WRITES_MAX
from quire_bookie.storage.formats.index_keys import log_key
from quire_bookie.storage.formats.log_catalog import LogState, encode_log_state
from quire_bookie.storage.logs.entry_log import LogWriter
from quire_bookie.storage.logs.log_directories import LogDirectories
from quire_bookie.storage.settings import StorageStats

_log = logging.getLogger("quire.storage.logs")
_ORIGINS_MAX: Final = 64
T = TypeVar("T")


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


class _Lane:
    """A folder's log that is written."""

    __slots__ = ("writer",)

    def __init__(self, writer: LogWriter | None = None) -> None:
        self.writer = writer


class LogAppender:
    """For one user at a time; the flushes' one is for the holder of the write lock.

    `floor_bytes`: what every file system keeps free; None takes the storage's reserve. `parallel`: take turns with all
    folders; else one after the other.
    """

    def __init__(
        self,
        book: LogBook,
        directories: LogDirectories,
        log_bytes_max: int,
        stats: StorageStats,
        floor_bytes: int | None = None,
        *,
        parallel: bool = False,
    ) -> None:
        self._book = book
        self._directories = directories
        self._log_bytes_max = log_bytes_max
        self._stats = stats
        self._floor_at_most_bytes = directories.reserved_bytes if floor_bytes is None else floor_bytes
        self._floor_bytes = self._floor_at_most_bytes
        self._parallel = parallel
        self._lanes = [_Lane()]
        self._turn = 0
        self._age = 0
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
        """Go on with an unsealed log, the newest so far of its folder; older ones are sealed by the next flush."""
        path = self._book.directory_of(writer.log)
        for lane in self._lanes:
            if lane.writer is None or not self._parallel or self._book.directory_of(lane.writer.log) == path:
                self._leave(lane)
                lane.writer = writer
                return
        self._lanes.append(_Lane(writer))

    def leave_log(self, bytes_min: int = 0) -> bool:
        """The next record goes to a new log, where the present one has `bytes_min`. Whether one was left."""
        left = False
        for lane in self._lanes:
            if lane.writer is not None and lane.writer.committed.durable_bytes >= bytes_min:
                self._directories[self._book.directory_of(lane.writer.log)].out_of_space = False
                self._leave(lane)
                left = True
        return left

    def _leave(self, lane: _Lane) -> None:
        if lane.writer is not None:
            self._left.append(lane.writer)
            lane.writer = None

    async def begin(self, age: int = 0, *, spend_floor: bool = False) -> None:
        """A new attempt: look at the space, and try every folder again. `age`: of what it appends. `spend_floor`: what
        is kept free may be used up."""
        self._age = age
        self._floor_bytes = 0 if spend_floor else self._floor_at_most_bytes
        self._excluded.clear()
        await self._directories.look()
        lanes = [lane for lane in self._lanes if lane.writer is not None]
        wanted = self._directories.equally_good(self._floor_bytes) if self._parallel else 1
        self._lanes = lanes + [_Lane() for _ in range(max(1, wanted) - len(lanes))]

    def has_room(self, needed_bytes: int) -> bool:
        """Whether `needed_bytes` may be written in all folders together."""
        return self._directories.room_bytes(self._excluded, self._floor_bytes) >= needed_bytes

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
            lane = self._lanes[self._turn % len(self._lanes)]
            writer = lane.writer
            if writer is None:
                writer = await self._create(lane, size_bytes)
                if writer is None:
                    self._lanes.remove(lane)  # the folders of the others are all that have room
                    continue
            path = self._book.directory_of(writer.log)
            if path in self._excluded:
                self._leave(lane)  # not even sealed: that would want space in a folder that has none
            elif not writer.is_empty and writer.room(self._log_bytes_max) < size_bytes:
                await self._seal(writer)
                lane.writer = None
            elif self._directories.take(path, size_bytes, self._floor_bytes):
                writer.age = self._age
                writer.writes_at_once = max(1, ENTRY_LOG_WRITES_MAX // len(self._lanes))
                return writer
            else:
                self._leave(lane)  # what is left there is the reserve, which is enough to seal it

    async def write_out(self, writer: LogWriter) -> None:
        """Begin to write the whole pieces of what `writer_with_room` gave last, and go on with the next folder."""
        assert self._lanes[self._turn % len(self._lanes)].writer is writer
        await writer.write_out()
        if len(self._lanes) > 1:
            self._turn += 1

    async def end_flush(self) -> list[tuple[bytes, bytes]]:
        """Make everything appended durable; returns the log states to commit with the index."""
        dirty = [lane.writer for lane in self._lanes if lane.writer is not None and lane.writer.is_dirty]
        self._finished += zip(dirty, await _together([writer.end_flush() for writer in dirty]), strict=True)
        for writer in list(self._left):
            path = self._book.directory_of(writer.log)
            if writer.is_dirty or not self._directories[path].out_of_space:
                await self._seal(writer)
                self._left.remove(writer)
        await self._book.sync_directories({self._book.directory_of(log) for log in self._opened})
        self._turn += 1
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
        for lane in self._lanes:
            if lane.writer and self._directories.has_better_than(self._book.directory_of(lane.writer.log)):
                self._leave(lane)

    async def rewind(self) -> bool:
        """Take back an unfinished flush: the space of its records is free again. Readers never saw them.

        True: a folder was found full, and another one may have the room: try again.
        """
        touched = {writer.log: writer for writer, _state in self._finished}
        touched |= {writer.log: writer for writer in self._left}
        touched |= {lane.writer.log: lane.writer for lane in self._lanes if lane.writer is not None}
        await _together([writer.settle() for writer in touched.values()])
        opened, self._opened, self._finished, self._left, self._lanes = self._opened, [], [], [], [_Lane()]
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
        for writer in (*self._left, *(lane.writer for lane in self._lanes)):
            if writer is not None:
                await writer.close()

    async def _create(self, lane: _Lane, size_bytes: int) -> LogWriter | None:
        """A new log, in a folder that no other lane uses; None when the other lanes have to do."""
        used = {self._book.directory_of(other.writer.log) for other in self._lanes if other.writer is not None}
        path = self._directories.choose(size_bytes, self._excluded | used, self._floor_bytes)
        if path is None and len(self._lanes) > 1:
            return None
        if path is None:
            raise DiskFullError(f"no folder has room for {size_bytes} bytes more: {self._directories.describe()}")
        try:
            writer = await self._book.create_log(path)
        except DiskFullError:
            self._exclude(path)
            raise
        self._opened.append(writer.log)
        lane.writer = writer
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


async def _together(steps: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of them at once, each to its end: nothing may still be written when files are cut or closed.

    Raises what failed, and rather what is final than that there is no space.
    """
    if len(steps) == 1:
        return [await steps[0]]
    done = await asyncio.gather(*steps, return_exceptions=True)
    errors = [each for each in done if isinstance(each, BaseException)]
    if errors:
        raise next((error for error in errors if not isinstance(error, DiskFullError)), errors[0])
    return [each for each in done if not isinstance(each, BaseException)]
