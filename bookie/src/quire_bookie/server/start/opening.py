"""Opens the data of a bookie's folders: index, storage, journals, replay, and limbo if data was lost.

Owns the order of opening at a start and of closing at a stop. Both orders are such that the next start can continue
after a crash between any two steps:

    note of earlier runs -> index (rebuilt when a ledger volume was lost) -> storage -> limbo, durable
    -> unsynced journal salvaged, flushed -> note of this run -> journals replayed, flushed -> folders count as used

Nothing is acknowledged before the last step. One log line reports the findings and actions.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import field, replace

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.reserved_index import ReservedIndexStore
from quire_bookie.env.space_reserve import SpaceReserves
from quire_bookie.errors import DiskFullError, JournalDamagedError, QuireError, StartupError
from quire_bookie.journal import JournalPositions, Journals
from quire_bookie.journal.salvage import begin_anew, salvage, sync_files
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import LedgerId
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.start.limbo_bounds import existing_bounds
from quire_bookie.server.start.replaying import JournalMarks, ReplayTarget
from quire_bookie.server.start.run_notes import Assessment, RunNotes, assess
from quire_bookie.server.start.start_steps import StartSteps
from quire_bookie.server.start.storage_identity import StorageIdentity
from quire_bookie.storage.ledger_storage import LedgerStorage
from quire_bookie.storage.ledgers.limbo import NO_LEDGER
from quire_bookie.storage.logs.log_directories import home_of
from quire_bookie.storage.rebuilding.rebuild import rebuild_index, remove_lost_proof

_log = logging.getLogger("quire.server")

OpenIndex = Callable[[str], Awaitable[IndexStore]]
"""Opens the index store in a folder."""


@dataclass(slots=True)
class BookieData:
    """Owns the parts of a bookie's data opened so far. `close` works after any step."""

    identity: StorageIdentity
    index: IndexStore | None = None
    storage: LedgerStorage[JournalPositions] | None = None
    journals: Journals | None = None
    run: RunNotes | None = None
    gave_up_journal: bool = False
    """The journal was damaged, and the administrator accepted the loss."""
    reserves: SpaceReserves = field(default_factory=SpaceReserves)
    opened: bool = False
    """The start completed: from here on a clean stop clears the risk of this run."""
    found: list[str] = field(default_factory=list)
    """Texts for the log: what this start recovered, or found damaged or lost."""

    def must_rebuild_index(self, settings: BookieSettings) -> bool:
        """Whether the index, or entry logs that it names, were lost with a volume."""
        return any(folder in (*settings.ledger_paths, settings.index_dir) for folder in self.identity.lost)

    async def close(self) -> None:
        """Flush, write the end of the journals, release everything; the last opened first.

        A failed flush is only logged, since the journals hold all its entries. The run ended cleanly only if no step
        failed.
        """
        clean = await self._flush()
        async with contextlib.AsyncExitStack() as closing:  # one failed close does not prevent the others
            closing.callback(self.identity.release)
            if self.index is not None:
                closing.push_async_callback(self.index.close)
            if clean:
                # Runs after the journals were closed; does nothing if closing them failed.
                closing.push_async_exit(self._end_run)
            if self.journals is not None:
                closing.push_async_callback(self.journals.close)
            if self.storage is not None:
                closing.push_async_callback(self.storage.close)

    async def _flush(self) -> bool:
        """Flush storage. Return whether all acknowledged entries are now durable in it."""
        if self.storage is None or self.journals is None or not self.opened:
            return False
        if self.journals.poisoned or self.storage.failure is not None:
            return False
        try:
            await self.storage.flush()
        except (QuireError, OSError) as error:
            _log.warning("the last flush failed; the next start replays its entries from the journal: %s", error)
            return False
        return True

    async def _end_run(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None or self.run is None:
            return
        try:
            await self.run.write(self.run.note.settled())
        except (DiskFullError, OSError) as failure:
            _log.warning("could not note this stop as clean: %s", failure)


@dataclass(slots=True)
class _Opening:
    """Performs one start, in the steps of `run`."""

    settings: BookieSettings
    data: BookieData
    metadata: MetadataStore
    disk: Disk
    clock: WallClock
    chance: Chance
    open_index: OpenIndex
    steps: StartSteps
    bounds: list[LedgerId] = field(default_factory=list)

    async def run(self) -> None:
        settings, data, disk = self.settings, self.data, self.disk
        data.run = run = await RunNotes.open(disk, settings.ledger_paths[0])
        assessment = assess(run.note, disk.boot_id())
        lost = data.identity.lost
        if settings.ledger_paths[0] in lost:
            # The note was lost with the folder: the journals may be those of a run without syncs.
            assessment = replace(assessment, salvage=True, sync_first=False)
        if lost or assessment.limbo:
            # Before any change: without the metadata the start fails, and the folders stay unchanged.
            self.bounds = await existing_bounds(self.metadata)
        if assessment.sync_first:
            for path in settings.journal_paths:
                await sync_files(disk, path)
        marks = JournalMarks()
        if assessment.salvage:
            storage = await self._open_storage(marks)
            journals = await self._open_salvaged(storage, assessment)
            await self._begin_run(storage, journals, marks)
        else:
            try:
                # Storage and journals are independent: open both at once.
                storage, journals = await _both(self._open_storage(marks), self._open_journals())
                await self._enter_limbo(storage, assessment)
                await self._begin_run(storage, journals, marks)
            except JournalDamagedError as error:
                if not settings.accept_lost_volumes or data.storage is None:
                    raise
                await self._without_journals(data.storage, marks, error)
        if not data.identity.unused:
            await data.identity.settle(disk)
        data.opened = True

    async def _begin_run(
        self, storage: LedgerStorage[JournalPositions], journals: Journals, marks: JournalMarks
    ) -> None:
        assert self.data.run is not None
        marks.journals = journals
        note = self.data.run.note.settled().begun(self.settings.journal, self.disk.boot_id())
        await self.data.run.write(note)
        with self.steps.step("replay"):
            await self._replay(storage, journals)

    async def _open_salvaged(self, storage: LedgerStorage[JournalPositions], assessment: Assessment) -> Journals:
        await self._enter_limbo(storage, assessment)
        with self.steps.step("salvage"):
            await self._salvage(storage)
        return await self._open_journals()

    async def _without_journals(
        self, storage: LedgerStorage[JournalPositions], marks: JournalMarks, error: JournalDamagedError
    ) -> None:
        """Continue in limbo with the intact groups of damaged journals: the administrator accepts the loss."""
        _log.error("the journal is damaged, and acceptLostVolumes is set: %s", error)
        self.data.gave_up_journal = True
        marks.journals = None
        damaged, self.data.journals = self.data.journals, None
        if damaged is not None:
            await damaged.close()
        self.bounds = self.bounds or await existing_bounds(self.metadata)
        assessment = Assessment(f"its journal was damaged: {error.path}", salvage=True)
        journals = await self._open_salvaged(storage, assessment)
        await self._begin_run(storage, journals, marks)

    async def _open_journals(self) -> Journals:
        settings = self.settings
        with self.steps.step("journals"):
            opened = await Journals.open(self.disk, settings.journal_paths, settings.journal, chance=self.chance)
        # Kept at once: `close` finds it even if the waiting task is cancelled.
        self.data.journals = opened
        opened.use_reserves(self.data.reserves)
        return opened

    async def _open_storage(self, marks: JournalMarks) -> LedgerStorage[JournalPositions]:
        with self.steps.step("index"):
            self.data.index = await self._open_index()
        with self.steps.step("storage"):
            return await self._open_ledgers(self.data.index, marks)

    async def _open_index(self) -> IndexStore:
        """Open the index, which writes out its own log: on a full disk that needs the reserve."""
        path, reserves = self.settings.index_path, self.data.reserves
        reserve = await reserves.find(self.disk, path)
        if reserve is None:
            return await self.open_index(path)
        await reserve.ensure(self.settings.index_cache_bytes // 2 + limits.INDEX_RESERVE_BYTES // 2)
        index = await reserves.retry(self.disk, path, lambda: self.open_index(path), limits.INDEX_RESERVE_BYTES)
        return ReservedIndexStore(index, self.disk, reserves, path)

    async def _open_ledgers(self, index: IndexStore, marks: JournalMarks) -> LedgerStorage[JournalPositions]:
        data, settings = self.data, self.settings
        if data.must_rebuild_index(settings):
            await self._rebuild_index(index)
        data.storage = await LedgerStorage.open(
            disk=self.disk,
            index=index,
            directories=settings.ledger_paths,
            settings=settings.storage,
            marks=marks,
            chance=self.chance,
            clock=self.clock,
        )
        data.storage.use_reserve(await data.reserves.find(self.disk, data.storage.home))
        return data.storage

    async def _rebuild_index(self, index: IndexStore) -> None:
        """Rebuild the index from the remaining entry logs: it names logs of a lost volume."""
        await index.delete_range(b"", b"\xff" * 32)
        folders = self.settings.ledger_paths
        for path in folders:
            await self.disk.make_dirs(path)
        home = await home_of(self.disk, folders)
        report = await rebuild_index(
            self.disk,
            index,
            folders,
            home,
            chance=self.chance,
            accept_limbo=True,
            limbo_bounds=self.bounds or [NO_LEDGER],  # empty bounds mean that the cluster has no ledgers
        )
        await remove_lost_proof(self.disk, home, report)
        self.data.found.append(f"the index was rebuilt from {report.logs} entry logs with {report.entries} entries")
        self.data.found += [
            each.what if each.path in each.what else f"{each.path}: {each.what}" for each in report.damage
        ]

    async def _enter_limbo(self, storage: LedgerStorage[JournalPositions], assessment: Assessment) -> None:
        lost = self.data.identity.lost
        if not lost and assessment.limbo is None:
            return
        why = ", ".join([f"{folder} was lost" for folder in lost] + ([assessment.limbo] if assessment.limbo else []))
        if self.bounds:
            await storage.enter_limbo(self.bounds)
        # Limbo is durable: only now may the note that requires it be cleared.
        assert self.data.run is not None
        if not assessment.salvage:
            await self.data.run.write(self.data.run.note.settled())
        self.data.found.append(
            f"in limbo up to ledger {max(self.bounds, default=-1)} ({why}): missing entries are unknown until recovered"
        )

    async def _salvage(self, storage: LedgerStorage[JournalPositions]) -> None:
        """Copy the intact records of an unsynced journal into storage, durably, and start a new journal."""
        target = ReplayTarget(storage)
        for _ in range(2):
            found = [await salvage(self.disk, path, target.deliver) for path in self.settings.journal_paths]
            if not target.again():
                break
        try:
            await storage.flush()
        except DiskFullError as error:
            raise StartupError(f"no space to copy the journal into the ledgers: {error}; free some space") from error
        for path in self.settings.journal_paths:
            await begin_anew(self.disk, path, self.chance)
        self.data.found.append(
            f"{target.entries} entries of a journal that may have holes were intact, "
            f"{sum(each.invalid_groups for each in found)} of its groups were invalid"
        )

    async def _replay(self, storage: LedgerStorage[JournalPositions], journals: Journals) -> None:
        target = ReplayTarget(storage)
        summary = await journals.replay(target.deliver, target.again, ahead=False)
        if not summary.records:
            return
        orphans = f", {target.orphans} of deleted ledgers left out" if target.orphans else ""
        ended = "" if summary.clean else " after an unclean end"
        torn = ", a torn last group dropped" if summary.torn else ""
        what = f"{target.entries} entries in {summary.groups} journal groups replayed"
        if target.entries or target.orphans or not summary.clean:
            self.data.found.append(f"{what}{ended}{orphans}{torn}")
        try:
            await storage.flush()
        except DiskFullError as error:
            _log.warning("could not flush replayed entries; they stay in memory and in the journal: %s", error)


async def _both(
    storage: "Awaitable[LedgerStorage[JournalPositions]]", journals: Awaitable[Journals]
) -> tuple[LedgerStorage[JournalPositions], Journals]:
    """Wait for both even after an error or a cancellation: neither may continue in the background.

    Whatever opened is kept in the data and closed with it.
    """
    opened, logged = await asyncio.gather(storage, journals, return_exceptions=True)
    if isinstance(logged, BaseException):
        raise logged
    if isinstance(opened, BaseException):
        raise opened
    return opened, logged


async def open_data(
    settings: BookieSettings,
    data: BookieData,
    *,
    metadata: MetadataStore,
    disk: Disk,
    clock: WallClock,
    chance: Chance,
    open_index: OpenIndex,
    steps: StartSteps | None = None,
) -> None:
    """Fill `data`; after an error or a cancellation the caller closes it. `steps` receives the duration of each step.

    StartupError, DamagedError, MetadataUnavailableError, DiskFullError, OSError.
    """
    began_s = asyncio.get_running_loop().time()
    await _Opening(settings, data, metadata, disk, clock, chance, open_index, steps or StartSteps()).run()
    took_s = asyncio.get_running_loop().time() - began_s
    assert data.run is not None
    modes = data.run.note.modes
    assert data.storage is not None
    in_limbo = data.storage.in_limbo
    if in_limbo and not any("in limbo" in each for each in data.found):
        data.found.append("in limbo since an earlier start")
    if settings.accept_lost_volumes and not (data.identity.lost or data.gave_up_journal):
        _log.warning(
            "acceptLostVolumes is set, but nothing was lost: unset it, or the next volume that mounts late is given up"
        )
    before = [f"it runs or ran in risky modes ({', '.join(modes)})"] if modes else []
    found = "; ".join([*data.found, *before]) or "nothing to recover"
    _log.log(
        logging.WARNING if in_limbo else logging.INFO,
        "bookie %s opened its folders in %.2f s: %s",
        data.identity.bookie,
        took_s,
        found,
    )
