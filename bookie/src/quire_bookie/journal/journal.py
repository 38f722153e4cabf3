"""The write-ahead log of one directory: the facade that the bookie uses.

Owns the life cycle of a journal (open, replay, append, mark, close) and the one task that keeps the next file ready.
Must never be used by two processes at once: the caller holds the lock of the directory.

Order and reentrancy: appends become durable in the order of the calls, and their `done` callbacks run in that order on
the event loop, those of one group in one step, always after the append has returned. A `done` may append; that record
joins a later group. A `done` must not raise; the loop reports one that does. After a failed write every `done`, pending
and future, receives JournalPoisonedError, and `on_poison` is called once. An append cannot be cancelled: its record may
become durable although its caller has stopped waiting.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk, JournalFile
from quire_bookie.env.space_reserve import SpaceReserves
from quire_bookie.errors import DiskFullError, JournalDamagedError, JournalPoisonedError, StorageError
from quire_bookie.journal.files import JournalFiles, number_of
from quire_bookie.journal.format import DATA_START, FileHeader, JournalPosition, Mark
from quire_bookie.journal.mark import MARK_NAME, add_witness, create_mark, load_mark, store_mark
from quire_bookie.journal.records import SHUTDOWN_RECORD, explicit_lac_record, fence_record, master_key_record
from quire_bookie.journal.replay import Deliver, Replay, ReplaySummary
from quire_bookie.journal.witness import WITNESS_NAME, WitnessRecord, WitnessWriter, load_witness
from quire_bookie.journal.writer import BatchDone, Done, GroupTimes, GroupWriter, JournalStats
from quire_bookie.limits import JOURNAL_FULL_RETRY_S, JOURNAL_WITNESS_S
from quire_bookie.model import Buffer, LedgerId, Run, RunBatch
from quire_bookie.settings.journal import JournalSettings

log = logging.getLogger("quire.journal")


class Journal:
    """The journal of one directory: `open` it, `replay` it once, then append. Event loop's thread only."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: JournalSettings,
        files: JournalFiles,
        mark: Mark,
        witness: WitnessRecord | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._files = files
        self._mark = mark
        self._end = mark.position
        self._writer = GroupWriter(
            mark.uuid,
            settings,
            wants_file=self._wants_file,
            retired=self._retire,
            went_live=self._went_live,
            poisoned=self._was_poisoned,
            moved=self._witness_soon,
        )
        self._witness = witness
        self._witnesses: WitnessWriter | None = None
        self._prepared = (0, 0)
        """Generation and number of the file that the witness names as the next one."""
        self._closed = False
        self._replay: Replay | None = None
        self._started = False
        self._ahead = False
        self.is_new = False
        """Whether `open` created the journal in an empty folder."""
        self._closing = False
        self._stopping = False
        self._wake = asyncio.Event()
        self._retired: list[JournalFile] = []
        self._retry_full_at_s = 0.0
        self._files_lock = asyncio.Lock()
        self._mark_lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._witness_timer: asyncio.TimerHandle | None = None
        self.on_poison: Callable[[BaseException], None] | None = None
        """Called once, after every pending `done`, with the JournalPoisonedError."""
        self.reserves = SpaceReserves()
        """Space kept on a full disk for the journal files of fences and recovery."""
        self.on_full: Callable[[DiskFullError], None] | None = None
        """Called when the next file cannot be created. The current file still takes the groups that fit."""

    @classmethod
    async def open(cls, disk: Disk, directory: str, settings: JournalSettings, *, chance: Chance) -> "Journal":
        """Open or create the journal of a directory that the caller has locked. Replays nothing.

        DamagedError if mark or files are provably wrong, ConfigError for inconsistent sizes, DiskFullError, OSError.
        """
        settings.check()
        await disk.make_dirs(directory)
        mark = await load_mark(disk, directory)
        witness = None if mark is None else await load_witness(disk, directory, mark.uuid)
        if mark is not None and mark.witnessed and witness is None:
            raise JournalDamagedError(f"{directory}/{WITNESS_NAME}", 0, "the file is missing")
        files = await JournalFiles.open(disk, directory, settings, mark, witness)
        if mark is None:
            if files.any:
                raise JournalDamagedError(f"{directory}/{MARK_NAME}", 0, "it is missing, but there are journal files")
            journal = cls(disk, directory, settings, files, *await create_mark(disk, directory, chance))
            journal.is_new = True
            return journal
        if not mark.witnessed:
            mark, witness = await add_witness(disk, directory, mark, witness)
        return cls(disk, directory, settings, files, mark, witness)

    async def replay(self, deliver: Deliver) -> ReplaySummary:
        """Deliver every durable record from the mark on, in order, then start to accept appends.

        `position` and `set_mark` work during replay: a flush may move the mark. On a full disk the journal starts
        without a file: `full` is set, and appends receive DiskFullError until there is space.
        """
        summary = await self.read(deliver)
        await self.start()
        return summary

    async def read(self, deliver: Deliver) -> ReplaySummary:
        """Deliver every durable record from the mark on, in order. May be repeated until `start`."""
        assert not self._started, "a journal is replayed before it starts"
        self._replay = Replay(self._disk, self._directory, self._files, self._mark, self._witness)
        summary = await self._replay.run(deliver)
        self._end = self._replay.position
        assert self._end >= self._mark.position, "the journal ends at its mark or after it"
        self._replay = None
        return summary

    async def start(self, *, ahead: bool = True) -> None:
        """Accept appends from now on, in a new file: nothing is ever written after a torn tail in the same file.

        Without `ahead`, until `keep_ahead` the next file is created only once appends wait for it.
        """
        self._ahead = ahead
        end = self._end
        self._writer.continue_at(end)
        await self._open_witness()
        if not await self._reuse_empty(end):
            await self._prepare(short=True, urgent=True)
            if self._writer.has_prepared:
                opened: asyncio.Future[BaseException | None] = self._loop.create_future()
                # The task that starts the journal may be cancelled before this runs.
                self._writer.open_prepared(lambda error: None if opened.done() else opened.set_result(error))
                if (error := await opened) is not None:
                    self._writer.poison(error)
        # Before the first append: from here on a missing current file is detected.
        await self._store_witness()
        if self._writer.poisoned:
            raise JournalPoisonedError(f"{self._directory}: the journal could not be started")
        assert self._writer.position >= end, "the position only grows"
        self._started = True
        self._writer.accept()
        if self._mark.position.generation == 0:
            # From here on a lost first file is detected as missing, not taken for a journal that never started.
            await self.set_mark(self.position())
        self._keeper = asyncio.create_task(self._keep_file_ready(), name=f"journal files {self._directory}")
        self._wake.set()

    def keep_ahead(self) -> None:
        """Prepare each next file before it is needed, from now on.

        Not during the start: creating a file takes disk and processor time that the start needs, and the first move of
        the mark may free a spare.
        """
        self._ahead = True
        self._wake.set()

    async def _reuse_empty(self, end: JournalPosition) -> bool:
        """Continue in the last file if it has no durable group, so that repeated restarts do not use up files."""
        last = self._files.live.get(end.generation)
        if last is None or end.offset != DATA_START:
            return False
        file = await self._open_file(last.path)
        if file.alignment_bytes != last.header.alignment_bytes:
            await file.close()
            return False
        self._writer.install(file, last.header, end)
        return True

    # ---- appends: never await, only queue
    def append_run(self, run: Run, done: Done | None) -> None:
        """Queue a run of entries; its buffers must stay unchanged until `done`."""
        self._writer.append_run(run, done)

    def append_batch(self, batch: RunBatch, done: BatchDone) -> None:
        """Queue runs together: all become durable in one step, or none. `done` receives the batch."""
        self._writer.append_batch(batch, partial(done, batch))

    def append_master_key(self, ledger: LedgerId, key: bytes, done: Done | None = None, token: bytes = b"") -> None:
        """Queue a ledger's master key and token; must precede the ledger's first run."""
        self._writer.append_record(master_key_record(ledger, key, token), done)

    def append_fence(self, ledger: LedgerId, done: Done | None) -> None:
        """Queue a fence; it takes effect with `done(None)`."""
        self._writer.append_record(fence_record(ledger), done)

    def append_explicit_lac(self, ledger: LedgerId, packet: Buffer, done: Done | None) -> None:
        """Queue an explicit LAC as the writer sent it."""
        self._writer.append_record(explicit_lac_record(ledger, packet), done)

    def append_force(self, done: Done | None) -> None:
        """Call `done` once all earlier appends are durable, or with the error of the last one. Writes nothing."""
        self._writer.append_force(done)

    def start_now(self) -> None:
        """Start writing the queued appends now, as no more follow in this loop step."""
        self._writer.start_now()

    # ---- state
    @property
    def queued_bytes(self) -> int:
        """Bytes appended and not yet durable."""
        return self._writer.queued_bytes

    @property
    def is_full(self) -> bool:
        """Whether the queue exceeds its limit: the caller must stop taking adds until some are durable."""
        return self._writer.queued_bytes >= self._settings.queue_bytes_max

    @property
    def poisoned(self) -> bool:
        """Whether a write failed; no append is acknowledged any more."""
        return self._writer.poisoned

    @property
    def full(self) -> DiskFullError | None:
        """Why the next file could not be created, or None. The bookie should be read-only while it is set."""
        return self._writer.full

    @property
    def last_group_s(self) -> GroupTimes:
        """The times of the last durable group."""
        return self._writer.last_group_s

    @property
    def stats(self) -> JournalStats:
        """Counters of the write side."""
        return self._writer.stats

    @property
    def mark(self) -> JournalPosition:
        """The durable LastLogMark."""
        return self._mark.position

    def position(self) -> JournalPosition:
        """Return the next unassigned position: every later record is written at it or after it.

        Capture it in the loop step in which the write cache is swapped; once that cache is durable in the storage,
        pass it to `set_mark`.
        """
        if self._started:
            return self._writer.position
        return self._end if self._replay is None else self._replay.position

    async def set_mark(self, position: JournalPosition) -> None:
        """Make the mark durable, then recycle the files before it. An earlier position changes nothing.

        On DiskFullError or OSError the mark is the old or the new one, and no file was recycled.
        """
        async with self._mark_lock:
            if position <= self._mark.position:
                return
            assert position <= self.position(), "the mark cannot be ahead of the journal"
            mark = Mark(self._mark.uuid, position, self._mark.witnessed)
            await store_mark(self._disk, self._directory, mark)
            self._mark = mark
            assert position.generation in self._files.live, "the file of the mark is kept"
            async with self._files_lock:
                await self._files.recycle_below(position.generation)
        self._wake.set()

    # ---- the witness
    async def _open_witness(self) -> None:
        """Open the witness and store the end that replay found, without a prepared file."""
        if self._witness is None:
            return
        self._witnesses = WitnessWriter(self._witness, current=self._witness_now, failed=self._writer.poison)
        try:
            await self._witnesses.open(self._disk, self._directory, synced=self._settings.sync_data)
        except OSError as error:
            self._writer.poison(error)
        if await self._store_witness():
            await self._files.forget_prepared()

    def _witness_now(self) -> WitnessRecord:
        position = self._writer.durable
        self._writer.move_noted = False
        generation, number = self._prepared if self._prepared[0] > position.generation else (0, 0)
        return WitnessRecord(self._mark.uuid, position, generation, number, self._closed)

    async def _store_witness(self) -> bool:
        """Store the state at this call in the witness; return whether it is durable. A failure poisons the journal."""
        return self._witnesses is None or await self._witnesses.store()

    def _witness_soon(self) -> None:
        """Schedule a write of the witness: a durable group is not yet covered by it."""
        if self._witnesses is not None:
            self._witness_timer = self._loop.call_later(JOURNAL_WITNESS_S, self._witness_in_time)

    def _witness_in_time(self) -> None:
        self._witness_timer = None
        if self._witnesses is not None and not (self._stopping or self._writer.poisoned):
            self._witnesses.store()

    def _went_live(self, path: str, header: FileHeader) -> None:
        self._files.went_live(path, header)
        if self._started and self._witnesses is not None:
            self._witnesses.store()

    # ---- files
    def _wants_file(self) -> bool:
        """Request the next file, unless the disk was full a moment ago. Return whether an attempt follows."""
        if self._writer.full is not None and self._loop.time() < self._retry_full_at_s:
            return False
        self._wake.set()
        return True

    def _retire(self, file: JournalFile) -> None:
        self._retired.append(file)

    def _was_poisoned(self, error: JournalPoisonedError) -> None:
        if self.on_poison is not None:
            self.on_poison(error)

    async def _keep_file_ready(self) -> None:
        """Run the journal's one task: close full files, and create the next one while the current one is written."""
        try:
            while not self._stopping:
                await self._wake.wait()
                self._wake.clear()
                while self._retired:
                    await self._retired.pop().close()
                wanted = self._ahead or self._writer.waits_for_file
                if wanted and not (self._stopping or self._writer.poisoned or self._writer.has_prepared):
                    # On a full disk only fences and adds of recovery are admitted, so it is these that wait.
                    await self._prepare(urgent=self._writer.waits_for_file and self._writer.full is not None)
        except Exception as error:  # noqa: BLE001 - a task's root: without the task no file follows
            self._writer.poison(error)

    async def _prepare(self, *, short: bool = False, urgent: bool = False) -> None:
        """Prepare the next file. `urgent`: from the reserve if there is no space."""
        try:
            async with self._files_lock:
                path, size = await self._take_spare(short=short, urgent=urgent)
                file = await self._open_spare(path, size)
            self._prepared = (self._writer.position.generation + 1, number_of(path))
            if not await self._store_witness():
                await file.close()
                return
        except DiskFullError as error:
            self._retry_full_at_s = self._loop.time() + JOURNAL_FULL_RETRY_S
            first = self._writer.full is None
            self._writer.no_file(error)
            if first:
                log.warning("%s: no space for the next journal file: %s", self._directory, error)
                if self.on_full is not None:
                    self.on_full(error)
        except OSError as error:
            self._writer.poison(error)
        else:
            if self._writer.full is not None:
                log.info("%s: there is space for journal files again", self._directory)
            self._writer.prepared(file, size)

    async def _take_spare(self, *, short: bool, urgent: bool) -> tuple[str, int]:
        try:
            return await self._files.take_spare(short=short)
        except DiskFullError:
            if not urgent:
                raise

        async def take() -> tuple[str, int]:
            return await self._files.take_spare(short=True, reserved_bytes=0)

        return await self.reserves.retry(self._disk, f"{self._directory}/next", take)

    async def drop_spares(self) -> None:
        """Remove the files that are kept for recycling, to free their space."""
        async with self._files_lock:
            await self._files.drop_spares()

    async def _open_file(self, path: str) -> JournalFile:
        return await self._disk.open_journal(path, synced=self._settings.sync_data)

    async def _open_spare(self, path: str, size: int) -> JournalFile:
        try:
            return await self._open_file(path)
        except DiskFullError:
            await self._files.put_back(path, size)
            raise

    def poison(self, cause: BaseException) -> None:
        """Fail every append, permanently: another journal of the bookie has failed. A second call does nothing."""
        self._writer.poison(cause)

    async def close(self) -> None:
        """Make queued appends durable, write the clean-shutdown record, close the files. A second call does nothing.

        Later appends receive a StorageError.
        """
        if self._closing:
            return
        self._closing = True
        if self._started and not self._writer.poisoned:
            drained = asyncio.Event()
            self._writer.append_record(SHUTDOWN_RECORD, lambda _: drained.set())
            self._writer.refuse(StorageError("the journal is closed"))
            await drained.wait()
        # Only now: queued appends may have needed another file.
        self._stopping = True
        if self._keeper is not None:
            self._wake.set()
            await self._keeper
        writer = self._writer
        if self._witness_timer is not None:
            self._witness_timer.cancel()
        if self._started and not writer.poisoned:
            self._prepared, self._closed = (0, 0), True
            await self._store_witness()
        if self._witnesses is not None:
            await self._witnesses.close()
        for file in [*self._retired, writer.take_file(), writer.take_prepared(), writer.take_opening()]:
            if file is not None:
                await file.close()
        self._retired.clear()
