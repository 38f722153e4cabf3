"""Repairs one marked ledger: checks it, repairs its replicas, and checks again. The caller holds the ledger's lock.

* A replica whose bookie is gone is copied to another bookie, which then takes its place in the metadata.
* So is a replica on a drained bookie, after the copies were read back from the new bookie.
* A replica whose bookie has been away for less than the delay is waited for.
* A replica that lacks entries, or whose bookie is in limbo, is completed where it is, and the limbo ended.
* A closed ledger that was created with too few copies is copied to further bookies, which then join its ensembles.
* The last segment of an open ledger is left to its writer until `OpenTails` advises to recover the ledger. But
  confirmed entries of it that a bookie reported as damaged are restored there at once.

Iron rule: a bookie leaves an ensemble only after all entries that it had to hold are durable on its replacement, except
entries whose loss an administrator accepted. If anything is unknown, unreadable or contested, the metadata and the mark
stay as they are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import Enum
from functools import partial
from typing import TypeAlias

from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.reading.lac_read import last_entries, read_lac
from quire_bookie.client.recovery import recover_ledger
from quire_bookie.dataclass import dataclass
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import (
    BookieIoError,
    BookieReadOnlyError,
    BookieUnavailableError,
    DigestMismatchError,
    ForeignLedgerError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuorumError,
    TooManyRequestsError,
    UnknownLedgerStateError,
)
from quire_bookie.limits import OPEN_TAIL_PAUSE_S
from quire_bookie.metadata.damage_notes import DamageNotes
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.store import Versioned
from quire_bookie.metadata.under_replication import Mark, ReplicationLocks
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.wanted_copies import missing_copies
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.bookie_status import BookieStatus, lost_after_s, read_bookie_status
from quire_bookie.recovery.ensemble_update import EnsembleUpdate, update_copies, update_empty_segment, update_ensemble
from quire_bookie.recovery.fragment_check import Health, LedgerCheck, ReplicaReport, open_tail, with_limbo
from quire_bookie.recovery.fragment_copy import UNREADABLE_MAX, Copied, ReplicaWriteError, Target, copy_fragment
from quire_bookie.recovery.fragments import closed_fragments, same_instance
from quire_bookie.recovery.noted_damage import check_noted, check_noted_tail
from quire_bookie.recovery.open_ledgers import OpenTails, TailAdvice, TailObservation
from quire_bookie.recovery.placement_check import misplaced
from quire_bookie.recovery.read_back import read_back
from quire_bookie.recovery.stats import RecoveryStats

_log = logging.getLogger("quire.recovery.repair")
_ROUNDS_MAX = 10  # each round moves one replica of a fragment
_ACCEPTED_LOSS_MAX = 100_000  # entries of one fragment whose loss an administrator may accept together
_MOVES = (Health.GONE, Health.FOREIGN, Health.LEAVING, Health.MISPLACED)
_BROKEN = (Health.GONE, Health.FOREIGN, Health.LACKING, Health.LIMBO)
_LOST = (NoSuchEntryError, NoSuchLedgerError, UnknownLedgerStateError, BookieIoError, DigestMismatchError)

EndLimbo: TypeAlias = Callable[[BookieId, LedgerId], Awaitable[None]]
"""Tell a bookie that a ledger is whole there. Raises LedgerError if the bookie was not reached."""


class Verdict(Enum):
    """What happens to the mark."""

    WHOLE = "every replica was found whole"
    DELETED = "the ledger was deleted"
    WAIT = "try again later"
    UNREADABLE = "no replica could serve some entries"


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict and, unless the ledger is whole or deleted, the reason as a text for the administrator.

    `surely`: bookies answered that the entries are unreadable; False: some replicas only did not answer.
    """

    verdict: Verdict
    reason: str = ""
    surely: bool = False
    retry_s: float | None = None
    """Seconds after which the reason is expected to be over; such a wait is not a failure."""


class LedgerRepair:
    """Repairs marked ledgers. One instance serves all workers of a process."""

    def __init__(
        self,
        access: ClusterAccess,
        locks: ReplicationLocks,
        end_limbo: EndLimbo,
        stats: RecoveryStats,
    ) -> None:
        self._access = access
        self._progress = access.progress
        self._locks = locks
        self._end_limbo = end_limbo
        self._stats = stats
        self._controls = RecoveryControls(access.metadata)
        self._damage = DamageNotes(access.metadata)
        self._notes = UnrecoverableLedgers(access.metadata)
        self._copy_pace = RateLimit(access.settings.rate_bytes_s)
        self._check_pace = RateLimit(access.settings.operations_s)
        self.tails = OpenTails(access.settings.open_ledger_grace_s)

    async def repair(self, mark: Mark) -> Result:
        """Repair the ledger as far as possible.

        Raises MetadataError; each step done before it is complete in itself.
        """
        ledger = mark.ledger
        suspected = set(mark.bookies)
        leaving = await self._access.drains.leaving()
        first: LedgerMetadata | None = None
        for _ in range(_ROUNDS_MAX):
            try:
                stored = await self._access.nodes.read(ledger)
            except NoSuchLedgerError:
                for note in await self._damage.read(ledger):
                    await self._damage.clear(ledger, note)
                return Result(Verdict.DELETED)
            if first is not None and not same_instance(first, stored.value):
                return Result(Verdict.WAIT, "the id belongs to another ledger now")
            first = stored.value
            status = await read_bookie_status(self._access, self._controls, stored.value, leaving)
            result = await self._round(mark, stored, suspected, status)
            if result is not None:
                return result
        return Result(Verdict.WAIT, "its replicas keep changing")

    async def _round(
        self, mark: Mark, stored: Versioned[LedgerMetadata], suspected: set[BookieId], status: BookieStatus
    ) -> Result | None:
        """Check once and repair. Return None after a change: the ledger must be checked again."""
        ledger, metadata = mark.ledger, stored.value
        handle = self._access.handle(ledger, metadata)
        check = LedgerCheck(self._access, handle, self._check_pace)
        # Compare the lists of all bookies: the cause of one replica's missing entries may have affected others.
        reports = await check.check(closed_fragments(metadata), suspected=suspected)
        notes = await self._damage.read(ledger)
        suspected.update(note.bookie for note in notes)
        reports = await check_noted(check, with_limbo(reports), notes)
        reports = status.with_drained(reports)
        bad = [
            report
            for report in reports
            if report.health not in (Health.WHOLE, Health.UNKNOWN) and report.bookie not in status.away
        ]
        missing = missing_copies(metadata, self._access.settings.unmarked_write_quorum)
        if missing and metadata.state is LedgerState.CLOSED and not any(one.health in _BROKEN for one in bad):
            # Before a bookie leaves: the ledger then has all its copies when the bookie is replaced.
            return await self._raise(handle, metadata, missing, status.leaving)
        if not bad and self._access.settings.repair_placement:
            bad = misplaced(self._access, metadata, status.leaving)
        if bad:
            return await self._repair_fragments(handle, metadata, bad, suspected, status)
        if metadata.state is not LedgerState.CLOSED:
            tail = await check_noted_tail(check, handle, metadata, notes)
            if tail.bad:
                return await self._complete_tail(handle, metadata, tail.bad, suspected)
            may_go = mark if tail.settled else None
            advice = await self._advise_on_tail(handle, metadata, check, suspected, status, may_go)
            if advice is TailAdvice.RECOVER:
                return await self._recover(handle, stored)
            if advice is TailAdvice.WAIT:
                return Result(Verdict.WAIT, f"open: {advice.value}", retry_s=self.tails.wait_s(ledger))
            if advice is not TailAdvice.FINE:
                return Result(Verdict.WAIT, f"open: {advice.value}")
        else:
            self.tails.forget(ledger)
            if status.leaving & set(metadata.segments[-1].ensemble):
                return await self._leave_empty_segment(ledger, metadata, status.leaving)
        if status.away:
            named = ", ".join(sorted(status.away))
            return Result(Verdict.WAIT, f"waiting for {named} to come back", retry_s=status.back_s)
        unknown = [report for report in reports if report.health is Health.UNKNOWN]
        if unknown:
            named = ", ".join(sorted({report.bookie for report in unknown}))
            return Result(Verdict.WAIT, f"no answer from {named}: {unknown[0].reason}")
        for note in notes:
            await self._damage.clear(ledger, note)
        return Result(Verdict.WHOLE)

    # ---- more copies
    async def _raise(
        self, handle: LedgerHandle, metadata: LedgerMetadata, missing: int, leaving: frozenset[BookieId]
    ) -> Result | None:
        """Copy a closed ledger to as many further bookies as it lacks, or as are available, then name them."""
        ledger, wanted = handle.ledger, metadata.write_quorum + missing
        plan = self._added_bookies(metadata, missing, leaving)
        if not plan:
            return Result(
                Verdict.WAIT,
                f"it has {metadata.write_quorum} of {wanted} copies, and no further bookie is writable",
                retry_s=self._access.settings.retry_s[1],
            )
        for fragment in closed_fragments(metadata):
            whole = ReplicaReport(fragment, 0, Health.LACKING, ((fragment.first, fragment.last),))
            for bookie in plan[fragment.first]:
                try:
                    copied = await self._copy(handle, metadata, whole, bookie)
                except ReplicaWriteError as error:
                    return Result(Verdict.WAIT, str(error))
                if copied.unreadable:
                    return _unreadable(whole, copied)
        assert len({len(bookies) for bookies in plan.values()}) == 1, "each segment gets the same number of copies"
        named = {bookie for bookies in plan.values() for bookie in bookies}
        outcome = await update_copies(
            self._access.nodes, ledger, metadata, plan, lambda: self._may_update(ledger, named)
        )
        if outcome is not EnsembleUpdate.DONE:
            return Result(Verdict.WAIT, outcome.value)
        self._stats.ledgers_raised += 1
        _log.info(
            "ledger %d: raised from %d copies (%d wanted); added %s",
            ledger,
            metadata.write_quorum,
            wanted,
            sorted(named),
        )
        return None

    def _added_bookies(
        self, metadata: LedgerMetadata, missing: int, leaving: frozenset[BookieId]
    ) -> dict[EntryId, tuple[BookieId, ...]]:
        """Return by first entry of each segment the bookies that join it, equally many for each; empty if a segment
        finds
        none.
        """
        found = {
            segment.first_entry: self._access.bookies_for(metadata).additions(
                segment.ensemble, missing, leaving, metadata.write_quorum + missing
            )
            for segment in metadata.segments
        }
        count = min(map(len, found.values()))
        return {first: bookies[:count] for first, bookies in found.items()} if count else {}

    # ---- closed fragments
    async def _repair_fragments(
        self,
        handle: LedgerHandle,
        metadata: LedgerMetadata,
        bad: list[ReplicaReport],
        suspected: set[BookieId],
        status: BookieStatus,
    ) -> Result | None:
        """Repair every bad replica once. If nothing was gained, return the first problem.

        Replicas that are completed where they are come first: the others can then be copied from them.
        """
        troubles: list[Result] = []
        changed_at: set[EntryId] = set()
        for report in sorted(bad, key=lambda one: one.health in _MOVES):
            if report.fragment.first in changed_at:
                continue  # its ensemble has changed: the next round checks it
            result = await self._repair_one(handle, metadata, report, suspected, changed_at, status.leaving)
            if result is not None:
                troubles.append(result)
        if changed_at:
            return None
        if not troubles:
            limbo = {report.bookie for report in bad if report.health is Health.LIMBO}
            return await self._end_limbos(handle, metadata, limbo)
        return next((trouble for trouble in troubles if trouble.verdict is Verdict.UNREADABLE), troubles[0])

    async def _repair_one(
        self,
        handle: LedgerHandle,
        metadata: LedgerMetadata,
        report: ReplicaReport,
        suspected: set[BookieId],
        changed_at: set[EntryId],
        leaving: frozenset[BookieId],
    ) -> Result | None:
        if report.health not in _MOVES:
            try:
                return await self._restore(handle, metadata, report, suspected)
            except ReplicaWriteError as error:
                if not isinstance(error.cause, BookieReadOnlyError):
                    return Result(Verdict.WAIT, str(error))
                # The bookie serves reads but refuses adds: a whole copy on another bookie replaces it.
        return await self._replace(handle, metadata, report, suspected, changed_at, leaving)

    async def _restore(
        self, handle: LedgerHandle, metadata: LedgerMetadata, report: ReplicaReport, suspected: set[BookieId]
    ) -> Result | None:
        """Restore the missing entries of a replica on its own bookie. Raises ReplicaWriteError."""
        _log.info(
            "ledger %d: restoring on bookie %s missing entries of %d to %d: %s",
            handle.ledger,
            report.bookie,
            report.fragment.first,
            report.fragment.last,
            report.reason,
        )
        copied = await self._copy(handle, metadata, report, report.bookie)
        suspected.add(report.bookie)
        if copied.unreadable:
            return _unreadable(report, copied)
        self._stats.replicas_restored += 1
        return None

    async def _replace(
        self,
        handle: LedgerHandle,
        metadata: LedgerMetadata,
        report: ReplicaReport,
        suspected: set[BookieId],
        changed_at: set[EntryId],
        leaving: frozenset[BookieId],
    ) -> Result | None:
        """Copy a replica to another bookie and name that one in the metadata."""
        fragment = report.fragment
        is_leaving = report.bookie in leaving
        chosen = report.target
        if chosen is None:
            excluded = leaving | {report.bookie} if report.health is Health.FOREIGN else leaving
            plan = self._access.bookies_for(metadata).replacements(
                fragment.ensemble, [report.position], excluded, fragment.write_quorum
            )
            chosen = plan.get(report.position, report.bookie)
        if chosen == report.bookie:
            return Result(Verdict.WAIT, f"no writable bookie is left to take the replica of {report.bookie}")
        assert chosen not in fragment.ensemble, "a bookie at two positions counts twice"
        whole = ReplicaReport(fragment, report.position, report.health, ((fragment.first, fragment.last),))
        accepted = is_leaving and await self._is_loss_accepted(handle.ledger)
        try:
            copied = await self._copy(handle, metadata, whole, chosen, accepted=accepted)
        except ReplicaWriteError as error:
            return Result(Verdict.WAIT, str(error))
        if copied.unreadable and not (accepted and await self._is_lost(handle, report.bookie, copied)):
            return _unreadable(report, copied)
        if is_leaving:
            trouble = await self._read_back(handle, metadata, whole, chosen, copied)
            if trouble is not None:
                return trouble
        self._progress.step(handle.ledger, f"naming {chosen} in its metadata")
        outcome = await update_ensemble(
            self._access.nodes,
            handle.ledger,
            metadata,
            fragment,
            {report.position: chosen},
            lambda: self._may_update(handle.ledger, {chosen}),
        )
        if outcome is EnsembleUpdate.GONE:
            return Result(Verdict.WAIT, "the ledger was deleted meanwhile")
        changed_at.add(fragment.first)
        suspected.add(chosen)
        if outcome is EnsembleUpdate.VOID:
            return Result(Verdict.WAIT, "the ledger was changed meanwhile")
        self._stats.replicas_replaced += 1
        self._stats.replicas_relocated += report.health is Health.MISPLACED
        _log.info(
            "ledger %d: bookie %s holds entries %d to %d in place of %s",
            handle.ledger,
            chosen,
            fragment.first,
            fragment.last,
            report.bookie,
        )
        return None

    async def _may_update(self, ledger: LedgerId, chosen: Collection[BookieId]) -> bool:
        """Return whether the metadata may name these bookies now.

        No other process may work on the ledger, the cluster must still be the same, else a bookie may delete copies
        that no metadata name yet, and none of the bookies may be leaving.
        """
        return (
            await self._locks.is_held(ledger)
            and await self._access.is_same_cluster()
            and (await self._access.drains.leaving()).isdisjoint(chosen)
        )

    async def _read_back(
        self, handle: LedgerHandle, metadata: LedgerMetadata, report: ReplicaReport, chosen: BookieId, copied: Copied
    ) -> Result | None:
        """Read the copies back: the leaving bookie may have been their only holder, and its disks may be discarded."""
        self._progress.step(handle.ledger, f"reading copies back from {chosen}")
        try:
            self._stats.bytes_read_back += await read_back(
                handle,
                metadata,
                report.fragment,
                report.position,
                chosen,
                pace=self._copy_pace,
                batch_bytes=self._access.settings.batch_bytes,
                without=copied.unreadable,
                advanced=partial(self._progress.advanced, handle.ledger),
            )
        except LedgerError as error:
            return Result(Verdict.WAIT, f"copies on {chosen} could not be read back: {error}")
        return None

    async def _is_loss_accepted(self, ledger: LedgerId) -> bool:
        note = await self._notes.read(ledger)
        return note is not None and note.accepted_ms is not None

    async def _is_lost(self, handle: LedgerHandle, bookie: BookieId, copied: Copied) -> bool:
        """Return whether the leaving bookie cannot serve any of the entries that no replica served.

        A bookie that does not answer, or has been away for less than the delay, may hold them: its replica is not given
        up.
        """
        if bookie not in self._access.registered:
            away_s = self._access.absences.away_s(bookie, asyncio.get_running_loop().time())
            return away_s >= await lost_after_s(self._access, self._controls)
        check = LedgerCheck(self._access, handle, self._check_pace)
        answers = await check.read_all(bookie, sorted(copied.unreadable))
        return len(answers) == len(copied.unreadable) and all(isinstance(one, _LOST) for one in answers.values())

    async def _leave_empty_segment(
        self, ledger: LedgerId, metadata: LedgerMetadata, leaving: frozenset[BookieId]
    ) -> Result | None:
        """Name other bookies for the last segment of a closed ledger, which has no entries, without a copy."""
        ensemble = metadata.segments[-1].ensemble
        lost = [position for position, bookie in enumerate(ensemble) if bookie in leaving]
        plan = self._access.bookies_for(metadata).replacements(ensemble, lost, leaving, metadata.write_quorum)
        if not plan:
            return Result(Verdict.WAIT, "no writable bookie is left for a segment without entries")
        if not await self._may_update(ledger, plan.values()):
            return Result(Verdict.WAIT, "the bookies are changing")
        await update_empty_segment(self._access.nodes, ledger, metadata, plan)
        return None

    async def _copy(
        self,
        handle: LedgerHandle,
        metadata: LedgerMetadata,
        report: ReplicaReport,
        bookie: BookieId,
        *,
        accepted: bool = False,
    ) -> Copied:
        target = Target(report.position, bookie, report.to_store)
        fragment = report.fragment
        self._progress.step(handle.ledger, f"copying entries {fragment.first} to {fragment.last} to {bookie}")
        copied = await copy_fragment(
            handle,
            metadata,
            fragment,
            [target],
            self._copy_pace,
            self._access.settings.batch_bytes,
            unreadable_max=_ACCEPTED_LOSS_MAX if accepted else UNREADABLE_MAX,
            advanced=partial(self._progress.advanced, handle.ledger),
        )
        self._stats.entries_copied += copied.entries
        self._stats.bytes_copied += copied.size_bytes
        return copied

    async def _end_limbos(
        self, handle: LedgerHandle, metadata: LedgerMetadata, bookies: set[BookieId]
    ) -> Result | None:
        """End the limbo of these bookies: they hold all that they must, so a missing entry is evidence again."""
        if bookies and metadata.state is not LedgerState.CLOSED:
            return Result(Verdict.WAIT, "open: its limbo can end only after it is closed")
        for bookie in sorted(bookies):
            self._progress.step(handle.ledger, f"ending its limbo at {bookie}")
            try:
                await self._end_limbo(bookie, handle.ledger)
            except LedgerError as error:
                return Result(Verdict.WAIT, f"its limbo at {bookie} could not be ended: {error}")
            self._stats.limbo_ended += 1
        return None

    # ---- the last segment of an open ledger
    async def _complete_tail(
        self, handle: LedgerHandle, metadata: LedgerMetadata, bad: Sequence[ReplicaReport], suspected: set[BookieId]
    ) -> Result | None:
        """Restore damaged confirmed entries where they are. Never changes the ensemble: only the writer may."""
        for report in bad:
            try:
                trouble = await self._restore(handle, metadata, report, suspected)
            except ReplicaWriteError as error:
                return Result(Verdict.WAIT, str(error))
            if trouble is not None:
                return trouble
        return None

    async def _advise_on_tail(
        self,
        handle: LedgerHandle,
        metadata: LedgerMetadata,
        check: LedgerCheck,
        suspected: set[BookieId],
        status: BookieStatus,
        mark: Mark | None,
    ) -> TailAdvice:
        """Observe the last segment of an open ledger and return advice. `mark`:

        None if it must stay until the ledger closes.
        """
        self._progress.step(handle.ledger, "observing its open segment")
        segment = metadata.segments[-1]
        registered = self._access.registered
        gone = frozenset(segment.ensemble) - registered - status.away
        leaving = frozenset(segment.ensemble) & status.leaving
        named = frozenset(segment.ensemble) & suspected & registered
        lac: EntryId | None = None
        lags = served = False
        extent = None
        if named and mark is not None and not gone and not leaving:
            extent = await self._extent(handle, segment, mark)
        narrow = missing_copies(metadata, self._access.settings.unmarked_write_quorum) > 0
        if gone or named or leaving or narrow:
            try:
                lac = (await read_lac(handle.read_way, metadata)).lac
            except (QuorumError, LedgerError) as error:
                _log.info("ledger %d: could not read its last confirmed entry: %s", handle.ledger, error)
            if lac is not None and lac < segment.first_entry:
                if not await self._has_first(handle, metadata):
                    # Nothing is missing. Of a later entry that is not on a marked bookie, the writer makes a new mark.
                    served, gone = not gone and mark is not None, frozenset()
            elif lac is not None and named:
                reports = await check.check([open_tail(metadata, lac)], listed=named)
                healths = [one.health for one in reports if one.bookie in named]
                lags = any(health in (Health.LACKING, Health.LIMBO) for health in healths)
                if extent is not None and lac > extent and all(health is Health.WHOLE for health in healths):
                    served = await self._is_sent_to(handle, named, extent)
        seen = TailObservation(segment, gone, named, lags, lac, leaving, narrow, served)
        now_s = asyncio.get_running_loop().time()
        candidates = self._access.permitted_beside(set(segment.ensemble) - gone - leaving, metadata)
        return self.tails.advise(handle.ledger, seen, candidates, now_s)

    async def _extent(self, handle: LedgerHandle, segment: Segment, mark: Mark) -> EntryId | None:
        """Return the extent, see `OpenTails.extent`; None if a bookie does not report the entries that it holds."""
        known = self.tails.extent(handle.ledger, segment, mark)
        if known is not None:
            return known
        try:
            held = await last_entries(handle.read_way, segment.ensemble)
        except LedgerError as error:
            _log.info("ledger %d: not every bookie reports its entries: %s", handle.ledger, error)
            return None
        found = self.tails.note_extent(handle.ledger, segment, mark, max(one.entry for one in held.values()))
        await asyncio.sleep(OPEN_TAIL_PAUSE_S)
        return found

    async def _is_sent_to(self, handle: LedgerHandle, named: frozenset[BookieId], extent: EntryId) -> bool:
        """Return whether all of `named` hold an entry that was sent after all entries up to `extent`."""
        try:
            held = await last_entries(handle.read_way, named)
        except LedgerError as error:
            _log.info("ledger %d: unknown whether its writer sends to %s: %s", handle.ledger, sorted(named), error)
            return False
        return all(one.lac > extent for one in held.values())

    async def _has_first(self, handle: LedgerHandle, metadata: LedgerMetadata) -> bool:
        """Return whether any replica may hold the first entry of the last segment: False only if all deny it."""
        fragment = open_tail(metadata, metadata.segments[-1].first_entry)
        reports = await LedgerCheck(self._access, handle, self._check_pace).check([fragment], listed=())
        asked = [report for report in reports if report.health is not Health.GONE]
        holders = [report for report in asked if fragment.holds(report.position, fragment.first)]
        return any(report.health is not Health.LACKING for report in holders)

    async def _recover(self, handle: LedgerHandle, stored: Versioned[LedgerMetadata]) -> Result | None:
        _log.warning(
            "ledger %d has lacked a replica for the whole grace period: recovering and closing it", handle.ledger
        )
        self._progress.step(handle.ledger, "recovering and closing it")
        try:
            await recover_ledger(handle, stored)
        except NoSuchLedgerError:
            return Result(Verdict.DELETED)
        except LedgerError as error:
            return Result(Verdict.WAIT, f"it could not be recovered: {error}")
        self.tails.forget(handle.ledger)
        self._stats.ledgers_recovered += 1
        return None


def _unreadable(report: ReplicaReport, copied: Copied) -> Result:
    first = min(copied.unreadable)
    error = copied.unreadable[first]
    count = len(copied.unreadable)
    fragment = report.fragment
    text = (
        f"entries {fragment.first} to {fragment.last} on {', '.join(fragment.ensemble)}: "
        f"{count} cannot be read from any replica, the first is {first}: {error}"
    )
    surely = not any(
        isinstance(one, (BookieUnavailableError, ForeignLedgerError, TooManyRequestsError))
        for one in copied.unreadable.values()
    )
    return Result(Verdict.UNREADABLE, text, surely)
