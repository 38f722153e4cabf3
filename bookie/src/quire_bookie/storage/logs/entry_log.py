"""One entry log: appends records and reads them. See `log_format` for the bytes.

Owns the file of the log being written and the handles of those being read. Bytes are collected in page-aligned memory
(`log_window`) and written in aligned pieces while more are appended (`log_writes`). A flush ends with a footer, which
counts the log's entries, so that they need not be read for that. Never overwrites committed bytes, and never syncs
before all pieces are written, or after a failure.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from mmap import mmap
from typing import Protocol

from quire_bookie import limits
from quire_bookie.bulk import join_spans, place_runs
from quire_bookie.bulk.plain_flushes import FlushRun
from quire_bookie.env.disk import Disk, DiskFile
from quire_bookie.errors import DamagedError
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.formats.log_ages import AgeRun, AgeTable
from quire_bookie.storage.formats.log_catalog import LogState
from quire_bookie.storage.formats.log_format import LOG_ALIGNMENT_BYTES, RECORD_HEADER_BYTES, LedgerMap, LogHeader
from quire_bookie.storage.logs.log_window import LogWindow
from quire_bookie.storage.logs.log_writes import LogWrites

FOOTER_CHAIN_MAX = 64
"""After this many footers one counts the whole log, so that a start reads a bounded number of them. It repeats the ages
since the last such footer and references that one, so that all ages of a log are found in few reads as well."""


class RecordSource(Protocol):
    """A holder of entries that writes them as records: a half of the write cache."""

    def write_runs(self, target: mmap, at: int, salt: int, runs: list[FlushRun]) -> int:
        """Write the records into `target` from `at` on; return the position after them."""
        ...


class LogWriter:
    """Appends to one log. `rewind` discards uncommitted records.

    `chain`: the number of footers linked back from the last one. `ages`: those since the last footer that repeats ages,
    and the offset of that footer.
    """

    def __init__(
        self,
        file: DiskFile,
        header: LogHeader,
        state: LogState,
        spans: LedgerMap,
        chain: int,
        ages: AgeTable = AgeTable((), 0),  # noqa: B008 - immutable
    ) -> None:
        self._file = file
        self._writes = LogWrites(file)
        self.writes_at_once = limits.ENTRY_LOG_WRITES_MAX
        """Pieces written at the same time."""
        self._chain = chain
        self._known_ages = list(ages.runs)
        self._ages_before = ages.earlier
        self.age = 0
        """The age of appended records without an explicit age: see `log_ages`."""
        self._header = header
        self._spans = _SpanParts(log_format.map_lines(spans))
        self.committed = state
        self.salt = log_format.salt_of(header)
        self._begin()

    def _begin(self) -> None:
        self._fresh: list[bytes] = []
        """Lines of the map of the records since the last commit, in any order."""
        self._fresh_ages: list[AgeRun] = []
        self._window = LogWindow(self.committed.durable_bytes)
        if self.offset == 0:
            self._window.add(log_format.encode_header(self._header))

    @property
    def offset(self) -> int:
        """The offset of the next record."""
        return self._window.end

    @property
    def log(self) -> int:
        """Id of the log."""
        return self._header.log

    @property
    def out_of_space(self) -> bool:
        """Whether a write found no space since the last `rewind`."""
        return self._writes.out_of_space

    @property
    def is_dirty(self) -> bool:
        """Whether something was appended since the last commit."""
        return bool(self._fresh)

    def free_bytes(self, limit_bytes: int) -> int:
        """Return the bytes that still fit a log of `limit_bytes`, apart from its map and padding."""
        return limit_bytes - self.offset - LOG_ALIGNMENT_BYTES

    @property
    def is_empty(self) -> bool:
        """Whether the log holds no record yet."""
        return not self._spans.parts and not self._fresh

    def append(
        self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        entries: int,
        records: list[Buffer],
        size_bytes: int,
        age: int | None = None,
    ) -> int:
        """Queue encoded records of one ledger, to be written by `write_out`. Return the offset of the first."""
        base = self.offset
        self._note_age(base, self.age if age is None else age)
        self._window.add(b"".join(records))
        assert self.offset == base + size_bytes
        self._fresh.append(log_format.map_line(ledger, first, last, entries, size_bytes))
        return base

    def append_runs(
        self, runs: list[FlushRun], segments: list[tuple[int, bytes]], source: RecordSource, size_bytes: int
    ) -> tuple[list[bytes], int]:
        """Queue the records of entries that `source` holds, `size_bytes` in total.

        `segments`: the bytes of each run's records, and their index segments (see `bulk.run_segments`). Return the
        segments with their positions in this log, and the number of entries.
        """
        base = self.offset
        self._note_age(base, self.age)
        memory, at = self._window.reserve(size_bytes)
        end = source.write_runs(memory, at, self.salt, runs)
        assert end == at + size_bytes
        placed, lines, entries = place_runs(runs, segments, self.log, base)
        self._fresh.append(lines)
        return placed, entries

    def append_state(self, ledger: LedgerId, state: bytes, age: int | None = None) -> None:
        """Queue a record of a ledger's state."""
        records: list[Buffer] = []
        log_format.encode_records(self.salt, ledger, (log_format.STATE_ENTRY,), (state,), records)
        self.append(ledger, NO_ENTRY, NO_ENTRY, 0, records, len(state) + RECORD_HEADER_BYTES, age)

    def _note_age(self, offset: int, age: int) -> None:
        if not self._fresh_ages or self._fresh_ages[-1].age != age:
            assert not self._fresh_ages or self._fresh_ages[-1].offset < offset, "ages ascend by offset"
            self._fresh_ages.append(AgeRun(offset, age))

    @property
    def has_piece(self) -> bool:
        """Whether a whole piece is queued."""
        return self._window.has_piece

    async def write_out(self) -> None:
        """Start to write the whole pieces; wait while the maximum is being written.

        Raises the errors of earlier writes.
        """
        await self._writes.begin(self._window, self._window.end_of_pieces, self.writes_at_once)

    async def settle(self) -> None:
        """Wait until no write is running. Raises an error other than *no space*."""
        await self._writes.settle()
        self._writes.raise_final()

    async def end_flush(self) -> LogState:
        """Write the footer and everything queued, and sync. Return the state to commit."""
        footer = self.offset
        if self._chain < FOOTER_CHAIN_MAX:
            ages = AgeTable(self._fresh_ages, self.committed.pointer)
            body = log_format.encode_map(self._joined(), self.committed.pointer, ages)
        else:
            ages = AgeTable([*self._known_ages, *self._fresh_ages], self._ages_before)
            body = log_format.encode_map(self._whole(), 0, ages)
        self._append_file_record(log_format.FOOTER_ENTRY, body)
        self._pad(LOG_ALIGNMENT_BYTES, 0)
        await self._writes.finish(self._window, self.offset, self.writes_at_once)
        return replace(self.committed, durable_bytes=self.offset, pointer=footer)

    async def seal(self) -> LogState:
        """Write the map of the whole log and its seal, and sync. The log accepts no more records."""
        map_offset = self.offset
        ages = AgeTable(self._fresh_ages, self.committed.pointer)
        self._append_file_record(log_format.MAP_ENTRY, log_format.encode_map(self._whole(), 0, ages))
        self._pad(LOG_ALIGNMENT_BYTES, log_format.SEAL_BYTES)
        size = self.offset + log_format.SEAL_BYTES
        self._window.add(log_format.encode_seal(self.log, map_offset, size))
        await self._writes.finish(self._window, size, self.writes_at_once)
        return replace(self.committed, durable_bytes=size, pointer=map_offset, sealed=True)

    def _joined(self) -> bytes:
        """Return the lines of the records since the last commit, ascending."""
        self._fresh = [join_spans(self._fresh)] if self._fresh else []
        return b"".join(self._fresh)

    def _whole(self) -> bytes:
        """Return the lines of everything in the log, ascending."""
        return join_spans([*self._spans.parts, *self._fresh])

    def commit(self, state: LogState) -> None:
        """Continue after `state`, which the index has."""
        assert state.durable_bytes == self.offset, "nothing was appended since the sync"
        assert not self.committed.sealed, "a sealed log accepts no more records"
        if self._chain < FOOTER_CHAIN_MAX:
            self._chain += 1
            self._known_ages += self._fresh_ages
        else:
            self._chain = 1
            self._known_ages, self._ages_before = [], state.pointer
        self._spans.add(self._joined())
        self.committed = state
        self._begin()

    async def rewind(self) -> None:
        """Discard the records since the last commit and free their space. Raises the errors of `settle`."""
        await self.settle()
        self._begin()
        self._writes.reset()
        await self._file.truncate(self.committed.durable_bytes)

    async def close(self) -> None:
        """Release the handle once no write is running."""
        await self._writes.settle()
        await self._file.close()

    def _append_file_record(self, kind: EntryId, body: bytes) -> None:
        records: list[Buffer] = []
        log_format.encode_records(self.salt, log_format.FILE_LEDGER, (kind,), (body,), records)
        self._window.add(b"".join(records))

    def _pad(self, alignment: int, keep_bytes: int) -> None:
        self._window.add(bytes(log_format.padding_to(self.offset + keep_bytes, alignment)))


class _SpanParts:
    """The lines of a log's map in parts, each ascending.

    A flush adds a part. Parts of similar size are joined, so that a line is joined a few times in all, although a log
    of a million ledgers gets thousands of parts.
    """

    __slots__ = ("parts",)

    def __init__(self, lines: bytes) -> None:
        self.parts = [lines] if lines else []

    def add(self, lines: bytes) -> None:
        """Add a part."""
        parts = self.parts
        while lines and parts and len(parts[-1]) <= 2 * len(lines):
            lines = join_spans([parts.pop(), lines])
        if lines:
            parts.append(lines)


class LogFiles:
    """Owns the handles for reading, at most `open_max` of them kept open."""

    def __init__(self, disk: Disk, path_of: Callable[[int], str], open_max: int) -> None:
        self._disk = disk
        self.path = path_of
        """Returns the path of a log."""
        self._open_max = open_max
        self._open: OrderedDict[int, _Handle] = OrderedDict()

    async def read(self, log: int, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes. DamagedError if the file is missing, too short or unreadable."""
        path = self.path(log)
        handle = await self._acquire(log, path)
        try:
            data = await handle.file.read(offset, size)
        except OSError as error:
            raise DamagedError(path, offset, f"cannot be read: {error}") from error
        finally:
            handle.users -= 1
            assert handle.users >= 0
            if handle.closing and not handle.users:
                await handle.file.close()
        if len(data) != size:
            raise DamagedError(path, offset + len(data), f"the file ends here, {size - len(data)} bytes too early")
        return data

    async def forget(self, log: int) -> None:
        """Close the handle of a log that is being removed."""
        handle = self._open.pop(log, None)
        if handle is not None:
            handle.closing = True
            if not handle.users:
                await handle.file.close()

    async def close(self) -> None:
        """Release every handle."""
        for log in list(self._open):
            await self.forget(log)

    async def _acquire(self, log: int, path: str) -> "_Handle":
        handle = self._open.get(log)
        if handle is None:
            try:
                file = await self._disk.open_read_only(path)
            except OSError as error:
                raise DamagedError(path, 0, f"cannot be opened: {error}") from error
            handle = _Handle(file)
            handle.users = 1
            if log in self._open:  # opened concurrently: this handle serves one read
                handle.closing = True
                return handle
            self._open[log] = handle
            await self._shrink()
            return handle
        handle.users += 1
        self._open.move_to_end(log)
        return handle

    async def _shrink(self) -> None:
        if len(self._open) > self._open_max:
            idle = next((log for log, handle in self._open.items() if not handle.users), None)
            if idle is not None:
                await self.forget(idle)


class _Handle:
    __slots__ = ("closing", "file", "users")

    def __init__(self, file: DiskFile) -> None:
        self.file = file
        self.users = 0
        self.closing = False


def log_path(directory: str, log: int) -> str:
    """Return the path of a log in a folder: `<16 hex digits>.qlog`."""
    return f"{directory}/{log:016x}.qlog"
