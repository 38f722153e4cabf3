"""The write side of a managed ledger: submits appends to the ledger being written, and switches to its successor.

    append -> waiting -> (one submit per loop iteration) -> in flight -> confirmed, in order

While a ledger is open, the appends of one loop iteration become one submit. While none is open, appends wait. A switch
creates the successor, waits for everything in flight, closes the old ledger, stores both in the list with one
compare-and-set and only then writes to the successor. So no entry is in a ledger that the list does not contain. If
the ledger failed, the entries of the closed ledger are confirmed and all later ones go to the successor in order. If no
successor can be created in time, the pending appends fail and the switch continues. While the metadata store is
unavailable, a full ledger is written further, up to LEDGER_OVERGROWTH_MAX times its size. If another client fenced the
ledger and the metadata do not prove that the list is still ours, every append fails at once: the next owner recovers
the ledger.

Must never: confirm an entry out of order or before it is stored; submit to a ledger before the list contains it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Protocol

from quire_bookie.env.background import Background
from quire_bookie.env.backoff import Backoff
from quire_bookie.env.clock import WallClock
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.errors import LedgerError, MetadataError, QuireError
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.model import EntryId
from quire_broker.managed_ledger.appending.append_queue import (
    AppendBatch,
    AppendDone,
    AppendQueue,
    AppendStats,
    AppendTimes,
)
from quire_broker.managed_ledger.appending.ledger_maker import Availability, ClosedCounts, LedgerMaker
from quire_broker.managed_ledger.appending.ledger_switch import AppendState, SwitchPacing, SwitchSteps, next_state
from quire_broker.managed_ledger.appending.rollover import (
    RollReason,
    age_to_roll_s,
    fitting,
    is_filled,
    is_overgrown,
    reason_to_roll,
)
from quire_broker.managed_ledger.appending.slow_appends import SlowAppends
from quire_broker.managed_ledger.appending.traced_appends import TracedAppends
from quire_broker.managed_ledger.appending.written_ledger import WrittenLedger
from quire_broker.managed_ledger.errors import (
    LedgerSwitchError,
    ManagedLedgerClosedError,
    ManagedLedgerError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
)
from quire_broker.managed_ledger.ledger_port import Payload, Writer
from quire_broker.managed_ledger.list_store import ListStore
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.reading.entry_cache import sizes
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

_log = logging.getLogger("quire.managed_ledger")

_BLOCKED_S = 60.0  # until the next attempt to roll an unused ledger, unless bookies come or go before
_ROLL_RETRY_S = 60.0  # after an append: until then each tick tries to roll a ledger that needs a successor
_PREPARE_S = 1.0  # appends wait this long for a successor, then they continue in the open ledger


class AppendObserver(Protocol):
    """Receives the events of the write side."""

    def confirmed(self, ledger_id: int, first: int, entries: list[Payload]) -> None:
        """Handle that these consecutive entries are stored. Called before their appends are answered."""
        ...

    def advanced(self) -> None:
        """Handle that the last confirmed position moved. Called once per batch, after its appends were answered."""
        ...

    def writes_to(self, writer: Writer | None) -> None:
        """Handle a change of the ledger being written; None when it is closed and has no successor yet."""
        ...

    def degraded(self) -> None:
        """Handle that a ledger being written lacks a replica that only a successor can have."""
        ...

    def fenced(self, error: ManagedLedgerFencedError) -> None:
        """Handle that another owner took over. Called once."""
        ...


class _Listener:
    """Forwards the events of one writer. The appender ignores them once it writes to another ledger."""

    def __init__(self, appender: "Appender", writer: Writer) -> None:
        self._appender = appender
        self._writer = writer

    def on_confirmed(self, up_to: EntryId) -> None:
        self._appender.on_confirmed(self._writer, up_to)

    def on_failed(self, error: LedgerError) -> None:
        self._appender.on_failed(self._writer, error)


class Appender:
    """Appends entries to one managed ledger. `state` decides what happens to an append."""

    def __init__(
        self,
        lists: ListStore,
        maker: LedgerMaker,
        availability: Availability,
        observer: AppendObserver,
        background: Background,
        clock: WallClock,
        settings: ManagedLedgerSettings,
        new_backoff: Callable[[], Backoff],
        slow: SlowLog,
        traced: TracedAppends | None = None,
    ) -> None:
        self._slow = SlowAppends(slow, lists.name)
        self._traced = traced
        self.state = AppendState.NO_LEDGER
        self._queue = AppendQueue()
        self._retry_until_s = 0.0
        self._ledger: WrittenLedger | None = None
        self._tail_counts: ClosedCounts | None = None  # of a tail that is closed and has no successor yet
        self._steps = SwitchSteps(lists, maker, availability, background, clock, new_backoff)
        self._pacing = SwitchPacing(settings, new_backoff)
        self._lists = lists
        self._availability = availability
        self._observer = observer
        self._background = background
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._flush_due = False
        self._refusal: ManagedLedgerError | None = None
        self._drained = asyncio.Event()
        self._structure = asyncio.Lock()
        self._switch: asyncio.Task[QuireError | None] | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self._preparing = False  # a successor is being created while appends continue
        self._retrying = False  # the appends of a failed ledger were submitted again and are not yet confirmed

    def use(self, settings: ManagedLedgerSettings) -> None:
        """Compare the present ledger with other quorums from now on."""
        self._settings = settings

    @property
    def stats(self) -> AppendStats:
        """Its counters."""
        return self._queue.stats

    def _enter(self, state: AppendState) -> None:
        self.state = next_state(self.state, state)

    # ---- the hot path
    def append(self, entry: Payload, done: AppendDone) -> None:
        """Accept an entry without waiting. `done` is called in order on the loop, at once if appends are refused."""
        queue = self._queue
        if self._refusal is not None:
            queue.stats.failed += 1
            done(None, self._refusal)
            return
        queue.waiting.append(entry)
        queue.waiting_dones.append(done)
        if not self._flush_due:
            self._flush_due = True
            if len(queue.waiting) == 1:
                queue.since_s = self._loop.time()
            self._loop.call_soon(self._flush)

    def held(self, held_s: float) -> None:
        """Note that a limit held the next append back for that time."""
        self._queue.held_s = max(self._queue.held_s, held_s)

    def _flush(self) -> None:
        self._flush_due = False
        while self._queue.waiting and self.state is AppendState.OPEN:
            ledger, now_s = self._open_ledger(), self._loop.time()
            if is_overgrown(ledger.load(now_s), self._settings):
                self._begin_switch(RollReason.SIZE)
                break
            self._submit(ledger, now_s)
            self.roll_if_full()
        if self._queue.waiting and self.state is AppendState.NO_LEDGER:
            self._begin_switch(RollReason.FAILED)

    def _open_ledger(self) -> WrittenLedger:
        assert self._ledger is not None, f"{self.state} without a ledger"
        return self._ledger

    def _submit(self, ledger: WrittenLedger, now_s: float) -> None:
        queue = self._queue
        count, size_bytes = len(queue.waiting), sizes(queue.waiting)
        load = ledger.load(now_s)
        if is_filled(load, count, size_bytes, self._settings) and self._may_roll():
            count = fitting(load, (sizes([entry]) for entry in queue.waiting), self._settings)
        taken_whole = count == len(queue.waiting)
        entries, dones = queue.take(count)
        if not taken_whole:
            size_bytes = sizes(entries)
        try:
            first = ledger.writer.submit(entries)
        except LedgerError as error:
            queue.put_back(entries, dones)
            if not queue.fail_oversized(ledger.writer.payload_bytes_max, error):
                self.on_failed(ledger.writer, error)
            return
        ledger.add(len(entries), size_bytes)
        batch = AppendBatch(first, entries, dones, size_bytes, AppendTimes(queue.held_s, queue.since_s, now_s))
        if self._traced is not None:
            self._traced.submitted(ledger.writer, batch)
        queue.sent(batch)

    def on_confirmed(self, writer: Writer, up_to: int) -> None:
        """Confirm the appends up to this entry if `writer` is the present one."""
        ledger = self._ledger
        if ledger is None or writer is not ledger.writer:
            return
        assert up_to < ledger.submitted, "a ledger confirms only entries that were submitted"
        self._confirm(ledger, up_to)
        if not self._queue.in_flight:
            self._drained.set()

    def _confirm(self, ledger: WrittenLedger, up_to: int) -> None:
        queue = self._queue
        batches = queue.take_confirmed(up_to)
        if not batches:
            return
        if self._retrying:
            self._retrying = False
            if self.state is AppendState.OPEN:
                self._stop_waiting_clock()
        ledger.confirmed_bytes += sum([batch.size_bytes for batch in batches])
        assert ledger.confirmed_bytes <= ledger.submitted_bytes
        self._lists.ledgers.confirm(batches[-1].last, ledger.confirmed_bytes)
        ledger_id: int = ledger.writer.ledger_id
        for batch in batches:
            queue.stats.confirmed += len(batch.dones)
            self._observer.confirmed(ledger_id, batch.first, batch.entries)
        for batch in batches:
            queue.answer(ledger_id, batch)
        now_s = self._loop.time()
        self._retry_until_s = now_s + _ROLL_RETRY_S
        if now_s - batches[0].times.began_s >= self._slow.after_s:
            trace = None if self._traced is None else self._traced.slow(ledger.writer, batches[0], now_s)
            self._slow.confirmed(ledger.writer, batches[0], now_s, trace)
        if self._traced is not None:
            self._traced.confirmed(ledger.writer, batches[-1].last, now_s)
        self._observer.advanced()

    # ---- failure
    def on_failed(self, writer: Writer, error: LedgerError) -> None:
        """Start a switch to a new ledger. Several failed appends of one ledger cause only one switch."""
        ledger = self._ledger
        if ledger is None or writer is not ledger.writer or ledger.failure is not None:
            return
        _log.warning("%s: ledger %d failed: %s", self._lists.name, writer.ledger_id, error)
        ledger.failure = error
        self._pacing.ledger_failed(self._loop.time() - ledger.opened_s)
        self._drained.set()
        if self.state is AppendState.OPEN:
            self._begin_switch(RollReason.FAILED)

    def _fail_pending(self, error: QuireError) -> None:
        self._retrying = False
        self._drained.set()
        if pending := self._queue.pending:
            self._slow.failed(self._queue.oldest_s, pending, error)
        if self._traced is not None:
            self._traced.failed(error)
        self._queue.fail(error)

    def refuse(self, error: ManagedLedgerError) -> None:
        """Fail every append with `error` from now on, including the pending ones."""
        self._enter(AppendState.REFUSING)
        if self._refusal is None:
            self._refusal = error
        self._stop_waiting_clock()
        self._fail_pending(error)

    def _fence(self, error: ManagedLedgerFencedError) -> None:
        if not isinstance(self._refusal, ManagedLedgerFencedError):
            self.refuse(error)
            self._observer.fenced(error)

    # ---- rollover
    def obstacle(self) -> str:
        """Return why appends would wait for a ledger that enforced rules of placement do not allow; else nothing.

        From the first call on its creation is tried again and again, as for an append: bookies may be added.
        """
        if self.state is AppendState.NO_LEDGER:
            self._begin_switch(RollReason.FAILED)
        waits = self.state is AppendState.SWITCHING and self._ledger is None
        return self._steps.obstacle if waits else ""

    def install(self, writer: Writer) -> None:
        """Write to this ledger from now on. The list already contains it as its tail."""
        assert self._lists.ledgers.tail == writer.ledger_id, "the list contains a ledger before it is written to"
        reduced = writer.metadata.ensemble_size < self._settings.ensemble_size
        self._ledger = WrittenLedger(writer, self._loop.time(), reduced)
        self._tail_counts = None
        self._drained.clear()
        self._observer.writes_to(writer)
        writer.listener = _Listener(self, writer)
        writer.on_beyond_repair = self._observer.degraded
        self._resume()

    def _resume(self) -> None:
        if not self._retrying:
            self._stop_waiting_clock()
        self._enter(AppendState.OPEN)
        if self._queue.waiting and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _may_roll(self) -> bool:
        return not self._preparing and self._pacing.may_roll(self._loop.time(), self._availability.now(self._settings))

    def roll_if_full(self) -> None:
        """Begin a switch if the rules require one and a successor can be created."""
        if self.state is not AppendState.OPEN:
            return
        ledger = self._open_ledger()
        reason = reason_to_roll(ledger.load(self._loop.time(), degraded=ledger.degraded), self._settings)
        if reason is not None and self._may_roll():
            self._begin_switch(reason)

    def next_roll_s(self) -> float:
        """Return the loop time at which `roll_if_full` may have work though nothing is appended; inf: never."""
        now_s = self._loop.time()
        if self.state is not AppendState.OPEN:
            return inf if self.state is AppendState.REFUSING else now_s + _BLOCKED_S
        ledger = self._open_ledger()
        due_s = ledger.opened_s + age_to_roll_s(ledger.load(now_s, degraded=ledger.degraded), self._settings)
        if due_s > now_s:
            return due_s
        return now_s if now_s < self._retry_until_s else now_s + _BLOCKED_S

    async def roll(self) -> None:
        """Change to a new ledger now. Raises errors of the ledger client; then nothing has changed."""
        self._check_usable()
        if self.state is AppendState.OPEN and self._open_ledger().submitted == 0 and not self._queue.waiting:
            return
        if self.state is not AppendState.SWITCHING:
            self._flush()
        if self.state is not AppendState.SWITCHING:
            self._begin_switch(RollReason.ASKED)
        assert self._switch is not None
        error = await asyncio.shield(self._switch)
        if error is not None:
            raise error

    def may_end(self, ledger_id: int) -> bool:
        """Return whether `end` would close this ledger now: it has entries, all are confirmed, and none waits."""
        if self.state is not AppendState.OPEN or self._queue.waiting or self._queue.in_flight:
            return False
        ledger = self._open_ledger()
        return ledger.writer.ledger_id == ledger_id and ledger.submitted > 0 and self._may_roll()

    async def end(self, ledger_id: int) -> bool:
        """Change from this ledger, which `may_end`, to a new one. Return whether it is not written any more.

        Appends meanwhile wait as in every switch. If the caller is cancelled, the switch continues.
        """
        self._begin_switch(RollReason.MARKED)
        assert self._switch is not None
        await asyncio.wait({self._switch})  # its end may cancel it, which is no cancellation of the caller
        return self._ledger is None or self._ledger.writer.ledger_id != ledger_id

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _begin_switch(self, reason: RollReason) -> None:
        self._enter(AppendState.SWITCHING)
        if self._give_up is None:
            self._start_waiting_clock()
        self._switch = self._background.spawn(self._run_switch(reason), f"ledger switch of {self._lists.name}")

    async def _run_switch(self, reason: RollReason) -> QuireError | None:
        async with self._structure:
            if self.state is not AppendState.SWITCHING:
                return self._refusal
            try:
                return await self._switch_ledger(reason)
            except ManagedLedgerFencedError as error:
                self._fence(error)
                return error
            except Exception as error:  # noqa: BLE001  the root of a task: appends must not wait for a task that ended
                _log.exception("the ledger switch of %s failed", self._lists.name)
                broken = ManagedLedgerFencedError(f"{self._lists.name} must be opened again: {error!r}")
                self._fence(broken)
                return broken

    async def _switch_ledger(self, reason: RollReason) -> QuireError | None:
        """Run the steps of a switch. Their order guarantees what the module docstring promises."""
        successor: Writer | None = None
        ledger = self._ledger
        if reason is not RollReason.FAILED and ledger is not None:
            try:
                successor = await self._prepare(ledger)
            except (MetadataError, LedgerError) as error:
                _log.info("%s: no new ledger yet, writing continues in the old one: %s", self._lists.name, error)
                self._pacing.not_created(self._loop.time())
                if self._takes_more(ledger):
                    self._resume()
                    return error
            else:
                if self.state is AppendState.REFUSING:
                    await self._steps.discard(successor)
                    return self._refusal
                await self._wait_drained()
        counts = await self._close_tail()
        if successor is None:
            await asyncio.sleep(self._pacing.take_pause_s())
            successor = await self._steps.create_at_last()
        await self._steps.enlist(counts, successor)
        self.stats.switches += 1
        self._pacing.switched()
        self.install(successor)
        return None

    def _takes_more(self, ledger: WrittenLedger) -> bool:
        return ledger.failure is None and not is_overgrown(ledger.load(self._loop.time()), self._settings)

    async def _prepare(self, ledger: WrittenLedger) -> Writer:
        """Create the successor of a healthy ledger. If that takes long, appends continue in the open ledger."""
        creating = self._background.spawn(self._steps.create(), f"new ledger of {self._lists.name}")
        await asyncio.wait({creating}, timeout=_PREPARE_S)
        if not creating.done() and self.state is AppendState.SWITCHING and self._takes_more(ledger):
            self._preparing = True
            self._resume()
        try:
            successor = await creating
        finally:
            self._preparing = False
        if self.state is AppendState.OPEN:
            self._enter(AppendState.SWITCHING)
            self._start_waiting_clock()
        return successor

    async def _wait_drained(self) -> None:
        """Wait until nothing is in flight or the ledger has failed."""
        while self._queue.in_flight and self._ledger is not None and self._ledger.failure is None:
            self._drained.clear()
            await self._drained.wait()

    async def _close_tail(self) -> ClosedCounts | None:
        """Close the ledger being written and settle its appends in flight. Return None if there is no such ledger.

        Afterwards the entries of the closed ledger are confirmed, and the remaining appends wait, before later ones.
        """
        ledger = self._ledger
        if ledger is None:
            return self._tail_counts
        counts = await self._steps.close(ledger)
        self._confirm(ledger, counts.entries - 1)
        ledgers = self._lists.ledgers
        if counts.entries > ledgers.entries_in(ledger.writer.ledger_id):
            # These entries are stored, but their appends had already failed when that became known.
            ledgers.confirm(counts.entries - 1, counts.size_bytes)
            self._observer.advanced()
        self._retrying = self._queue.requeue()
        if self._traced is not None:
            self._traced.dropped()
        self._ledger = None
        self._tail_counts = counts
        self._observer.writes_to(None)
        return counts

    def _start_waiting_clock(self) -> None:
        self._stop_waiting_clock()
        self._give_up = self._loop.call_later(self._settings.append_wait_s, self._fail_waiting)

    def _stop_waiting_clock(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _fail_waiting(self) -> None:
        """Fail the pending appends because the switch takes too long. The switch continues."""
        self._give_up = None
        if self.state is AppendState.OPEN:
            # The appends of a failed ledger were submitted to another one, which soon confirms them or fails as well.
            self._give_up = self._loop.call_later(_PREPARE_S, self._fail_waiting)
        elif self.state is AppendState.SWITCHING:
            wait = f"{self._settings.append_wait_s:g} s"
            self._fail_pending(LedgerSwitchError(f"{self._lists.name}: no new ledger could be created within {wait}"))
            self._start_waiting_clock()

    # ---- the end
    async def terminate(self) -> Position:
        """Close the last ledger permanently; return the last confirmed position. After an error appends continue."""
        if isinstance(self._refusal, ManagedLedgerTerminatedError):
            return self._lists.ledgers.last_confirmed
        self._check_usable()
        self._flush()
        async with self._structure:
            if isinstance(self._refusal, ManagedLedgerTerminatedError):
                return self._lists.ledgers.last_confirmed
            self._check_usable()
            self._enter(AppendState.SWITCHING)
            self._start_waiting_clock()
            try:
                await self._wait_drained()
                await self._close_tail()
                # The last confirmed position is final: appends that are not in the closed ledger are refused below.
                last = self._lists.ledgers.last_confirmed
                await self._lists.update(lambda node: replace(node, terminated=last))
            except ManagedLedgerFencedError as error:
                self._fence(error)
                raise
            except MetadataError:
                self._enter(AppendState.NO_LEDGER)
                self._flush()  # appends that arrived meanwhile need a ledger, and nothing else would start one
                raise
            self.refuse(ManagedLedgerTerminatedError(f"{self._lists.name} is terminated"))
            return last

    async def drain(self, drain_s: float) -> None:
        """Accept no more appends. Wait up to `drain_s` seconds for pending ones, and refuse the rest."""
        if self.state is AppendState.OPEN:
            self._flush()
        closed = ManagedLedgerClosedError(f"{self._lists.name} is closed")
        if self._refusal is None:
            self._refusal = closed
        if self.state is AppendState.OPEN and self._queue.in_flight:
            try:
                await asyncio.wait_for(self._wait_drained(), drain_s)
            except TimeoutError:
                _log.warning("%s is closed with appends pending", self._lists.name)
                self._open_ledger().writer.abandon()  # the next open recovers and closes its ledger
                self._ledger = None
        self.refuse(closed)
        if self._switch is not None:
            self._switch.cancel()

    async def release(self, transact: Transact | None = None) -> None:
        """Close the ledger being written if possible. Appends must already be refused. `transact`: of the close."""
        assert self._refusal is not None
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            try:
                await ledger.writer.close(transact)
            except (LedgerError, MetadataError) as error:
                name, ledger_id = self._lists.name, ledger.writer.ledger_id
                _log.info("%s: ledger %d is left open, recovery closes it: %s", name, ledger_id, error)
