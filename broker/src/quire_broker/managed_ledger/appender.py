"""The write side of a managed ledger: pending appends, the ledger being written, and the switch to its successor.

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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import (
    LedgerError,
    MetadataError,
    NoSuchLedgerError,
    QuireError,
)
from quire_bookie.model import EntryId
from quire_broker.managed_ledger.append_batch import AppendBatch, AppendDone
from quire_broker.managed_ledger.backoff import Backoff
from quire_broker.managed_ledger.entry_cache import sizes
from quire_broker.managed_ledger.errors import (
    LedgerSwitchError,
    ManagedLedgerClosedError,
    ManagedLedgerError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
)
from quire_broker.managed_ledger.ledger_list import LedgerRecord
from quire_broker.managed_ledger.ledger_maker import Availability, ClosedCounts, LedgerMaker
from quire_broker.managed_ledger.ledger_port import Payload, Writer
from quire_broker.managed_ledger.list_store import ListStore
from quire_broker.managed_ledger.node_codec import LedgerListNode
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.rollover import (
    LedgerLoad,
    RollReason,
    fitting,
    is_filled,
    is_overgrown,
    may_roll,
    reason_to_roll,
)
from quire_broker.managed_ledger.settings import ManagedLedgerSettings

_log = logging.getLogger("quire.managed_ledger")

_PREPARE_S = 1.0  # appends wait this long for a successor, then they continue in the open ledger
_STEADY_S = 10.0  # if a ledger fails sooner than this, the creation of its successor is delayed


class AppendState(Enum):
    """How the appender treats an append in its present state."""

    OPEN = "open"
    SWITCHING = "switching"
    NO_LEDGER = "no ledger"
    REFUSING = "refusing"


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

    def fenced(self, error: ManagedLedgerFencedError) -> None:
        """Handle that another owner took over. Called once."""
        ...


@dataclass(slots=True)
class AppendStats:
    """Counters since the broker started."""

    confirmed: int = 0
    failed: int = 0
    switches: int = 0
    resubmitted: int = 0


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
    ) -> None:
        self.state = AppendState.NO_LEDGER
        self.stats = AppendStats()
        self.writer: Writer | None = None
        self._lists = lists
        self._maker = maker
        self._availability = availability
        self._observer = observer
        self._background = background
        self._clock = clock
        self._settings = settings
        self._new_backoff = new_backoff
        self._loop = asyncio.get_running_loop()
        self._call_soon = self._loop.call_soon
        self._waiting: list[Payload] = []
        self._waiting_dones: list[AppendDone] = []
        self._flush_due = False
        self._in_flight: deque[AppendBatch] = deque()
        self._submitted = 0
        self._submitted_bytes = 0
        self._confirmed_bytes = 0
        self._opened_s = 0.0
        self._reduced = False  # the ledger was created while fewer than E bookies accepted new ledgers
        self._roll_not_before_s = 0.0
        self._failure: LedgerError | None = None
        self._tail_counts: ClosedCounts | None = None  # of a tail that is closed and has no successor yet
        self._refusal: ManagedLedgerError | None = None
        self._drained = asyncio.Event()
        self._structure = asyncio.Lock()
        self._switch: asyncio.Task[QuireError | None] | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self._roll_backoff = new_backoff()
        self._preparing = False  # a successor is being created while appends continue
        self._failure_backoff = new_backoff()
        self._pause_s = 0.0  # delay before the successor of a failed ledger is created
        self._retrying = False  # the appends of a failed ledger were submitted again and are not yet confirmed

    # ---- the hot path
    def append(self, entry: Payload, done: AppendDone) -> None:
        """Accept an entry without waiting. `done` is called in order on the loop, at once if appends are refused."""
        if self._refusal is not None:
            self.stats.failed += 1
            done(None, self._refusal)
            return
        self._waiting.append(entry)
        self._waiting_dones.append(done)
        if not self._flush_due:
            self._flush_due = True
            self._call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        while self._waiting and self.state is AppendState.OPEN:
            if is_overgrown(self._load(), self._settings):
                self._begin_switch(RollReason.SIZE)
                break
            self._submit()
            self.roll_if_full()
        if self._waiting and self.state is AppendState.NO_LEDGER:
            self._begin_switch(RollReason.FAILED)

    def _submit(self) -> None:
        writer = self.writer
        assert writer is not None
        entries, dones = self._waiting, self._waiting_dones
        size_bytes = sizes(entries)
        count = len(entries)
        if is_filled(load := self._load(), count, size_bytes, self._settings) and self._may_roll():
            count = fitting(load, (sizes([entry]) for entry in entries), self._settings)
        if count < len(entries):
            self._waiting, self._waiting_dones = entries[count:], dones[count:]
            entries, dones = entries[:count], dones[:count]
            size_bytes = sizes(entries)
        else:
            self._waiting, self._waiting_dones = [], []
        try:
            first = writer.submit(entries)
        except LedgerError as error:
            self._waiting[:0], self._waiting_dones[:0] = entries, dones
            if not self._refuse_oversized(writer.payload_bytes_max, error):
                self.on_failed(writer, error)
            return
        self._submitted += len(entries)
        self._submitted_bytes += size_bytes
        self._in_flight.append(AppendBatch(first, entries, dones, size_bytes))

    def _refuse_oversized(self, bytes_max: int, error: LedgerError) -> bool:
        """Fail waiting appends larger than any ledger accepts, out of order. Return whether there were any."""
        pairs = list(zip(self._waiting, self._waiting_dones, strict=True))
        fitting = [pair for pair in pairs if sizes([pair[0]]) <= bytes_max]
        self._waiting, self._waiting_dones = [pair[0] for pair in fitting], [pair[1] for pair in fitting]
        for entry, done in pairs:
            if sizes([entry]) > bytes_max:
                self.stats.failed += 1
                done(None, error)
        return len(fitting) < len(pairs)

    def _load(self, *, degraded: bool = False) -> LedgerLoad:
        return LedgerLoad(self._submitted, self._submitted_bytes, self._loop.time() - self._opened_s, degraded)

    def on_confirmed(self, writer: Writer, up_to: int) -> None:
        """Confirm the appends up to this entry if `writer` is the present one."""
        if writer is not self.writer:
            return
        self._confirm(up_to)
        if not self._in_flight:
            self._drained.set()

    def _confirm(self, up_to: int) -> None:
        in_flight = self._in_flight
        writer = self.writer
        assert writer is not None
        ledger_id: int = writer.ledger_id
        batches: list[AppendBatch] = []
        while in_flight:
            batch = in_flight[0]
            if batch.first + len(batch.dones) - 1 <= up_to:
                batches.append(in_flight.popleft())
            elif batch.first <= up_to:
                batches.append(batch.split(up_to - batch.first + 1))
            else:
                break
        if not batches:
            return
        if self._retrying:
            self._retrying = False
            if self.state is AppendState.OPEN:
                self._stop_waiting_clock()
        self._confirmed_bytes += sum([batch.size_bytes for batch in batches])
        last = batches[-1]
        self._lists.ledgers.confirm(last.first + len(last.dones) - 1, self._confirmed_bytes)
        for batch in batches:
            self.stats.confirmed += len(batch.dones)
            self._observer.confirmed(ledger_id, batch.first, batch.entries)
        for batch in batches:
            self._answer(ledger_id, batch)
        self._observer.advanced()

    def _answer(self, ledger_id: int, batch: AppendBatch) -> None:
        make = Position._make
        for entry_id, done in enumerate(batch.dones, batch.first):
            try:
                done(make((ledger_id, entry_id)), None)
            except Exception:  # noqa: BLE001  an error in one callback must not stop the confirmation of later appends
                _log.exception("an append's callback failed")

    # ---- failure
    def on_failed(self, writer: Writer, error: LedgerError) -> None:
        """Start a switch to a new ledger. Several failed appends of one ledger cause only one switch."""
        if writer is not self.writer or self._failure is not None:
            return
        _log.warning("%s: ledger %d failed: %s", self._lists.name, writer.ledger_id, error)
        self._failure = error
        # A flapping bookie must not cause a new ledger every moment.
        if self._load().age_s >= _STEADY_S:
            self._failure_backoff = self._new_backoff()
            self._pause_s = 0.0
        else:
            self._pause_s = self._failure_backoff.grow()
        self._drained.set()
        if self.state is AppendState.OPEN:
            self._begin_switch(RollReason.FAILED)

    def _fail_pending(self, error: QuireError) -> None:
        dones = [done for batch in self._in_flight for done in batch.dones] + self._waiting_dones
        self._in_flight.clear()
        self._waiting, self._waiting_dones = [], []
        self._retrying = False
        self._drained.set()
        self.stats.failed += len(dones)
        for done in dones:
            try:
                done(None, error)
            except Exception:  # noqa: BLE001  as in _answer
                _log.exception("an append's callback failed")

    def refuse(self, error: ManagedLedgerError) -> None:
        """Fail every append with `error` from now on, including the pending ones."""
        self.state = AppendState.REFUSING
        if self._refusal is None:
            self._refusal = error
        self._stop_waiting_clock()
        self._fail_pending(error)

    def _fence(self, error: ManagedLedgerFencedError) -> None:
        if not isinstance(self._refusal, ManagedLedgerFencedError):
            self.refuse(error)
            self._observer.fenced(error)

    # ---- rollover
    def install(self, writer: Writer) -> None:
        """Write to this ledger from now on. The list already contains it as its tail."""
        self.writer = writer
        self._submitted = self._submitted_bytes = self._confirmed_bytes = 0
        self._opened_s = self._loop.time()
        self._reduced = writer.metadata.ensemble_size < self._settings.ensemble_size
        self._failure = None
        self._tail_counts = None
        self._drained.clear()
        self._observer.writes_to(writer)
        writer.listener = _Listener(self, writer)
        self._resume()

    def _resume(self) -> None:
        if not self._retrying:
            self._stop_waiting_clock()
        self.state = AppendState.OPEN
        if self._waiting and not self._flush_due:
            self._flush_due = True
            self._call_soon(self._flush)

    def _may_roll(self) -> bool:
        if self._preparing or self._loop.time() < self._roll_not_before_s:
            return False
        return may_roll(self._availability.now(), self._settings)

    def roll_if_full(self) -> None:
        """Begin a switch if the rules require one and a successor can be created."""
        if self.state is not AppendState.OPEN:
            return
        assert self.writer is not None
        degraded = self._reduced or self.writer.is_beyond_repair
        reason = reason_to_roll(self._load(degraded=degraded), self._settings)
        if reason is not None and self._may_roll():
            self._begin_switch(reason)

    async def roll(self) -> None:
        """Change to a new ledger now. Raises errors of the ledger client; then nothing has changed."""
        self._check_usable()
        if self.state is AppendState.OPEN and self._submitted == 0 and not self._waiting:
            return
        if self.state is not AppendState.SWITCHING:
            self._flush()
        if self.state is not AppendState.SWITCHING:
            self._begin_switch(RollReason.ASKED)
        assert self._switch is not None
        error = await asyncio.shield(self._switch)
        if error is not None:
            raise error

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _begin_switch(self, reason: RollReason) -> None:
        self.state = AppendState.SWITCHING
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
        if reason is not RollReason.FAILED:
            try:
                successor = await self._prepare()
            except (MetadataError, LedgerError) as error:
                _log.info("%s: no new ledger yet, writing continues in the old one: %s", self._lists.name, error)
                self._roll_not_before_s = self._loop.time() + self._roll_backoff.grow()
                if self._failure is None and not is_overgrown(self._load(), self._settings):
                    self._resume()
                    return error
            else:
                if self.state is AppendState.REFUSING:
                    await self._maker.discard(successor)
                    return self._refusal
                await self._wait_drained()
        counts = await self._close_tail()
        backoff = self._new_backoff()
        if successor is None:
            pause_s, self._pause_s = self._pause_s, 0.0
            await asyncio.sleep(pause_s)
        while successor is None:
            try:
                successor = await self._maker.create()
            except (MetadataError, LedgerError) as error:
                _log.info("%s: no new ledger yet, appends wait: %s", self._lists.name, error)
                await backoff.wait()
        await self._enlist(counts, successor)
        self.stats.switches += 1
        self._roll_backoff = self._new_backoff()
        self.install(successor)
        return None

    async def _prepare(self) -> Writer:
        """Create the successor of a healthy ledger. If that takes long, appends continue in the open ledger."""
        creating = self._background.spawn(self._maker.create(), f"new ledger of {self._lists.name}")
        await asyncio.wait({creating}, timeout=_PREPARE_S)
        goes_on = self._failure is None and not is_overgrown(self._load(), self._settings)
        if not creating.done() and self.state is AppendState.SWITCHING and goes_on:
            self._preparing = True
            self._resume()
        try:
            successor = await creating
        finally:
            self._preparing = False
        if self.state is AppendState.OPEN:
            self.state = AppendState.SWITCHING
            self._start_waiting_clock()
        return successor

    async def _wait_drained(self) -> None:
        """Wait until nothing is in flight or the ledger has failed."""
        while self._in_flight and self._failure is None:
            self._drained.clear()
            await self._drained.wait()

    async def _close_tail(self) -> ClosedCounts | None:
        """Close the ledger being written and settle its appends in flight. Return None if there is no such ledger.

        Afterwards the entries of the closed ledger are confirmed, and the remaining appends wait, before later ones.
        """
        writer = self.writer
        if writer is None:
            return self._tail_counts
        try:
            counts = await self._maker.close(
                writer, self._new_backoff(), failure=self._failure, owned=self._lists.still_owned
            )
        except NoSuchLedgerError as error:
            raise ManagedLedgerFencedError(f"{self._lists.name}: ledger {writer.ledger_id} was deleted") from error
        ledgers = self._lists.ledgers
        known = ledgers.entries_in(writer.ledger_id)
        if counts.entries < known:
            _log.critical(
                "%s: ledger %d was closed with %d entries, %d had been acknowledged",
                self._lists.name, writer.ledger_id, counts.entries, known,
            )  # fmt: skip
            raise ManagedLedgerFencedError(f"{self._lists.name}: ledger {writer.ledger_id} lost acknowledged entries")
        self._confirm(counts.entries - 1)
        if counts.entries > ledgers.entries_in(writer.ledger_id):
            # These entries are stored, but their appends had already failed when that became known.
            ledgers.confirm(counts.entries - 1, counts.size_bytes)
            self._observer.advanced()
        behind = list(self._in_flight)
        self._in_flight.clear()
        self.stats.resubmitted += sum(len(batch.dones) for batch in behind)
        self._retrying = bool(behind)
        self._waiting[:0] = [entry for batch in behind for entry in batch.entries]
        self._waiting_dones[:0] = [done for batch in behind for done in batch.dones]
        self.writer = None
        self._tail_counts = counts
        self._observer.writes_to(None)
        return counts

    async def _enlist(self, counts: ClosedCounts | None, successor: Writer) -> None:
        """Store the successor in the list, with the final counts of the ledger before it."""
        tail = self._lists.ledgers.tail
        closed_ms = self._clock.now_ms()
        dropped = [tail] if tail is not None and counts is not None and counts.entries == 0 else []

        def change(node: LedgerListNode) -> LedgerListNode:
            records = [
                record.closed(counts.entries, counts.size_bytes, closed_ms)
                if record.ledger_id == tail and counts is not None
                else record
                for record in node.ledgers
                if record.ledger_id not in dropped
            ]
            return replace(node, ledgers=(*records, LedgerRecord(successor.ledger_id)))

        backoff = self._new_backoff()
        while True:
            try:
                await self._lists.update(change, tail=lambda: successor.ledger_id, dropped=dropped)
                return
            except ManagedLedgerFencedError:
                self._background.spawn(self._maker.discard(successor), "deletion of a ledger that could not be listed")
                raise
            except MetadataError as error:
                self._availability.note(error)
                await backoff.wait()

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
            self.state = AppendState.SWITCHING
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
                self.state = AppendState.NO_LEDGER
                self._flush()  # appends that arrived meanwhile need a ledger, and nothing else would start one
                raise
            self.refuse(ManagedLedgerTerminatedError(f"{self._lists.name} is terminated"))
            return last

    async def close(self, drain_s: float) -> None:
        """Wait up to `drain_s` seconds for pending appends, refuse the rest and close the ledger."""
        if self.state is AppendState.OPEN:
            self._flush()
        closed = ManagedLedgerClosedError(f"{self._lists.name} is closed")
        if self._refusal is None:
            self._refusal = closed
        if self.state is AppendState.OPEN and self._in_flight:
            try:
                await asyncio.wait_for(self._wait_drained(), drain_s)
            except TimeoutError:
                _log.warning("%s is closed with appends pending", self._lists.name)
                assert self.writer is not None
                self.writer.abandon()  # the next open recovers and closes its ledger
                self.writer = None
        self.refuse(closed)
        if self._switch is not None:
            self._switch.cancel()
        await self.release()

    async def release(self) -> None:
        """Close the ledger being written if possible. Appends must already be refused."""
        assert self._refusal is not None
        writer, self.writer = self.writer, None
        if writer is not None:
            try:
                await writer.close()
            except (LedgerError, MetadataError) as error:
                _log.info(
                    "%s: ledger %d is left open, recovery closes it: %s", self._lists.name, writer.ledger_id, error
                )
