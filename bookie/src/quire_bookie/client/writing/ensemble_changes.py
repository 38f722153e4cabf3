"""The ensemble changes of one writer, one at a time. `quorum.ensemble_change` makes the decisions.

Owns the ledger's metadata as its writer knows them, and the record of bookies that this ledger lost recently. Entries
are acknowledged while a change is in progress. A compare-and-set of unknown outcome is repeated until its outcome is
known. Without a replacement, writing continues as long as Qa replicas can be reached, and the change is tried again
when a bookie becomes available. Replicas that permanently lack entries are marked for auto-recovery.
"""

import asyncio
import logging
from collections.abc import Callable

from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.writing.add_pipeline import AddPipeline, LostReplica
from quire_bookie.dataclass import dataclass
from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import (
    BadVersionError,
    BookieReadOnlyError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NoSuchLedgerError,
    QuireError,
    QuorumError,
)
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S, SHUN_RETURNED_BOOKIE_S
from quire_bookie.metadata.store import Versioned
from quire_bookie.model import BookieId, EntryId, LedgerMetadata
from quire_bookie.quorum.ensemble_change import AfterLostChange, after_lost_change, with_replacements

_log = logging.getLogger("quire.client.ensemble")


@dataclass(slots=True)
class _Shunned:
    times: int = 0
    until_s: float = 0.0


class EnsembleChanges:
    """Replaces lost bookies of one writer. Created by the writer, which passes on the callbacks of its pipeline."""

    def __init__(self, handle: LedgerHandle, pipeline: AddPipeline, stored: Versioned[LedgerMetadata]) -> None:
        self.stored = stored
        """The metadata as last read or written."""
        self.unsettled: LedgerMetadata | None = None
        """Proposed metadata of which it is not known (yet) whether they are stored."""
        self.changes = 0
        self.on_ended: Callable[[], None] = lambda: None
        """Called after an attempt to replace bookies, successful or not."""
        self._handle = handle
        self._pipeline = pipeline
        self._settings = handle.settings
        self._shunned: dict[BookieId, _Shunned] = {}
        self._marked: dict[int, LostReplica] = {}
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._impossible = False
        self._stopped = False
        self._unreachable_since_s: float | None = None

    @property
    def is_hopeless(self) -> bool:
        """Whether a lost replica will not be replaced in this ledger."""
        settings = self._settings
        return self._impossible or self.changes >= settings.ensemble_changes_max or settings.delay_ensemble_change

    # ---- events
    def replica_failed(self, bookie: BookieId, error: LedgerError) -> bool:
        """Handle a lost replica. Return whether another bookie may replace it."""
        if self._stopped:
            return True  # the ledger is being closed and all its entries are confirmed
        self._shun(bookie)
        self.confirmed(self._pipeline.confirmed)
        return self._consider()

    def bookies_changed(self) -> None:
        """Handle a bookie that registered or is reachable again."""
        if self._pipeline.lost:
            self._consider()

    def confirmed(self, up_to: EntryId) -> None:
        """Mark lost replicas that lack confirmed entries. Called for each advance while replicas are lost."""
        for position, lost in self._pipeline.lost.items():
            if lost.owed <= up_to:
                self._mark(position, lost)

    async def stop(self) -> None:
        """Begin no more changes and end the current one; `unsettled` then has the metadata it may have stored."""
        self._end()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._pipeline.keep_nothing_for_vacant()

    def abort(self) -> None:
        """Stop after a failure of the writer, without waiting. The ledger will end at its confirmed entry or later."""
        self._end()
        self._mark_vacant(self._pipeline.confirmed)

    def closed_at(self, metadata: LedgerMetadata) -> None:
        """Mark the bookies of the closed ledger that lack entries; nothing more is sent to them."""
        last = metadata.last_entry
        for position, lost in self._pipeline.lost.items():
            if lost.owed <= last:
                self._mark(position, lost)
        self._mark_vacant(last)
        for bookie in self._pipeline.owing:
            self._handle.marks.mark(self._handle.ledger, bookie)

    # ---- deciding
    def _shun(self, bookie: BookieId) -> None:
        """Exclude a failed bookie, which may still be registered, for a while; longer each time it was unreachable."""
        shunned = self._shunned.setdefault(bookie, _Shunned())
        cap_s = self._settings.suspect_s
        unreachable = bookie in self._handle.links.suspects  # so it is not chosen again before it is reachable
        shun_s = min(SHUN_RETURNED_BOOKIE_S * 2**shunned.times, cap_s) if unreachable else cap_s
        shunned.times = min(shunned.times + 1, 20)
        shunned.until_s = self._handle.links.now_s() + shun_s

    def _consider(self) -> bool:
        """Begin a change if one is needed and possible. Return whether one is in progress."""
        if self._stopped or self._pipeline.error is not None:
            return False
        if self._task is None and self._plan():
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"ensemble change of ledger {self._handle.ledger}"
            )
            self._task.add_done_callback(self._ended)
        return self._task is not None

    def _plan(self) -> dict[int, BookieId]:
        """Choose replacements by position. Start the timer of a retry if there are none."""
        pipeline, settings = self._pipeline, self._settings
        if not pipeline.lost or self._impossible or self.changes >= settings.ensemble_changes_max:
            return {}
        read_only = any(isinstance(lost.error, BookieReadOnlyError) for lost in pipeline.lost.values())
        if settings.delay_ensemble_change and pipeline.can_reach() and not read_only:
            return {}
        now_s = self._handle.links.now_s()
        shunned = [bookie for bookie, one in self._shunned.items() if one.until_s > now_s]
        write_quorum = self.stored.value.write_quorum
        plan = self._handle.bookies.replacements(pipeline.ensemble, pipeline.lost.keys(), shunned, write_quorum)
        if not plan and shunned:
            self._retry_after(min(self._shunned[bookie].until_s for bookie in shunned) - now_s)
        return plan

    def _retry_after(self, delay_s: float) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._handle.links.call_later(delay_s, self.bookies_changed)

    # ---- performing
    async def _run(self) -> None:
        await asyncio.sleep(0)  # bookies that failed in the same loop iteration are replaced in the same change
        while not self._stopped and self._pipeline.error is None and (plan := self._plan()):
            await self._change(plan)
        self._task = None
        if not self._stopped:
            self._pipeline.require_quorum()
            self.on_ended()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s ended", task.get_name(), exc_info=error)
            failure = LedgerError(f"an ensemble change of ledger {self._handle.ledger} failed: {error}")
            failure.__cause__ = error
            self._pipeline.fail(failure)

    async def _change(self, plan: dict[int, BookieId]) -> None:
        pipeline, ledger = self._pipeline, self._handle.ledger
        assert plan and not pipeline.vacant, "one change at a time"
        start = pipeline.vacate(plan.keys())
        _log.info("ledger %d from entry %d on: bookies %s at positions %s", ledger, start, [*plan.values()], [*plan])
        try:
            stored = await self._store(start, plan)
        except (LedgerFencedError, LedgerClosedError, NoSuchLedgerError, QuorumError) as error:
            pipeline.fail(error)
            return
        except QuireError as error:
            # A permanent refusal, such as metadata that grew too large: continue without ensemble changes.
            _log.error("ledger %d: no more ensemble changes: %s", ledger, error)
            self._impossible = True
            self.unsettled = None
            pipeline.restore(plan.keys())
            self.confirmed(pipeline.confirmed)
            return
        self.stored = stored
        self.unsettled = None
        self.changes += 1
        if pipeline.error is not None:
            return
        for position, lost in pipeline.fill(plan, start).items():
            if lost.owed < start:
                self._mark(position, lost)
            self._marked.pop(position, None)

    async def _store(self, start: EntryId, plan: dict[int, BookieId]) -> Versioned[LedgerMetadata]:
        """Write the new segment. Raises an error only if the outcome is known."""
        backoff = Backoff(METADATA_RETRY_BACKOFF_S)
        base = self.stored
        self._unreachable_since_s = None
        while True:
            proposed = self.unsettled = with_replacements(base.value, start, plan)
            assert proposed.segments[-1].first_entry == start
            try:
                try:
                    return await self._handle.nodes.update(self._handle.ledger, proposed, base.version)
                except BadVersionError:
                    found = await self._handle.nodes.read(self._handle.ledger)
            except (MetadataUnavailableError, MetadataUnknownError) as error:
                self._check_quorum(error)
                await backoff.wait()
                continue
            outcome = after_lost_change(base.value, proposed, found.value)
            if outcome is AfterLostChange.TOOK_EFFECT:
                return found
            self.stored = found
            if outcome is not AfterLostChange.PROPOSE_AGAIN:
                raise self._lost_to(outcome)
            base = found

    def _check_quorum(self, error: MetadataError) -> None:
        """Raise QuorumError if the ledger was without a quorum for `add_timeout_s` while the metadata failed."""
        if self._pipeline.can_reach():
            self._unreachable_since_s = None
            return
        now_s = self._handle.links.now_s()
        if self._unreachable_since_s is None:
            self._unreachable_since_s = now_s
        if now_s - self._unreachable_since_s >= self._settings.add_timeout_s:
            text = f"ledger {self._handle.ledger} lost its ack quorum, and its bookies cannot be replaced: {error}"
            raise QuorumError(text) from error

    def _lost_to(self, outcome: AfterLostChange) -> LedgerError:
        ledger = self._handle.ledger
        if outcome is AfterLostChange.CLOSED:
            return LedgerFencedError(f"ledger {ledger} was closed by another client")
        if outcome is AfterLostChange.FENCED:
            return LedgerFencedError(f"ledger {ledger} is being recovered by another client")
        return LedgerFencedError(f"another client changed the last segment of ledger {ledger}")

    # ---- inside
    def _mark(self, position: int, lost: LostReplica) -> None:
        if self._marked.get(position) is not lost:
            self._marked[position] = lost
            self._handle.marks.mark(self._handle.ledger, lost.bookie)

    def _mark_vacant(self, last: EntryId) -> None:
        """Mark both bookies of each position after an interrupted change: the new one was sent nothing."""
        final = (self.unsettled or self.stored.value).segments[-1]
        for position, vacant in self._pipeline.vacant.items():
            if vacant.owed <= last:
                self._mark(position, vacant)
            if final.ensemble[position] != vacant.bookie and final.first_entry <= last:
                self._handle.marks.mark(self._handle.ledger, final.ensemble[position])

    def _end(self) -> None:
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
