"""Makes one marked ledger whole: looks what is bad by now, repairs it, looks again. The caller holds the lock.

* a replica whose bookie is gone is copied to another bookie, which then takes its place in the metadata;
* one whose bookie is drained likewise, after what it copied was read back from the new one;
* one whose bookie is away for less than the delay is waited for;
* one that lacks entries, or whose bookie is in limbo, is completed where it is, and its limbo ended;
* a closed ledger that was created with too few copies is copied to further bookies, which then join its ensembles;
* the last segment of an open ledger is left to its writer until `OpenTails` says otherwise, then it is recovered; but
  confirmed entries of it that a bookie reported as damaged are completed there at once.

Iron rule: a bookie leaves an ensemble only after everything that it had to hold is durable on the one that takes its
place, but for entries whose loss a person accepted. Whatever stays unknown, unreadable or contested leaves the metadata
as it is, and the mark where it is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from quire_bookie.client.lac_read import last_entries, read_lac
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.recovery import recover_ledger
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
from quire_bookie.metadata.under_replication import Mark, ReplicationLocks
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.metadata.versioned import Versioned
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.quorum.wanted_copies import missing_copies
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.ensemble_update import EnsembleUpdate, update_copies, update_empty_segment, update_ensemble
from quire_bookie.recovery.fragment_check import Health, LedgerCheck, ReplicaReport, open_tail, with_limbo
from quire_bookie.recovery.fragment_copy import UNREADABLE_MAX, Copied, ReplicaWriteError, Target, copy_fragment
from quire_bookie.recovery.fragments import closed_fragments, same_instance
from quire_bookie.recovery.noted_damage import look_at_noted, look_at_noted_tail
from quire_bookie.recovery.open_ledgers import OpenTails, TailAdvice, TailSeen
from quire_bookie.recovery.pace import Pace
from quire_bookie.recovery.placement_check import misplaced
from quire_bookie.recovery.read_back import read_back
from quire_bookie.recovery.standing import Standing, lost_after_s, standing_of
from quire_bookie.recovery.stats import RecoveryStats

_log = logging.getLogger("quire.recovery.repair")
_ROUNDS_MAX = 10  # each moves one replica of a fragment
_ACCEPTED_LOSS_MAX = 100_000  # entries of one fragment that a person may give up together
_MOVES = (Health.GONE, Health.FOREIGN, Health.LEAVING, Health.MISPLACED)
_BROKEN = (Health.GONE, Health.FOREIGN, Health.LACKING, Health.LIMBO)
_LOST = (NoSuchEntryError, NoSuchLedgerError, UnknownLedgerStateError, BookieIoError, DigestMismatchError)

EndLimbo: TypeAlias = Callable[[BookieId, LedgerId], Awaitable[None]]
"""Tell a bookie that a ledger holds there what it must hold. LedgerError when it could not be told."""


class Verdict(Enum):
    """What is to become of the mark."""

    WHOLE = "every replica was found whole"
    DELETED = "the ledger is no more"
    WAIT = "try again later"
    UNREADABLE = "no replica could serve some entries"


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict and, unless the ledger is whole or deleted, what stands in the way, for a person.

    `surely`: what is unreadable was answered to be so; False: some replicas only did not answer.
    """

    verdict: Verdict
    reason: str = ""
    surely: bool = False
    retry_s: float | None = None
    """What stands in the way is over then, as far as is known: not a failure."""


class LedgerRepair:
    """See the module's text. One for all workers of a process."""

    def __init__(
        self,
        access: ClusterAccess,
        locks: ReplicationLocks,
        end_limbo: EndLimbo,
        stats: RecoveryStats,
    ) -> None:
        self._access = access
        self._locks = locks
        self._end_limbo = end_limbo
        self._stats = stats
        self._controls = RecoveryControls(access.metadata)
        self._damage = DamageNotes(access.metadata)
        self._notes = UnrecoverableLedgers(access.metadata)
        self._copy_pace = Pace(access.settings.rate_bytes_s)
        self._check_pace = Pace(access.settings.operations_s)
        self.tails = OpenTails(access.settings.open_ledger_grace_s)

    async def repair(self, mark: Mark) -> Result:
        """As far as it goes. MetadataError; anything done by then was complete in itself."""
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
                return Result(Verdict.WAIT, "the id was given to another ledger meanwhile")
            first = stored.value
            standing = await standing_of(self._access, self._controls, stored.value, leaving)
            result = await self._round(mark, stored, suspected, standing)
            if result is not None:
                return result
        return Result(Verdict.WAIT, "its replicas keep changing")

    async def _round(
        self, mark: Mark, stored: Versioned[LedgerMetadata], suspected: set[BookieId], standing: Standing
    ) -> Result | None:
        """One look and what follows from it; None: something was done, look again."""
        ledger, metadata = mark.ledger, stored.value
        handle = self._access.handle(ledger, metadata)
        check = LedgerCheck(self._access, handle, self._check_pace)
        # Everybody's list: what made one replica lack entries may have struck another as well.
        reports = await check.check(closed_fragments(metadata), suspected=suspected)
        notes = await self._damage.read(ledger)
        suspected.update(note.bookie for note in notes)
        reports = await look_at_noted(check, with_limbo(reports), notes)
        reports = standing.judged(reports)
        bad = [
            report
            for report in reports
            if report.health not in (Health.WHOLE, Health.UNKNOWN) and report.bookie not in standing.away
        ]
        missing = missing_copies(metadata, self._access.settings.unmarked_write_quorum)
        if missing and metadata.state is LedgerState.CLOSED and not any(one.health in _BROKEN for one in bad):
            # Before a bookie leaves: what it leaves behind has all its copies then.
            return await self._raise(handle, metadata, missing, standing.leaving)
        if not bad and self._access.settings.repair_placement:
            bad = misplaced(self._access, metadata, standing.leaving)
        if bad:
            return await self._repair_fragments(handle, metadata, bad, suspected, standing)
        if metadata.state is not LedgerState.CLOSED:
            tail = await look_at_noted_tail(check, handle, metadata, notes)
            if tail.bad:
                return await self._complete_tail(handle, metadata, tail.bad, suspected)
            may_go = mark if tail.settled else None
            advice = await self._look_at_tail(handle, metadata, check, suspected, standing, may_go)
            if advice is TailAdvice.RECOVER:
                return await self._recover(handle, stored)
            if advice is TailAdvice.WAIT:
                return Result(Verdict.WAIT, f"open: {advice.value}", retry_s=self.tails.wait_s(ledger))
            if advice is not TailAdvice.FINE:
                return Result(Verdict.WAIT, f"open: {advice.value}")
        else:
            self.tails.forget(ledger)
            if standing.leaving & set(metadata.segments[-1].ensemble):
                return await self._leave_empty_segment(ledger, metadata, standing.leaving)
        if standing.away:
            named = ", ".join(sorted(standing.away))
            return Result(Verdict.WAIT, f"{named} may come back", retry_s=standing.back_s)
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
        """Copy a closed ledger to as many further bookies as it lacks, or as there are, then name them."""
        ledger, wanted = handle.ledger, metadata.write_quorum + missing
        plan = self._newcomers(metadata, missing, leaving)
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
        named = {bookie for bookies in plan.values() for bookie in bookies}
        outcome = await update_copies(
            *(self._access.nodes, ledger, metadata, plan), lambda: self._may_update(ledger, named)
        )
        if outcome is not EnsembleUpdate.DONE:
            return Result(Verdict.WAIT, outcome.value)
        self._stats.ledgers_raised += 1
        _log.info("ledger %d: raised from %d copies, of %d; %s", ledger, metadata.write_quorum, wanted, sorted(named))
        return None

    def _newcomers(
        self, metadata: LedgerMetadata, missing: int, leaving: frozenset[BookieId]
    ) -> dict[EntryId, tuple[BookieId, ...]]:
        """By the first entry of a segment the bookies that join it, as many for each; empty when one finds none."""
        found = {
            segment.first_entry: self._access.bookies.additions(
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
        standing: Standing,
    ) -> Result | None:
        """Every bad replica once; the first trouble is the result when nothing was gained.

        First those that are completed where they are: what they get can be read for the others.
        """
        troubles: list[Result] = []
        changed_at: set[EntryId] = set()
        for report in sorted(bad, key=lambda one: one.health in _MOVES):
            if report.fragment.first in changed_at:
                continue  # its ensemble is another one by now: the next round looks at it
            result = await self._repair_one(handle, metadata, report, suspected, changed_at, standing.leaving)
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
                # It serves what it has but takes nothing: a whole copy elsewhere replaces it.
        return await self._replace(handle, metadata, report, suspected, changed_at, leaving)

    async def _restore(
        self, handle: LedgerHandle, metadata: LedgerMetadata, report: ReplicaReport, suspected: set[BookieId]
    ) -> Result | None:
        """Complete a replica where it is. ReplicaWriteError."""
        _log.info(
            "ledger %d: bookie %s gets what it lacks of %d to %d: %s",
            *(handle.ledger, report.bookie, report.fragment.first, report.fragment.last, report.reason),
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
        """Copy a replica to another bookie and name that instead."""
        fragment = report.fragment
        is_leaving = report.bookie in leaving
        chosen = report.target
        if chosen is None:
            shunned = leaving | {report.bookie} if report.health is Health.FOREIGN else leaving
            plan = self._access.bookies.replacements(
                fragment.ensemble, [report.position], shunned, fragment.write_quorum
            )
            chosen = plan.get(report.position, report.bookie)
        if chosen == report.bookie:
            return Result(Verdict.WAIT, f"no writable bookie is left to take the replica of {report.bookie}")
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
            *(handle.ledger, chosen, fragment.first, fragment.last, report.bookie),
        )
        return None

    async def _may_update(self, ledger: LedgerId, chosen: Collection[BookieId]) -> bool:
        """No other process may work on it, or delete copies that no metadata name yet; and the bookies have to stay."""
        return (
            await self._locks.is_held(ledger)
            and await self._access.is_same_cluster()
            and (await self._access.drains.leaving()).isdisjoint(chosen)
        )

    async def _read_back(
        self, handle: LedgerHandle, metadata: LedgerMetadata, report: ReplicaReport, chosen: BookieId, copied: Copied
    ) -> Result | None:
        """A bookie that is to be thrown away may be the only one that had it: look at what the new one serves."""
        try:
            self._stats.bytes_read_back += await read_back(
                *(handle, metadata, report.fragment, report.position, chosen),
                pace=self._copy_pace,
                batch_bytes=self._access.settings.batch_bytes,
                without=copied.unreadable,
            )
        except LedgerError as error:
            return Result(Verdict.WAIT, f"what was copied to {chosen} could not be read back: {error}")
        return None

    async def _is_loss_accepted(self, ledger: LedgerId) -> bool:
        note = await self._notes.read(ledger)
        return note is not None and note.accepted_ms is not None

    async def _is_lost(self, handle: LedgerHandle, bookie: BookieId, copied: Copied) -> bool:
        """Whether the bookie that leaves has nothing to say for the entries that nobody could serve.

        One that is silent, or away for less than the delay, may have them: its replica is not given up.
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
        """The last segment of a closed ledger has no entries: others are named for it without a copy."""
        ensemble = metadata.segments[-1].ensemble
        lost = [position for position, bookie in enumerate(ensemble) if bookie in leaving]
        plan = self._access.bookies.replacements(ensemble, lost, leaving, metadata.write_quorum)
        if not plan:
            return Result(Verdict.WAIT, "no writable bookie is left to be named for a segment without entries")
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
        copied = await copy_fragment(
            *(handle, metadata, report.fragment, [target], self._copy_pace, self._access.settings.batch_bytes),
            unreadable_max=_ACCEPTED_LOSS_MAX if accepted else UNREADABLE_MAX,
        )
        self._stats.entries_copied += copied.entries
        self._stats.bytes_copied += copied.size_bytes
        return copied

    async def _end_limbos(
        self, handle: LedgerHandle, metadata: LedgerMetadata, bookies: set[BookieId]
    ) -> Result | None:
        """What these bookies must hold is there: a miss of theirs says something again."""
        if bookies and metadata.state is not LedgerState.CLOSED:
            return Result(Verdict.WAIT, "open: limbo ends when it is closed")
        for bookie in sorted(bookies):
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
        """Restore confirmed entries where they are damaged. Never another ensemble: that is the writer's to change."""
        for report in bad:
            try:
                trouble = await self._restore(handle, metadata, report, suspected)
            except ReplicaWriteError as error:
                return Result(Verdict.WAIT, str(error))
            if trouble is not None:
                return trouble
        return None

    async def _look_at_tail(
        self,
        handle: LedgerHandle,
        metadata: LedgerMetadata,
        check: LedgerCheck,
        suspected: set[BookieId],
        standing: Standing,
        mark: Mark | None,
    ) -> TailAdvice:
        """`mark`: None when it may not go before the ledger is closed."""
        segment = metadata.segments[-1]
        registered = self._access.registered
        gone = frozenset(segment.ensemble) - registered - standing.away
        leaving = frozenset(segment.ensemble) & standing.leaving
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
                _log.info("ledger %d: its last confirmed entry is not known: %s", handle.ledger, error)
            if lac is not None and lac < segment.first_entry:
                if gone and not await self._has_first(handle, metadata):
                    gone = frozenset()  # nothing was written to it: nothing is missing
            elif lac is not None and named:
                reports = await check.check([open_tail(metadata, lac)], listed=named)
                told = [one.health for one in reports if one.bookie in named]
                lags = any(health in (Health.LACKING, Health.LIMBO) for health in told)
                if extent is not None and lac > extent and all(health is Health.WHOLE for health in told):
                    served = await self._is_sent_to(handle, named, extent)
        seen = TailSeen(segment, gone, named, lags, lac, leaving, narrow, served)
        now_s = asyncio.get_running_loop().time()
        return self.tails.advise(handle.ledger, seen, self._access.registry.writable, now_s)

    async def _extent(self, handle: LedgerHandle, segment: Segment, mark: Mark) -> EntryId | None:
        """See `OpenTails.extent`. None when not every bookie says what it holds."""
        known = self.tails.extent(handle.ledger, segment, mark)
        if known is not None:
            return known
        try:
            held = await last_entries(handle.read_way, segment.ensemble)
        except LedgerError as error:
            _log.info("ledger %d: not every bookie says what it holds: %s", handle.ledger, error)
            return None
        found = self.tails.note_extent(handle.ledger, segment, mark, max(one.entry for one in held.values()))
        await asyncio.sleep(OPEN_TAIL_PAUSE_S)
        return found

    async def _is_sent_to(self, handle: LedgerHandle, named: frozenset[BookieId], extent: EntryId) -> bool:
        """Whether all of `named` hold something that was sent after everything up to `extent`."""
        try:
            held = await last_entries(handle.read_way, named)
        except LedgerError as error:
            _log.info("ledger %d: whether it is sent to %s is not known: %s", handle.ledger, sorted(named), error)
            return False
        return all(one.lac > extent for one in held.values())

    async def _has_first(self, handle: LedgerHandle, metadata: LedgerMetadata) -> bool:
        """Whether any replica may hold the first entry of the last segment: only a clear no of all says no."""
        fragment = open_tail(metadata, metadata.segments[-1].first_entry)
        reports = await LedgerCheck(self._access, handle, self._check_pace).check([fragment], listed=())
        asked = [report for report in reports if report.health is not Health.GONE]
        holders = [report for report in asked if fragment.holds(report.position, fragment.first)]
        return any(report.health is not Health.LACKING for report in holders)

    async def _recover(self, handle: LedgerHandle, stored: Versioned[LedgerMetadata]) -> Result | None:
        _log.warning("ledger %d has lacked a replica for too long: it is taken over and closed", handle.ledger)
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
