"""Group commit: writes the queued appends as one durable group, then the next.

Owns the queue, the one group in flight, and the file being written. It holds one prepared file, supplied by `Journal`,
and moves to it by writing its header when a group does not fit. Must never have two groups in flight, acknowledge
before the covering write is durable, call a `done` from inside an append, or retry a failed write.

```
append* -> queue -> (loop step ends) one group -> submit -> durable -> next group submitted -> done of the first
```
The next group starts as soon as the previous one is durable, with everything queued by then; there is no timer.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import JournalFile
from quire_bookie.errors import DiskFullError, JournalPoisonedError, StorageError
from quire_bookie.journal.format import (
    DATA_START,
    FileHeader,
    JournalPosition,
    encode_head_of_parts,
    encode_header,
    group_bytes,
)
from quire_bookie.journal.records import encode_items, records_of
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.model import Buffer, Run, RunBatch
from quire_bookie.settings.journal import JournalSettings

log = logging.getLogger("quire.journal")

Done = Callable[[BaseException | None], None]
BatchDone = Callable[[RunBatch, BaseException | None], None]
"""A `done` that receives the affected runs: several journals divide a batch."""
Item: TypeAlias = Run | RunBatch | bytes
"""A queued item: a run, a batch of runs, or an encoded record. Never split over two groups."""
GroupTimes: TypeAlias = tuple[float, float]
"""Loop times at which a group was submitted and became durable."""


@dataclass(slots=True)
class JournalStats:
    """Counters since the journal was opened, for the metrics collector."""

    groups: int = 0
    records: int = 0
    entries: int = 0
    written_bytes: int = 0
    """Padding included."""
    file_changes: int = 0
    write_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Latency of groups, from submission to durable."""
    write_seconds_max: float = 0.0
    refused_full: int = 0


@dataclass(slots=True)
class _Group:
    """Items taken from the queue: encoded once, and kept while they wait for a file."""

    parts: list[Buffer]
    body_bytes: int
    records: int
    entries: int
    queued_bytes: int
    dones: list[Done | None]


def _encoded(items: list[Item], entries: int, queued_bytes: int, dones: list[Done | None]) -> _Group:
    parts = encode_items(items, entries, queued_bytes)
    return _Group(parts, sum(map(len, parts)), sum(map(records_of, items)), entries, queued_bytes, dones)


def _size_of(item: Item) -> tuple[int, int]:
    """Return the bytes and entries of an item."""
    if isinstance(item, Run):
        return item.size_bytes, len(item.entries)
    return (item.size_bytes, item.entries) if isinstance(item, RunBatch) else (len(item), 0)


def run_dones(dones: Iterator[Done | None], error: BaseException | None) -> None:
    """Call each in order, without yielding. The loop reports one that raises; the others still run."""
    try:
        for done in dones:
            if done is not None:
                done(error)
    finally:
        rest = list(dones)
        if rest:
            asyncio.get_running_loop().call_soon(run_dones, iter(rest), error)


@dataclass(slots=True)
class _Several:
    """Calls the `done` of a record and those of forces that wait for it."""

    dones: list[Done | None]

    def __call__(self, error: BaseException | None) -> None:
        run_dones(iter(self.dones), error)


class GroupWriter:
    """Writes the groups of one journal. Event loop's thread only.

    `wants_file` is called when no file is prepared and returns whether one is being created; `retired` receives a full
    file; `went_live` is called once a prepared file's header is durable; `poisoned` once, after every pending `done`;
    `moved` after the first durable group since `move_noted` was last set to False.
    """

    def __init__(
        self,
        uuid: bytes,
        settings: JournalSettings,
        *,
        wants_file: Callable[[], bool],
        retired: Callable[[JournalFile], None],
        went_live: Callable[[str, FileHeader], None],
        poisoned: Callable[[JournalPoisonedError], None],
        moved: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._uuid = uuid
        self._settings = settings
        self._wants_file = wants_file
        self._retired = retired
        self._went_live = went_live
        self._was_poisoned = poisoned
        self._moved = moved
        self.move_noted = False
        """Whether `moved` was called since the receiver last reset this."""
        self._file: JournalFile | None = None
        self._prepared: JournalFile | None = None
        self._prepared_bytes = 0
        self._opening: JournalFile | None = None
        self._end_bytes = 0
        self._position = JournalPosition(0, 0, 0)
        self.durable = self._position
        """Every group before it is durable."""
        self._items: list[Item] = []
        self._dones: list[Done | None] = []
        self._queued_entries = 0
        self._group: _Group | None = None
        self._waits_for_file = False
        self._idle = True
        self._starting: asyncio.Handle | None = None
        """The scheduled call of `_start_next` for the first group after an idle time."""
        self._started_s = 0.0
        self.last_group_s: GroupTimes = (0.0, 0.0)
        self._refusal: StorageError | None = StorageError("the journal has not been replayed yet")
        self.queued_bytes = 0
        self.full: DiskFullError | None = None
        self.poisoned = False
        self.stats = JournalStats()

    @property
    def position(self) -> JournalPosition:
        """The position of the next group to be submitted, unless it does not fit and begins the next file."""
        return self._position

    @property
    def has_prepared(self) -> bool:
        """Whether a file is prepared."""
        return self._prepared is not None

    @property
    def waits_for_file(self) -> bool:
        """Whether a group waits for the next file."""
        return self._waits_for_file

    # ---- append: the hot path
    def append_run(self, run: Run, done: Done | None) -> None:
        """Queue a run, at the same cost for one entry as for a thousand."""
        if self._refusal is not None:
            self._refuse_one(done)
            return
        self._items.append(run)
        self._dones.append(done)
        self.queued_bytes += run.size_bytes
        self._queued_entries += len(run.entries)
        if self._idle:
            self._start_soon()

    def append_batch(self, batch: RunBatch, done: Done | None) -> None:
        """Queue runs together: all become durable, or none."""
        if self._refusal is not None:
            self._refuse_one(done)
            return
        self._items.append(batch)
        self._dones.append(done)
        self.queued_bytes += batch.size_bytes
        self._queued_entries += batch.entries
        if self._idle:
            self._start_soon()

    def append_record(self, record: bytes, done: Done | None) -> None:
        """Queue an encoded record."""
        if self._refusal is not None:
            self._refuse_one(done)
            return
        self._items.append(record)
        self._dones.append(done)
        self.queued_bytes += len(record)
        if self._idle:
            self._start_soon()

    def append_force(self, done: Done | None) -> None:
        """Call `done` once all earlier appends are durable, or with the error of the last one."""
        if self._refusal is not None:
            self._refuse_one(done)
        elif self._items:
            last = self._dones[-1]
            if not isinstance(last, _Several):
                last = self._dones[-1] = _Several([last])
            last.dones.append(done)
        elif self._group is not None:
            self._group.dones.append(done)
        elif done is not None:
            self._loop.call_soon(done, None)

    def _refuse_one(self, done: Done | None) -> None:
        if done is not None:
            self._loop.call_soon(done, self._refusal)

    # ---- groups
    def start_now(self) -> None:
        """Write the appends of this loop step now, for callers that know that no more follow in it."""
        starting = self._starting
        if starting is not None:
            starting.cancel()
            self._start_next()

    def _start_soon(self) -> None:
        self._idle = False
        self._starting = self._loop.call_soon(self._start_next)

    def _start_next(self) -> None:
        self._starting = None
        if self.poisoned:
            return
        if self._group is None and not self._items:
            self._idle = True
            return
        group = self._group or self._take()
        self._group = group
        file = self._file
        size = group_bytes(group.body_bytes, file.alignment_bytes) if file is not None else 0
        if file is None or self._position.offset + size > self._end_bytes:
            self._change_file()
            return
        assert self.durable == self._position, "one group is in flight at a time"
        generation, offset, sequence = self._position
        head = encode_head_of_parts(self._uuid, generation, sequence, group.parts, group.records)
        padding = bytes(size - len(head) - group.body_bytes)
        self._position = JournalPosition(generation, offset + size, sequence + 1)
        self.stats.written_bytes += size
        self._started_s = self._loop.time()
        self._submit(file, offset, [head, *group.parts, padding], self._written)

    def _submit(self, file: JournalFile, offset: int, buffers: list[Buffer], done: Done) -> None:
        try:
            file.submit(offset, buffers, done)
        except OSError as error:
            self._loop.call_soon(done, error)

    def _take(self) -> _Group:
        """Take as many items from the head of the queue as the bounds allow; at least one."""
        assert 0 < len(self._items) == len(self._dones), "each item has its callback"
        settings = self._settings
        if self.queued_bytes <= settings.group_bytes_max and self._queued_entries <= settings.group_entries_max:
            items, dones, entries = self._items, self._dones, self._queued_entries
            self._items, self._dones, self._queued_entries = [], [], 0
            return _encoded(items, entries, self.queued_bytes, dones)
        count, size, entries = self._first_within_bounds()
        assert 0 < count <= len(self._items) and size <= self.queued_bytes and entries <= self._queued_entries
        items, dones = self._items[:count], self._dones[:count]
        del self._items[:count], self._dones[:count]
        self._queued_entries -= entries
        return _encoded(items, entries, size, dones)

    def _first_within_bounds(self) -> tuple[int, int, int]:
        """Return how many items at the head of the queue form a group, their bytes and their entries."""
        settings = self._settings
        count = size = entries = 0
        for item in self._items:
            more, added = _size_of(item)
            if count and (size + more > settings.group_bytes_max or entries + added > settings.group_entries_max):
                break
            count, size, entries = count + 1, size + more, entries + added
        return count, size, entries

    def _written(self, error: BaseException | None) -> None:
        group, self._group = self._group, None
        if self.poisoned or group is None:
            return
        if error is not None:
            self._group = group
            self.poison(error)
            return
        now_s = self._loop.time()
        took_s = now_s - self._started_s
        self.last_group_s = (self._started_s, now_s)
        stats = self.stats
        stats.groups += 1
        stats.records += group.records
        stats.entries += group.entries
        stats.write_seconds.observe(took_s)
        stats.write_seconds_max = max(stats.write_seconds_max, took_s)
        assert group.queued_bytes <= self.queued_bytes, "what is released was charged"
        assert self.durable < self._position, "a group is acknowledged only after its sync"
        self.queued_bytes -= group.queued_bytes
        self.durable = self._position  # one group is in flight at a time, and this was it
        if not self.move_noted:
            self.move_noted = True
            self._moved()
        # The next write is submitted before the acknowledgements run; their appends join the group after it.
        self._start_next()
        run_dones(iter(group.dones), None)

    # ---- files
    def install(self, file: JournalFile, header: FileHeader, position: JournalPosition) -> None:
        """Continue in a file whose header is already durable and that has no acknowledged group from `position` on."""
        assert self._position <= position, "the position only grows"
        assert self._group is None or self.durable == self._position, "a file changes between two groups"
        self._file, self._end_bytes, self._position = file, header.file_bytes, position
        self.durable = position

    def continue_at(self, position: JournalPosition) -> None:
        """Set the end of the journal; the first group opens the prepared file."""
        assert self._file is None and self._group is None, "nothing was written yet"
        self._position = self.durable = position

    def prepared(self, file: JournalFile, file_bytes: int) -> None:
        """Receive a complete file for the next file change."""
        assert self._prepared is None
        self._prepared = file
        self._prepared_bytes = file_bytes
        self.full = None
        if self._waits_for_file:
            self._waits_for_file = False
            self._start_next()

    def take_prepared(self) -> JournalFile | None:
        """Release the prepared file, to close it."""
        file, self._prepared = self._prepared, None
        return file

    def no_file(self, error: DiskFullError) -> None:
        """Record that there is no space for another file. Groups that do not fit into the current one are refused."""
        self.full = error
        if self._waits_for_file:
            self._waits_for_file = False
            self._refuse_group(error)

    def open_prepared(self, done: Done) -> None:
        """Start to use the prepared file now, before the first group, when the journal starts."""
        self._open_next(done)

    def accept(self) -> None:
        """Accept appends from now on: replay is over."""
        assert self._refusal is not None and not self._items
        self._refusal = None

    def _change_file(self) -> None:
        if self._prepared is not None:
            self._open_next(self._changed)
        elif self._wants_file():
            self._waits_for_file = True
        else:
            assert self.full is not None
            self._refuse_group(self.full)

    def _open_next(self, done: Done) -> None:
        """Write the header of the next generation; call `done` once it is durable and the file is in use."""
        file, self._prepared = self._prepared, None
        assert file is not None and self._opening is None, "one header is written at a time"
        self._opening = file
        old = self._position
        header = FileHeader(
            uuid=self._uuid,
            generation=old.generation + 1,
            file_bytes=self._prepared_bytes,
            first_sequence=old.sequence,
            previous_end=old.offset,
            alignment_bytes=file.alignment_bytes,
        )

        def durable(error: BaseException | None) -> None:
            self._opening = None
            full_file, self._file = self._file, file
            if full_file is not None:
                self._retired(full_file)
            if error is None and not self.poisoned:
                self.install(file, header, JournalPosition(header.generation, DATA_START, header.first_sequence))
                self.stats.file_changes += 1
                self._went_live(file.path, header)
                self._wants_file()
            done(error)

        self._submit(file, 0, [encode_header(header)], durable)

    def _changed(self, error: BaseException | None) -> None:
        if self.poisoned:
            return
        if error is not None:
            self.poison(error)
            return
        group = self._group
        if group is not None and self._file is not None:
            size = group_bytes(group.body_bytes, self._file.alignment_bytes)
            if DATA_START + size > self._end_bytes:
                self._refuse_group(StorageError(f"a group of {size} bytes does not fit into a journal file"))
                return
        self._start_next()

    def _refuse_group(self, error: StorageError) -> None:
        group, self._group = self._group, None
        assert group is not None and group.queued_bytes <= self.queued_bytes, "what is released was charged"
        self.queued_bytes -= group.queued_bytes
        self.stats.refused_full += group.records
        self._loop.call_soon(run_dones, iter(group.dones), error)
        self._loop.call_soon(self._start_next)

    # ---- the end
    def poison(self, cause: BaseException) -> None:
        """Fail every append, permanently: a write or sync failed, so the state on disk is unknown."""
        if self.poisoned:
            return
        self.poisoned = True
        self._waits_for_file = False
        where = self._file.path if self._file is not None else "the journal"
        error = JournalPoisonedError(f"{where}: {cause}; no more adds are acknowledged, restart to replay")
        error.__cause__ = cause
        log.critical("journal poisoned: %s", error)
        self._refusal = error
        group, self._group = self._group, None
        dones = (group.dones if group is not None else []) + self._dones
        self._items, self._dones = [], []
        self.queued_bytes = self._queued_entries = 0
        self._idle = True
        run_dones(iter(dones), error)
        self._was_poisoned(error)

    def refuse(self, refusal: StorageError) -> None:
        """Refuse appends from now on; earlier ones still become durable."""
        if not self.poisoned:
            self._refusal = refusal

    def take_file(self) -> JournalFile | None:
        """Release the file in use, to close it."""
        file, self._file = self._file, None
        return file

    def take_opening(self) -> JournalFile | None:
        """Release the file whose header is being written, to close it; closing waits for the write."""
        file, self._opening = self._opening, None
        return file
