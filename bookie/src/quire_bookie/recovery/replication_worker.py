"""Works through the marks: picks a free ledger, repairs it under its lock, then removes or keeps its mark.

Any number of workers share the marks, in any number of processes, Quire's and Java's. This module remembers when each
ledger may be tried again; a restart forgets it. A worker removes a mark only if it found every replica whole after it
read the mark, and only if the mark is unchanged. The mark of a deleted ledger is removed at once.

A repair that makes no progress is given up, so that one ledger never keeps a worker and a lock from all others.
"""

import asyncio
import logging

from quire_bookie.env.backoff import Backoff, pause_after
from quire_bookie.errors import LedgerError, MetadataError, MetadataFormatError
from quire_bookie.limits import (
    CHECK_READS_AT_ONCE,
    FRAME_BYTES_MAX,
    METADATA_RETRY_BACKOFF_S,
    REPLICATION_REMEMBERED_MAX,
)
from quire_bookie.metadata.recovery_controls import LOST_BOOKIE_DELAY, MissingGivenUp, RecoveryControls
from quire_bookie.metadata.retrying import watch_with_retries, with_retries
from quire_bookie.metadata.store import EventKind
from quire_bookie.metadata.under_replication import UNDER_REPLICATION, Mark, ReplicationLocks, ledger_of_mark
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import LedgerId
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.forecast import Forecast
from quire_bookie.recovery.ledger_repair import LedgerRepair, Result, Verdict
from quire_bookie.recovery.stats import RecoveryStats
from quire_bookie.settings.recovery import RecoverySettings

_log = logging.getLogger("quire.recovery.worker")
_UNSURE_ATTEMPTS = 2
"""After this number of failed attempts a ledger counts as unrecoverable even if some replicas only did not answer."""


class Attempts:
    """Tracks when each ledger may be tried again. Its size is bounded; a ledger that it forgets is tried at once."""

    def __init__(self, retry_s: tuple[float, float]) -> None:
        self._low_s, self._high_s = retry_s
        self._next: dict[LedgerId, tuple[int, float, float]] = {}
        """By ledger: the number of failures, the time when it is due, and the earliest time at which `retry_soon`
        may make it due.
        """

    def is_due(self, ledger: LedgerId, now_s: float) -> bool:
        """Return whether the ledger may be tried now."""
        known = self._next.get(ledger)
        return known is None or known[1] <= now_s

    def failed(self, ledger: LedgerId, now_s: float) -> int:
        """Note a failed attempt and return the number of attempts so far. The wait doubles each time."""
        count = self._count(ledger) + 1
        wait_s = pause_after(count, (self._low_s, self._high_s))
        self._next[ledger] = count, now_s + wait_s, now_s + self._low_s
        return count

    def waits(self, ledger: LedgerId, now_s: float, wait_s: float) -> None:
        """Try the ledger again in `wait_s`, or when the bookies change. Nothing failed."""
        self._next[ledger] = self._count(ledger), now_s + min(wait_s, self._high_s), now_s

    def _count(self, ledger: LedgerId) -> int:
        if ledger not in self._next and len(self._next) >= REPLICATION_REMEMBERED_MAX:
            del self._next[next(iter(self._next))]
        return self._next.get(ledger, (0, 0.0, 0.0))[0]

    def settled(self, ledger: LedgerId) -> None:
        """Forget the ledger: no work is left for it."""
        self._next.pop(ledger, None)

    def retry_soon(self, now_s: float) -> None:
        """Try every ledger again: the bookies changed. A failed one not sooner than the first wait after it failed."""
        for ledger in self._next:
            self.changed(ledger, now_s)

    def changed(self, ledger: LedgerId, now_s: float) -> None:
        """Try this ledger again: its mark was written again. A failed one as in `retry_soon`."""
        known = self._next.get(ledger)
        if known is not None:
            count, next_s, earliest_s = known
            self._next[ledger] = count, min(next_s, max(now_s, earliest_s)), earliest_s

    def next_due_s(self, now_s: float) -> float | None:
        """Return the seconds until the next ledger becomes due; None if no ledger waits."""
        waits = [next_s - now_s for _, next_s, _ in self._next.values() if next_s > now_s]
        return min(waits, default=None)


def patience_s(settings: RecoverySettings) -> float | None:
    """Return how long a repair may take for one part of a step; None: as long as it likes.

    The configured rates, which all workers share, delay a part in addition.
    """
    if not settings.stalled_repair_s:
        return None
    share_s = FRAME_BYTES_MAX / settings.rate_bytes_s if settings.rate_bytes_s else 0.0
    share_s += CHECK_READS_AT_ONCE / settings.operations_s if settings.operations_s else 0.0
    return settings.stalled_repair_s + settings.workers * share_s


class ReplicationWorkers:
    """Runs the replication workers of one process. `run` ends only with an unexpected error or by cancellation."""

    def __init__(
        self,
        access: ClusterAccess,
        repair: LedgerRepair,
        locks: ReplicationLocks,
        controls: RecoveryControls,
        stats: RecoveryStats,
    ) -> None:
        self._access = access
        self._repair = repair
        self._locks = locks
        self._controls = controls
        self._stats = stats
        self._notes = UnrecoverableLedgers(access.metadata)
        self._attempts = Attempts(access.settings.retry_s)
        self._patience_s = patience_s(access.settings)
        self._busy: set[LedgerId] = set()
        self._forecast = Forecast()
        self._given_up = MissingGivenUp(access.metadata)
        self._wake = asyncio.Event()

    @property
    def busy(self) -> frozenset[LedgerId]:
        """The ledgers that a worker repairs now."""
        return frozenset(self._busy)

    async def run(self) -> None:
        """Work until cancelled."""
        forget = self._access.registry.on_change(self._bookies_changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(), name="follow marks")
                for number in range(self._access.settings.workers):
                    group.create_task(self._work(), name=f"replication worker {number}")
        finally:
            forget()

    def _bookies_changed(self) -> None:
        self._attempts.retry_soon(asyncio.get_running_loop().time())
        self._wake.set()

    async def _follow(self) -> None:
        """Wake the workers when the marks or the auto-recovery switch change."""
        watch = await watch_with_retries(self._access.metadata, f"{UNDER_REPLICATION}/", _log.warning)
        try:
            await with_retries(self._given_up.was_requested, "read the lost bookie delay", _log.warning)
            async for event in watch:
                if event.key == LOST_BOOKIE_DELAY or event.kind is EventKind.RESYNC:
                    await with_retries(self._delay_changed, "read which bookies are missing", _log.warning)
                elif event.kind is EventKind.MODIFIED and (ledger := ledger_of_mark(event.key)) is not None:
                    self._attempts.changed(ledger, asyncio.get_running_loop().time())
                if not event.key.startswith(f"{UNDER_REPLICATION}/locks/"):
                    self._wake.set()
        finally:
            await watch.close()

    async def _delay_changed(self) -> None:
        """Apply a changed delay.

        If the administrator gave up on the missing bookies, they are not waited for at all.
        """
        present = await self._access.registered_in_store()
        if await self._given_up.was_requested():
            self._access.absences.give_up(present)
        self._attempts.retry_soon(asyncio.get_running_loop().time())

    async def _work(self) -> None:
        backoff = Backoff(METADATA_RETRY_BACKOFF_S)
        while True:
            self._wake.clear()
            try:
                await self._locks.release_left()
                worked = await self._controls.is_enabled() and await self._one_pass()
                backoff.reset()
            except MetadataError as error:
                _log.warning("cannot read or change the marks now, retrying: %s", error)
                await backoff.wait()
                continue
            if not worked:
                await self._idle()

    async def _idle(self) -> None:
        wait_s = self._access.settings.poll_s
        due_s = self._attempts.next_due_s(asyncio.get_running_loop().time())
        if due_s is not None:
            wait_s = min(wait_s, max(due_s, 0.05))
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _one_pass(self) -> bool:
        """Try each mark once if it is due and no other worker has it. Return whether any ledger was worked on."""
        worked = False
        count, oldest_ms = 0, 0
        async for page in self._access.marks.marks():
            count += len(page)
            times = [mark.marked_ms for mark in page if mark.marked_ms is not None]
            oldest_ms = min([oldest_ms, *times] if oldest_ms else times, default=oldest_ms)
            # Shuffled, so that several processes do not compete for each ledger.
            for mark in self._access.chance.sample(page, len(page)):
                if await self._try(mark.ledger):
                    worked = True
                    if not await self._controls.is_enabled():
                        return True
        self._counted(count, oldest_ms)
        return worked

    def _counted(self, count: int, oldest_ms: int) -> None:
        stats = self._stats
        stats.under_replicated, stats.under_replicated_oldest_ms = count, oldest_ms
        age_ms = self._access.clock.now_ms() - oldest_ms if oldest_ms else 0
        stats.under_replicated_oldest_s = max(0, age_ms) // 1000
        self._forecast.record(count, asyncio.get_running_loop().time())
        stats.under_replicated_eta_s = self._forecast.eta_s()

    async def _try(self, ledger: LedgerId) -> bool:
        """Work on one ledger unless it is not due or another worker has it. Return whether it was worked on."""
        loop = asyncio.get_running_loop()
        if ledger in self._busy or not self._attempts.is_due(ledger, loop.time()):
            return False
        self._busy.add(ledger)
        try:
            if not await self._locks.acquire(ledger):
                return False
            try:
                # Read the mark under the lock: a bookie that is marked later was not checked by this repair.
                try:
                    mark = await self._access.marks.read(ledger)
                except MetadataFormatError as error:
                    self._attempts.failed(ledger, loop.time())
                    _log.warning("skipping an unreadable mark: %s", error)
                    return False
                if mark is not None:
                    await self._settle(mark, await self._repaired(mark))
            finally:
                await self._locks.release(ledger)
            return True
        finally:
            self._busy.discard(ledger)

    async def _repaired(self, mark: Mark) -> Result:
        """Repair the ledger; give the repair up once it makes no progress."""
        ledger, progress = mark.ledger, self._access.progress
        progress.begin(ledger)
        work = asyncio.get_running_loop().create_task(self._repair.repair(mark), name=f"repair of ledger {ledger}")
        try:
            while not work.done():
                left_s = None if self._patience_s is None else self._patience_s - progress.idle_s(ledger)
                if left_s is not None and left_s <= 0:
                    return self._stalled(ledger)
                await asyncio.wait((work,), timeout=left_s)
            if work.cancelled():  # not by this worker, which must not end with it
                return Result(Verdict.WAIT, f"it was cancelled while {progress.step_of(ledger)}")
            return work.result()
        except (LedgerError, MetadataError) as error:
            return Result(Verdict.WAIT, f"{type(error).__name__}: {error}")
        finally:
            # Also if this worker is cancelled: the lock is released next.
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            progress.end(ledger)

    def _stalled(self, ledger: LedgerId) -> Result:
        progress = self._access.progress
        reason = f"it made no progress for {progress.idle_s(ledger):.0f} s while {progress.step_of(ledger)}"
        self._stats.repairs_stalled += 1
        _log.warning("giving up this repair of ledger %d, another attempt follows: %s", ledger, reason)
        return Result(Verdict.WAIT, reason)

    async def _settle(self, mark: Mark, result: Result) -> None:
        ledger = mark.ledger
        now_s = asyncio.get_running_loop().time()
        if result.verdict in (Verdict.WHOLE, Verdict.DELETED):
            if not await self._access.marks.remove(mark):
                return  # another mark was added meanwhile: the ledger stays due
            await self._notes.clear(ledger)
            self._attempts.settled(ledger)
            self._repair.tails.forget(ledger)
            if result.verdict is Verdict.WHOLE:
                self._stats.ledgers_repaired += 1
            _log.info("ledger %d: %s; its mark is removed", ledger, result.verdict.value)
            return
        if result.retry_s is not None:
            self._attempts.waits(ledger, now_s, result.retry_s)
            _log.info("ledger %d stays marked: %s", ledger, result.reason)
            return
        self._stats.repairs_failed += 1
        count = self._attempts.failed(ledger, now_s)
        _log.info("ledger %d stays marked after attempt %d: %s: %s", ledger, count, result.verdict.value, result.reason)
        if result.verdict is Verdict.UNREADABLE and (result.surely or count >= _UNSURE_ATTEMPTS):
            _log.warning("ledger %d cannot be restored: %s", ledger, result.reason)
            await self._notes.note(ledger, result.reason, self._access.clock.now_ms())
            self._stats.unrecoverable_noted += 1
