"""One stream of appended records, of flushes or of compaction, into one log in each usable folder.

Owns the logs being written, those left before they were sealed, and their uncommitted records: `end_flush` makes these
durable, `committed` keeps them once the index references them, `rewind` discards them. Leaves a folder without space,
and in one attempt never returns to a folder in which a write found no space. A log that was left is sealed as soon as
its folder has space for that, and never continued.

Flushes rotate over the folders: after a whole piece of 2 MiB the next records go to the next folder while the piece is
written, and each flush starts in the folder after that of the previous flush. The folders therefore fill evenly, their
devices write and sync in parallel, and a small flush syncs one file. Ages decide which of two records is newer
(`log_ages`).
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
from quire_bookie.storage.stats import StorageStats

_log = logging.getLogger("quire.storage.logs")
_ORIGINS_MAX: Final = 64
T = TypeVar("T")


class LogBook(Protocol):
    """The part of `EntryLogs` that an appender needs."""

    @property
    def next_log(self) -> int:
        """Id of the next log."""
        ...

    def directory_of(self, log: int) -> str:
        """Return the folder of a log."""
        ...

    async def create_log(self, directory: str) -> LogWriter:
        """Create a log. DiskFullError."""
        ...

    async def remove_created(self, log: int) -> None:
        """Remove a log that no commit names."""
        ...

    async def sync_directories(self, paths: set[str]) -> None:
        """Make created and removed names durable."""
        ...

    def note_committed(self, state: LogState) -> None:
        """Record that the index has this state."""
        ...


class _Lane:
    """The log being written in one folder."""

    __slots__ = ("writer",)

    def __init__(self, writer: LogWriter | None = None) -> None:
        self.writer = writer


class LogAppender:
    """Appends to the logs. One caller at a time; for the appender of flushes, the holder of the write lock.

    `floor_bytes`: the space to leave free on each file system; None: the storage's reserve. `parallel`: rotate over all
    folders, otherwise use one at a time.
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
        self._lane_number = 0
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
        """Id of the next log, stored in the index with each commit."""
        return self._book.next_log

    def adopt(self, writer: LogWriter) -> None:
        """Continue an unsealed log, the newest so far of its folder; the next flush seals older ones."""
        path = self._book.directory_of(writer.log)
        for lane in self._lanes:
            if lane.writer is None or not self._parallel or self._book.directory_of(lane.writer.log) == path:
                self._leave(lane)
                lane.writer = writer
                return
        self._lanes.append(_Lane(writer))

    def leave_log(self, bytes_min: int = 0) -> bool:
        """Leave each log with at least `bytes_min` bytes, so that a new one follows. Return whether one was left."""
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
        """Start a new attempt: read the free space, and try every folder again.

        `age`: of the appended records. `spend_floor`: the space that is kept free may be used.
        """
        self._age = age
        self._floor_bytes = 0 if spend_floor else self._floor_at_most_bytes
        self._excluded.clear()
        await self._directories.refresh()
        lanes = [lane for lane in self._lanes if lane.writer is not None]
        wanted = self._directories.equally_good(self._floor_bytes) if self._parallel else 1
        self._lanes = lanes + [_Lane() for _ in range(max(1, wanted) - len(lanes))]
        assert self._lanes, "records go to one folder at least"

    def has_space(self, needed_bytes: int) -> bool:
        """Return whether `needed_bytes` may be written to all folders together."""
        return self._directories.available_bytes(self._excluded, self._floor_bytes) >= needed_bytes

    def check_space(self, needed_bytes: int) -> None:
        """Raise DiskFullError before the last bytes are used: operations that free space need them."""
        available = self._directories.available_bytes(self._excluded, self._floor_bytes)
        if available < needed_bytes:
            raise DiskFullError(
                f"{needed_bytes} bytes to write, but only {available} available above the reserve of "
                f"{self._floor_bytes} bytes: {self._directories.describe()}"
            )

    async def writer_for(self, size_bytes: int) -> LogWriter:
        """Return the log to append `size_bytes` to. DiskFullError if no folder has the space."""
        while True:
            lane = self._lanes[self._lane_number % len(self._lanes)]
            writer = lane.writer
            if writer is None:
                writer = await self._create(lane, size_bytes)
                if writer is None:
                    self._lanes.remove(lane)  # only the folders of the other lanes have space
                    continue
            path = self._book.directory_of(writer.log)
            if path in self._excluded:
                self._leave(lane)  # without sealing it, which would need space in a full folder
            elif not writer.is_empty and writer.free_bytes(self._log_bytes_max) < size_bytes:
                await self._seal(writer)
                lane.writer = None
            elif self._directories.take(path, size_bytes, self._floor_bytes):
                writer.age = self._age
                writer.writes_at_once = max(1, ENTRY_LOG_WRITES_MAX // len(self._lanes))
                return writer
            else:
                self._leave(lane)  # the remaining space is the reserve, which is enough to seal it

    async def write_out(self, writer: LogWriter) -> None:
        """Start to write the whole pieces of the log that `writer_for` returned last; continue in the next folder."""
        assert self._lanes[self._lane_number % len(self._lanes)].writer is writer
        await writer.write_out()
        if len(self._lanes) > 1:
            self._lane_number += 1

    async def end_flush(self) -> list[tuple[bytes, bytes]]:
        """Make everything appended durable; return the log states to commit with the index."""
        dirty = [lane.writer for lane in self._lanes if lane.writer is not None and lane.writer.is_dirty]
        self._finished += zip(dirty, await _together([writer.end_flush() for writer in dirty]), strict=True)
        for writer in list(self._left):
            path = self._book.directory_of(writer.log)
            if writer.is_dirty or not self._directories[path].out_of_space:
                await self._seal(writer)
                self._left.remove(writer)
        assert len({state.log for _writer, state in self._finished}) == len(self._finished), "a log has one new state"
        await self._book.sync_directories({self._book.directory_of(log) for log in self._opened})
        self._lane_number += 1
        return [(log_key(state.log), encode_log_state(state)) for _writer, state in self._finished]

    async def committed(self) -> None:
        """Keep the records of `end_flush`, whose states are in the index."""
        finished, self._finished, self._opened = self._finished, [], []
        for writer, state in finished:
            assert state.durable_bytes >= writer.committed.durable_bytes, "a log only grows"
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
        """Discard an unfinished flush and free the space of its records, which readers never saw.

        True: a folder was found full, so a new attempt may use another one.
        """
        touched = {writer.log: writer for writer, _state in self._finished}
        touched |= {writer.log: writer for writer in self._left}
        touched |= {lane.writer.log: lane.writer for lane in self._lanes if lane.writer is not None}
        assert touched.keys() >= set(self._opened), "each new log has its writer"
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
            await self._directories.refresh()
        return found_full

    def bytes_since(self, log: int, offset: int) -> int | None:
        """Return the bytes appended since an offset was written; None: long ago, or not by this appender."""
        origin = self._origins.get(log)
        return None if origin is None else self._total_bytes - origin - offset

    async def close(self) -> None:
        """Release the handles. The logs stay unsealed; the next start continues the newest and seals the others."""
        for writer in (*self._left, *(lane.writer for lane in self._lanes)):
            if writer is not None:
                await writer.close()

    async def _create(self, lane: _Lane, size_bytes: int) -> LogWriter | None:
        """Create a log in a folder that no other lane uses; None if only the other lanes have space."""
        used = {self._book.directory_of(other.writer.log) for other in self._lanes if other.writer is not None}
        path = self._directories.choose(size_bytes, self._excluded | used, self._floor_bytes)
        if path is None and len(self._lanes) > 1:
            return None
        if path is None:
            raise DiskFullError(f"no folder has space for {size_bytes} more bytes: {self._directories.describe()}")
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
        if path not in self._excluded:  # otherwise a new attempt would not differ from this one
            _log.warning("%s is full: entry logs go to other folders that have space", path)
            self._found_full = True
            self._excluded.add(path)
        self._directories.note_out_of_space(path)


async def _together(steps: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all steps at once, each to its end: no write may be running when files are truncated or closed.

    Raises an error of a step, preferring final errors over *no space*.
    """
    if len(steps) == 1:
        return [await steps[0]]
    done = await asyncio.gather(*steps, return_exceptions=True)
    errors = [each for each in done if isinstance(each, BaseException)]
    if errors:
        raise next((error for error in errors if not isinstance(error, DiskFullError)), errors[0])
    return [each for each in done if not isinstance(each, BaseException)]
