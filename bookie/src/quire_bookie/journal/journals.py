"""The journals of a bookie, one per journal folder, behind the append API of a single journal.

Owns the routing (a ledger's records go to journal `ledger id mod count`) and the rules across journals: marks are
captured and moved together, a journal that fails poisons the others, `append_force` waits for all. Must never add work
to an append when there is only one journal: its methods are bound directly.

The number of journals may have grown since the records were written, so a ledger may have records in two of them, and
replay may deliver its key after its entries. Therefore no mark moves until every journal has been read (a flush in
between captures the old marks), and `replay` reads all journals a second time if the receiver of the records asks.

Without `write_data` the journals are only replayed; appends are acknowledged in the next loop step, unwritten. The next
start must then detect that the process did not stop cleanly (`server.start.run_notes`).
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.env.space_reserve import SpaceReserves
from quire_bookie.errors import DiskFullError
from quire_bookie.journal.format import JournalPosition
from quire_bookie.journal.journal import Journal
from quire_bookie.journal.replay import Deliver, ReplaySummary
from quire_bookie.journal.writer import BatchDone, Done, GroupTimes, JournalStats, run_dones
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.model import Buffer, LedgerId, Run, RunBatch
from quire_bookie.settings.journal import JournalSettings


class Unwritten:
    """Acknowledges appends without writing them, never from inside an append. Event loop's thread only."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dones: list[Done | None] = []

    def append_run(self, run: Run, done: Done | None) -> None:
        """Call `done` in the next loop step; the run itself is in the write cache."""
        self.append_force(done)

    def append_batch(self, batch: RunBatch, done: BatchDone) -> None:
        """Call `done` in the next loop step."""
        self.append_force(partial(done, batch))

    def append_master_key(self, ledger: LedgerId, key: bytes, done: Done | None = None, token: bytes = b"") -> None:
        """Call `done` in the next loop step."""
        self.append_force(done)

    def append_fence(self, ledger: LedgerId, done: Done | None) -> None:
        """Call `done` in the next loop step."""
        self.append_force(done)

    def append_explicit_lac(self, ledger: LedgerId, packet: Buffer, done: Done | None) -> None:
        """Call `done` in the next loop step."""
        self.append_force(done)

    def append_force(self, done: Done | None) -> None:
        """Call `done` in the next loop step, in the order of the calls: there is nothing to force."""
        if not self._dones:
            self._loop.call_soon(self._run_dones)
        self._dones.append(done)

    def _run_dones(self) -> None:
        dones, self._dones = self._dones, []
        assert dones, "a call is scheduled by the first append"
        run_dones(iter(dones), None)


JournalPositions = tuple[JournalPosition, ...]
"""One position per journal, in the order of the folders."""


class Journals:
    """Routes appends to the journals: `open`, `replay` once, then append. Order per ledger is that of `Journal`."""

    append_run: Callable[[Run, Done | None], None]
    """Queue a run of entries; its buffers must stay unchanged until `done`."""

    append_batch: Callable[[RunBatch, BatchDone], None]
    """Queue runs of any ledgers. `done` is called once for each journal that has some of them, with that part."""

    def __init__(self, journals: Sequence[Journal], settings: JournalSettings) -> None:
        assert journals, "a bookie has at least one journal folder"
        self._journals = tuple(journals)
        self._unwritten = None if settings.write_data else Unwritten()
        self._targets: tuple[Journal | Unwritten, ...] = self._journals
        if self._unwritten is not None:
            self._targets = (self._unwritten,)
        # Bound once: the hot path of a bookie with one journal is that of the journal itself.
        self._runs = tuple(target.append_run for target in self._targets)
        self._count = len(self._runs)
        self.append_run = self._runs[0] if self._count == 1 else self._append_run
        self.append_batch = self._targets[0].append_batch if self._count == 1 else self._append_batch
        self._held: JournalPositions | None = None
        self._failed = False
        self.on_poison: Callable[[BaseException], None] | None = None
        """Called once, after every pending `done` of the failed journal, with the JournalPoisonedError."""
        self.on_full: Callable[[DiskFullError], None] | None = None
        """Called when a journal's next file cannot be created. The current one still takes the groups that fit."""
        for journal in self._journals:
            journal.on_poison = self._one_poisoned
            journal.on_full = self._one_full

    @classmethod
    async def open(
        cls, disk: Disk, directories: Sequence[str], settings: JournalSettings, *, chance: Chance
    ) -> "Journals":
        """Open or create the journal of each folder, locked by the caller. Raises the errors of `Journal.open`."""
        opened: list[Journal] = []
        try:
            for directory in directories:
                opened.append(await Journal.open(disk, directory, settings, chance=chance))
        except BaseException:
            for journal in opened:
                await journal.close()
            raise
        return cls(opened, settings)

    async def replay(
        self, deliver: Deliver, again: Callable[[], bool] = lambda: False, *, ahead: bool = True
    ) -> ReplaySummary:
        """Deliver every durable record from the marks on, journal by journal, then start to accept appends.

        With several journals, `again` is called after all were read; it returns True if records preceded the key of
        their ledger. Everything is then delivered a second time, which the receiver must tolerate. Without `ahead`,
        the caller calls `keep_ahead` later.
        """
        if len(self._journals) > 1:
            self._held = tuple(journal.mark for journal in self._journals)
        summary = await self._read(deliver)
        if len(self._journals) > 1 and again():
            summary = await self._read(deliver)
        if self._unwritten is None:
            for journal in self._journals:
                await journal.start(ahead=ahead)
        self._held = None
        return summary

    def use_reserves(self, reserves: SpaceReserves) -> None:
        """Set the reserves from which, on a full disk, a file for fences or recovery is created."""
        for journal in self._journals:
            journal.reserves = reserves

    async def drop_spares(self) -> None:
        """Call `Journal.drop_spares` of every journal."""
        for journal in self._journals:
            await journal.drop_spares()

    def keep_ahead(self) -> None:
        """Prepare each journal's next file before it is needed, now that the start is over."""
        for journal in self._journals:
            journal.keep_ahead()

    async def _read(self, deliver: Deliver) -> ReplaySummary:
        found = [await journal.read(deliver) for journal in self._journals]
        return ReplaySummary(
            groups=sum(one.groups for one in found),
            records=sum(one.records for one in found),
            clean=all(one.clean or not one.records for one in found),  # a newly added journal is empty
            torn=any(one.torn for one in found),
        )

    # ---- appends: never await, only queue
    def _append_run(self, run: Run, done: Done | None) -> None:
        self._runs[run.ledger % self._count](run, done)

    def _append_batch(self, batch: RunBatch, done: BatchDone) -> None:
        count, entries = self._count, 0
        for at, target in enumerate(self._targets):
            part = batch.only(lambda row: row[0] % count == at)  # noqa: B023 - called at once
            entries += part.entries
            if part.entries:
                target.append_batch(part, done)
        assert entries == batch.entries, "each run goes to one journal"

    def append_master_key(self, ledger: LedgerId, key: bytes, done: Done | None = None, token: bytes = b"") -> None:
        """Queue a ledger's master key and token; must precede the ledger's first run."""
        self._targets[ledger % self._count].append_master_key(ledger, key, done, token)

    def append_fence(self, ledger: LedgerId, done: Done | None) -> None:
        """Queue a fence; it takes effect with `done(None)`."""
        self._targets[ledger % self._count].append_fence(ledger, done)

    def append_explicit_lac(self, ledger: LedgerId, packet: Buffer, done: Done | None) -> None:
        """Queue an explicit LAC as the writer sent it."""
        self._targets[ledger % self._count].append_explicit_lac(ledger, packet, done)

    def append_force(self, done: Done) -> None:
        """Call `done` once all earlier appends are durable in every journal, or with the first error. Writes nothing.

        `done` is called in the next loop step at the earliest, even if nothing is queued.
        """
        if self._count == 1:
            self._targets[0].append_force(done)
            return
        waiting = _AllDone(self._count, done)
        for target in self._targets:
            target.append_force(waiting)

    def start_now(self) -> None:
        """Call `Journal.start_now` of every journal."""
        for journal in self._journals:
            journal.start_now()

    # ---- state
    def last_group_s(self, ledger: LedgerId) -> GroupTimes | None:
        """Return when the last group of a ledger's journal was submitted and became durable; None without journals."""
        return None if self._unwritten is not None else self._journals[ledger % self._count].last_group_s

    @property
    def journals(self) -> tuple[Journal, ...]:
        """The journals, in the order of the folders, for reports on each of them."""
        return self._journals

    @property
    def queued_bytes(self) -> int:
        """Bytes appended and not yet durable, in all journals."""
        return sum(journal.queued_bytes for journal in self._journals)

    @property
    def is_full(self) -> bool:
        """Whether the queue of any journal exceeds its limit."""
        return any(journal.is_full for journal in self._journals)

    @property
    def poisoned(self) -> bool:
        """Whether a write failed; no append is acknowledged any more."""
        return any(journal.poisoned for journal in self._journals)

    @property
    def full(self) -> DiskFullError | None:
        """Why a journal's next file could not be created, or None. The bookie should be read-only while it is set."""
        return next((journal.full for journal in self._journals if journal.full is not None), None)

    @property
    def stats(self) -> JournalStats:
        """Counters of the write side: those of the only journal, or a new sum over all."""
        if len(self._journals) == 1:
            return self._journals[0].stats
        return sum_stats([journal.stats for journal in self._journals])

    @property
    def mark(self) -> JournalPositions:
        """The durable LastLogMark of each journal."""
        return tuple(journal.mark for journal in self._journals)

    def position(self) -> JournalPositions:
        """Return each journal's next unassigned position; while several journals are replayed, their unmoved marks."""
        return self._held or tuple(journal.position() for journal in self._journals)

    async def set_mark(self, positions: JournalPositions) -> None:
        """Make the marks durable and recycle the files before them. After an error some marks may have moved."""
        for journal, position in zip(self._journals, positions, strict=True):
            await journal.set_mark(position)

    # ---- the end
    def _one_poisoned(self, error: BaseException) -> None:
        """Poison every journal: records lost on one disk may be needed together with those on another."""
        if self._failed:
            return
        self._failed = True
        for journal in self._journals:
            journal.poison(error)
        if self.on_poison is not None:
            self.on_poison(error)

    def _one_full(self, error: DiskFullError) -> None:
        if self.on_full is not None:
            self.on_full(error)

    async def close(self) -> None:
        """Call `Journal.close` of every journal: earlier appends become durable. A second call does nothing."""
        results = await asyncio.gather(*(journal.close() for journal in self._journals), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure


class _AllDone:
    """Joins the `done` calls of several journals: calls another `done` after the last one, with the first error."""

    __slots__ = ("_done", "_error", "_left")

    def __init__(self, count: int, done: Done) -> None:
        self._left = count
        self._done = done
        self._error: BaseException | None = None

    def __call__(self, error: BaseException | None) -> None:
        self._error = self._error or error
        assert self._left > 0, "each journal calls once"
        self._left -= 1
        if not self._left:
            self._done(self._error)


def sum_stats(of: Sequence[JournalStats]) -> JournalStats:
    """Combine the counters of several journals: sums, the maximum of a `_max`, histograms bucket by bucket."""
    total = JournalStats()
    for field in dataclasses.fields(JournalStats):
        values = [getattr(stats, field.name) for stats in of]
        if isinstance(values[0], LatencyHistogram):
            joined = LatencyHistogram()
            for value in values:
                joined.add(value)
            setattr(total, field.name, joined)
        else:
            setattr(total, field.name, max(values) if field.name.endswith("_max") else sum(values))
    return total
