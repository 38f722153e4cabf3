"""One managed ledger: the facade over its parts. Owns the order in which they open and close; computes nothing.

appender   pending appends and the ledger being written      ledger_list   which entries exist
reader     entries from cache, writer or closed ledgers       cursors       progress of subscriptions
offloads   copies of closed ledgers in a bucket
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import Enum
from math import inf

from quire_bookie.errors import LedgerError, MetadataError, QuireError
from quire_bookie.metadata.joint_write import Place, Transact
from quire_bookie.metadata.store import Node
from quire_bookie.model import Buffer
from quire_broker.managed_ledger.appending.append_queue import AppendDone, AppendStats
from quire_broker.managed_ledger.appending.ledger_switch import AppendState
from quire_broker.managed_ledger.compacted_ledgers import CompactedLedgers
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.managed_ledger.cursors.cursor_state import CursorState
from quire_broker.managed_ledger.cursors.registry import Cursors
from quire_broker.managed_ledger.errors import (
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
    ShadowLedgerError,
)
from quire_broker.managed_ledger.ledger_port import Payload, Writer
from quire_broker.managed_ledger.list_store import ListStore
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.offloads import Offloads
from quire_broker.managed_ledger.opening import Opened
from quire_broker.managed_ledger.parts import open_appender, open_reader
from quire_broker.managed_ledger.position import EARLIEST, Position, StoredEntry
from quire_broker.managed_ledger.reading.active_readers import ActiveReaders
from quire_broker.managed_ledger.reading.entry_cache import EntryCache
from quire_broker.managed_ledger.reading.reader import READ_BYTES_MAX, find_first
from quire_broker.managed_ledger.shadow import LacTeller, SourceLedgers
from quire_broker.managed_ledger.trimming import trimmable, trimmable_from_ms
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings

_log = logging.getLogger("quire.managed_ledger")
_DRAIN_S = 5.0
_TRIM_REST_MAX_S = 3600.0  # the wall clock, which decides on retention, may be changed meanwhile
_TRIM_AT_ONCE = 50  # ledgers that leave the list in one transaction, each with its deletion record


class ManagedLedgerState(Enum):
    """Lifecycle state of a managed ledger."""

    OPEN = "open"
    TERMINATED = "terminated"  # reads and acknowledgments continue
    FENCED = "fenced"
    CLOSED = "closed"


class ManagedLedger:
    """Facade of one managed ledger; see the module docstring. Created by `ManagedLedgerFactory.open`."""

    append: Callable[[Payload, AppendDone], None]
    """`append(entry, done)`: accept an entry (a buffer, or a tuple of consecutive buffers) without waiting.

    Calls `done(position, None)` or `done(None, error)` once per append, in the order of the appends. An append that
    failed may still be stored.
    """

    held: Callable[[float], None]
    """`held(seconds)`: note that a limit held the next append back, for the log of slow operations."""

    def __init__(self, context: ManagedLedgerContext, opened: Opened, cache: EntryCache) -> None:
        """Use `open_managed_ledger` instead."""
        self.name = context.name
        self.state = ManagedLedgerState.OPEN
        self.on_fenced: Callable[[ManagedLedgerFencedError], None] | None = None
        """Called once when another owner took over; this handle is unusable afterwards."""
        self.on_event: Callable[[], None] = lambda: None
        """Called when `tick` may have work earlier than it returned: see `upkeep`."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after last_confirmed moved, once per batch, and when its list or a cursor's place has changed."""
        self.on_stored: Callable[[Payload], None] | None = None
        """Called with the newest entry of each batch that is stored, before its appends are answered."""
        self._context = context
        self._lists: ListStore = opened.lists
        self._ledgers = opened.lists.ledgers
        readers = ActiveReaders(self._ledgers)
        self._cache = cache.topic(readers)
        self._reader = open_reader(context, self._ledgers, self._cache, readers)
        self._trim_lock = asyncio.Lock()
        """Held from the choice of the ledgers to trim until they have left the list."""
        self.offloads = Offloads(context, self._lists, self._trim_lock, self._lost_list)
        """Attempts to offload its ledgers, by jobs and by the broker itself."""
        self._cursors = Cursors(
            context,
            self._lists,
            self._reader,
            trimming=self._trim_lock,
            passed_ledger=self._ledger_passed,
            moved=self._wake,
            lost_node=self._lost_node,
            loaded=self._cursor_loaded,
        )
        readers.follow(self._cursors.all)
        self.compacted = CompactedLedgers(context, self._cursors)
        """Its compacted ledger, if it has one."""
        self._appender = open_appender(context, self._lists, self)
        self.append = self._appender.append
        self.held = self._appender.held
        self.obstacle = self._appender.obstacle
        self.opened_ms = context.clock.now_ms()
        """When this broker opened it."""
        self._listeners: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._trimming: asyncio.Task[None] | None = None
        self._settle_s = 0.0
        self._is_ending = False
        """Whether it accepts no more appends: the next owner trims, and need not wait for that here."""
        self.was_read_ahead = False
        """Whether its list was read before it was opened: see `preparation`."""
        self._trim_due_s = self._loop.time() + context.settings.trim_interval_s
        self._is_resting = False
        self._lists.on_update = self._wake
        self._lac_teller = LacTeller(context)
        self.source: SourceLedgers | None = None
        """Where its entries are, if they are another managed ledger's: it takes no appends and deletes no entries."""
        if opened.source is not None:
            shown = (self._ledgers, self._reader)
            self.source = SourceLedgers(context, opened.source, *shown, grown=self.advanced)
            self._appender.refuse(ShadowLedgerError(f"{self.name} reads the entries of {opened.source}: it takes none"))
        elif opened.lists.node.terminated is not None:
            self.state = ManagedLedgerState.TERMINATED
            self._appender.refuse(ManagedLedgerTerminatedError(f"{self.name} is terminated"))
        elif opened.writer is not None:
            self._appender.install(opened.writer)

    # ---- what it is
    @property
    def last_confirmed(self) -> Position:
        """The newest stored entry; entry id -1 if there is none."""
        return self._ledgers.last_confirmed

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties stored in its node."""
        return self._lists.node.properties

    @property
    def running_properties(self) -> dict[str, Callable[[], str | None]]:
        """Properties whose present values each write of its node stores, unless they are None."""
        return self._lists.running_properties

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """The durable cursors by name."""
        return self._cursors.durable

    @property
    def ledgers(self) -> list[LedgerRecord]:
        """Its ledgers, oldest first, with the entries confirmed so far."""
        return self._ledgers.counted()

    @property
    def entries(self) -> int:
        """Number of stored entries."""
        return self._ledgers.entries

    @property
    def size_bytes(self) -> int:
        """Payload bytes of the stored entries."""
        return self._ledgers.size_bytes

    @property
    def append_stats(self) -> AppendStats:
        """Counters of the write side."""
        return self._appender.stats

    # ---- appends
    def on_append(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after last_confirmed moved, once per batch. Return a function that removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def confirmed(self, ledger_id: int, first: int, entries: list[Payload]) -> None:
        """Handle an event of the appender; not for callers."""
        if self.on_stored is not None:
            self.on_stored(entries[-1])
        self._cache.append(ledger_id, first, entries, self._loop.time())

    def advanced(self) -> None:
        """Handle an event of the appender; not for callers."""
        (self._wake if self._is_resting else self.on_change)()
        self._lac_teller.advanced()
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception:  # noqa: BLE001  an error in one listener must not stop the others
                _log.exception("a listener for appends of %s failed", self.name)

    def writes_to(self, writer: Writer | None) -> None:
        """Handle an event of the appender; not for callers."""
        self._reader.tail = self._lac_teller.writer = writer
        self._trim_soon()

    def fenced(self, error: ManagedLedgerFencedError) -> None:
        """Handle an event of the appender; not for callers."""
        if self.state in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED):
            return
        _log.warning("%s", error)
        self.state = ManagedLedgerState.FENCED
        self._wake()
        for cursor in self._cursors.all():
            cursor.stop()
        if self.on_fenced is not None:
            self.on_fenced(error)

    def _lost_node(self) -> None:
        self._lost_list(ManagedLedgerFencedError(f"{self.name}: another owner writes its cursors"))

    def _lost_list(self, error: ManagedLedgerFencedError) -> None:
        self._appender.refuse(error)
        self.fenced(error)

    async def check_owner(self) -> None:
        """Fence this handle if another owner wrote the list of ledgers since our last write.

        Errors of the metadata store.
        """
        usable = self.state in (ManagedLedgerState.OPEN, ManagedLedgerState.TERMINATED)
        if usable and not await self._lists.still_owned():
            self._lost_list(ManagedLedgerFencedError(f"{self.name} had another owner while the session was lost"))

    async def roll(self) -> None:
        """Change to a new ledger now, unless the present one is empty. Raises errors; then nothing has changed."""
        self._check_usable()
        await self._appender.roll()

    def may_end(self, ledger_id: int, cursor: str | None) -> bool:
        """Return whether `end_ledger` would end this ledger now: of entries, or of the named cursor."""
        if self._is_ending or self.state not in (ManagedLedgerState.OPEN, ManagedLedgerState.TERMINATED):
            return False
        if cursor is None:
            return self._appender.may_end(ledger_id)
        found = self._cursors.durable.get(cursor)
        return found is not None and found.may_leave(ledger_id)

    async def end_ledger(self, ledger_id: int, cursor: str | None) -> bool:
        """Close a ledger that rests and is not whole, so that auto-recovery can repair it. Return whether it is done.

        Entries get a successor. The state of a cursor moves to its node, or to a new ledger if it is too large.
        QuireError; then nothing is lost, and the ledger may still be written.
        """
        if not self.may_end(ledger_id, cursor):
            return False
        if cursor is None:
            return await self._appender.end(ledger_id)
        return await self._cursors.durable[cursor].leave(ledger_id)

    async def terminate(self) -> Position:
        """Accept no more appends, permanently, and return the last position. Pending appends are stored first."""
        self._check_usable()
        last = await self._appender.terminate()
        self.state = ManagedLedgerState.TERMINATED
        return last

    # ---- reads
    async def read(self, start: Position, entries_max: int = 100, bytes_max: int = READ_BYTES_MAX) -> list[StoredEntry]:
        """Return entries from `start` on, acknowledged or not: at least one if there is one, [] after the last."""
        self._check_usable()
        return await self._reader.read(start, entries_max, bytes_max)

    def first_position(self) -> Position:
        """Return the position of the first entry, or where it is expected."""
        return self._ledgers.first_position()

    def next_position(self, position: Position) -> Position:
        """Return the position after `position`, or where the next entry is expected."""
        return self._ledgers.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """Return the position before `position`; if there is none, the position before the first entry."""
        return self._ledgers.previous_position(position)

    def entries_between(self, after: Position, through: Position) -> int:
        """Return the number of entries after `after`, up to and including `through`."""
        return self._ledgers.entries_between(after, through)

    async def find_first(self, predicate: Callable[[Buffer], bool]) -> Position | None:
        """Return the first entry for which `predicate` holds, or None. It must hold for all later entries too."""
        self._check_usable()
        return await find_first(self._ledgers, self._reader, predicate)

    # ---- cursors
    async def open_cursor(
        self, name: str, initial: Position = EARLIEST, properties: Mapping[str, str] | None = None
    ) -> Cursor:
        """Return the durable cursor of that name. A new one starts at `initial` and is stored when this returns.

        `initial` is EARLIEST, LATEST or the first entry to read. `properties` belong to the subscription and are used
        only for a new one.
        """
        self._check_usable()
        return await self._cursors.open(name, initial, properties or {})

    def open_reader_cursor(self, name: str, start: Position) -> Cursor:
        """Return a cursor that is not stored and reads from `start` on (EARLIEST, LATEST or a position)."""
        self._check_usable()
        return self._cursors.open_reader(name, start)

    def close_reader_cursor(self, cursor: Cursor) -> None:
        """Close a cursor made by `open_reader_cursor`."""
        cursor.stop()
        self._cursors.readers.discard(cursor)

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor and its stored state. CursorMissingError."""
        self._check_usable()
        await self._cursors.delete(name)

    # ---- upkeep
    async def set_property(self, key: str, value: str | None) -> None:
        """Store a property, or remove it if `value` is None. ManagedLedgerFencedError; errors of the metadata store."""
        self._check_usable()
        try:
            await self._lists.set_property(key, value)
        except ManagedLedgerFencedError as error:
            self._lost_list(error)
            raise

    def use(self, settings: ManagedLedgerSettings) -> None:
        """Apply other settings of ledgers from the next one on, of retention and offloading from the next check on."""
        if settings != self._context.settings:
            self._context.settings = settings
            self._context.maker.use(settings)
            self._appender.use(settings)
            self._reader.use(settings)
            self._trim_due_s = 0.0
            self._wake()

    def tell_lacs(self, *, active: bool) -> None:
        """Send the end of the ledger being written to its bookies soon after each append, for shadows of this one."""
        self._lac_teller.use(active=active)

    async def trim(self) -> list[int]:
        """Remove the ledgers that are no longer needed (see `trimming`) from the list and return their ids.

        They are deleted in the background.
        """
        self._check_usable()
        gone: list[int] = []
        while self.source is None:
            async with self._trim_lock:
                batch = trimmable(
                    self._ledgers.counted(),
                    tail=self._ledgers.tail,
                    slowest=self._cursors.slowest(),
                    now_ms=self._context.clock.now_ms(),
                    settings=self._context.settings,
                )[:_TRIM_AT_ONCE]
                if not batch:
                    return gone
                await self._drop(batch)
            gone.extend(batch)
        return gone

    async def _drop(self, ledger_ids: list[int]) -> None:
        dropped = frozenset(ledger_ids)
        try:
            await self._lists.update(
                lambda node: replace(
                    node, ledgers=tuple(record for record in node.ledgers if record.ledger_id not in dropped)
                ),
                dropped=ledger_ids,
            )
        except ManagedLedgerFencedError as error:
            self._lost_list(error)
            raise
        self._reader.forget(ledger_ids)

    def _cursor_loaded(self, state: CursorState) -> None:
        if self.source is not None:
            self.source.acknowledged(state)

    def _ledger_passed(self) -> None:
        self._wake()
        self._trim_soon()

    def _trim_soon(self) -> None:
        usable = self.state in (ManagedLedgerState.OPEN, ManagedLedgerState.TERMINATED) and not self._is_ending
        if self._trimming is None and usable and self.source is None and self._context.availability.metadata_reachable:
            self._trimming = self._context.background.spawn(self._trim_in_background(), f"trimming of {self.name}")

    async def _trim_in_background(self) -> None:
        try:
            await self.trim()
            await self.offloads.drop_copies()
            if self.state in (ManagedLedgerState.OPEN, ManagedLedgerState.TERMINATED):
                self.offloads.run_due()
        except (MetadataError, ManagedLedgerClosedError) as error:
            _log.info("could not trim %s now, trying again later: %s", self.name, error)
        finally:
            self._trimming = None
            self._wake()

    def _wake(self) -> None:
        self._is_resting = False
        self._trim_due_s = min(self._trim_due_s, self._loop.time() + self._context.settings.trim_interval_s)
        self.on_event()
        self.on_change()

    degraded = _wake  # an event of the appender; not for callers

    def tick(self) -> float:
        """Run periodic work. Return the loop time at which it is due again, unless `on_event` is called before.

        Rollover by age, trimming by retention, removal of cached entries that no cursor reads soon.
        """
        if self.state is ManagedLedgerState.OPEN:
            self._appender.roll_if_full()
        now_s = self._loop.time()
        if now_s >= self._trim_due_s:
            self._trim_due_s = now_s + self._context.settings.trim_interval_s
            self._trim_soon()
        self._cache.drop_passed()
        return self._next_tick_s(now_s)

    def _next_tick_s(self, now_s: float) -> float:
        if self._trimming is not None or not self._cache.is_empty:
            return now_s
        self._is_resting = True
        self._trim_due_s = max(self._trim_due_s, self._next_trim_s(now_s))
        return min(self._trim_due_s, self._appender.next_roll_s())

    def _next_trim_s(self, now_s: float) -> float:
        """Return the loop time at which trimming or offloading may have work though nothing happens; inf: never."""
        if self._may_offload:
            return now_s
        from_ms = self._trimmable_from_ms(self._ledgers.counted(), self._ledgers.tail)
        if from_ms is None:
            return inf
        return now_s + min((from_ms - self._context.clock.now_ms()) / 1000, _TRIM_REST_MAX_S)

    @property
    def _may_offload(self) -> bool:
        if self.source is not None:
            return False
        is_left = any(one.offload and not one.offload.bookies_deleted for one in self._ledgers.records())
        return is_left or self.offloads.target is not None

    def _trimmable_from_ms(self, records: list[LedgerRecord], tail: int | None) -> int | None:
        if self.source is not None:
            return None
        return trimmable_from_ms(records, tail=tail, slowest=self._cursors.slowest(), settings=self._context.settings)

    @property
    def must_stay(self) -> bool:
        """Whether it must not be closed now although no client uses it."""
        busy = self._appender.state is AppendState.SWITCHING or self._trimming is not None or self._may_offload
        return busy or not self._context.availability.metadata_reachable

    def retained_s(self) -> float:
        """Return how long consumed entries are kept: 0 if they are not, infinite if for ever."""
        settings = self._context.settings
        if not settings.retention_s or not settings.retention_bytes:
            return 0.0
        return inf if settings.retention_s == UNLIMITED else settings.retention_s

    def wanted_from_ms(self) -> int | None:
        """Return when it has work, in ms since the epoch, if it is closed now; None: not before its next use.

        A ledger whose entries are consumed gets its successor at its greatest age; then its entries may be deleted.
        """
        records, tail = self._ledgers.counted(), self._ledgers.tail
        from_ms = self._trimmable_from_ms(records, tail)
        if from_ms is not None or tail is None or not self._ledgers.entries_in(tail):
            return from_ms
        if self._trimmable_from_ms([*records, LedgerRecord(tail + 1)], None) is None:
            return None
        return self._context.clock.now_ms() + int((self._appender.next_roll_s() - self._loop.time()) * 1000)

    # ---- the end
    async def drain(self) -> None:
        """Accept no more appends, and store the pending ones. The first step of `save`."""
        self._is_ending = True
        if self.state in (ManagedLedgerState.OPEN, ManagedLedgerState.TERMINATED):
            await self._appender.drain(_DRAIN_S)

    async def save(self, place: Place | None = None) -> None:
        """Store pending appends, save every cursor and close the ledger. Then another owner may open it.

        Repeated calls are allowed. Call `settle` afterwards. `place`: in a joint write that closes the ledger and saves
        the cursors.
        """
        if self.state is ManagedLedgerState.CLOSED:
            return
        await self.drain()
        fenced = self.state is ManagedLedgerState.FENCED
        self.state = ManagedLedgerState.CLOSED
        self._wake()
        self._settle_s = 0.0 if fenced else _DRAIN_S
        for cursor in self._cursors.readers:
            cursor.stop()
        if fenced:
            self._appender.refuse(ManagedLedgerClosedError(f"{self.name} is closed"))
            await self._appender.release()
            return
        closes = (self._appender.release, self._end_writes, *(each.close for each in self._cursors.durable.values()))
        places = [None if place is None else place.beside() for _ in closes]
        if place is not None:
            place.leave()
        works = [_at(each, close) for each, close in zip(places, closes, strict=True)]
        results = await asyncio.gather(*works, return_exceptions=True)
        for result in results:
            if isinstance(result, QuireError):
                _log.warning("could not save a cursor of %s, its last saved state is valid: %s", self.name, result)
            elif isinstance(result, BaseException):
                raise result

    async def _end_writes(self, _: Transact | None = None) -> None:
        """End what else writes the list of ledgers: a write after the next owner's look would fail its opening."""
        await self.offloads.stop()
        if self._trimming is not None:
            await asyncio.wait({self._trimming}, timeout=_DRAIN_S)

    async def settle(self) -> None:
        """Finish deletions in the background, but not for long, and release every handle; call it after `save`."""
        await self._release(self._settle_s)

    async def close(self) -> None:
        """Store everything, close the ledger and release every handle. Repeated calls are allowed."""
        if self.state is not ManagedLedgerState.CLOSED:
            await self.save()
            await self.settle()

    async def _release(self, timeout_s: float) -> None:
        self._lac_teller.stop()
        if self.source is not None:
            await self.source.stop()
        await self.offloads.stop()
        if timeout_s and self._context.availability.metadata_reachable:
            await self._context.background.settle(timeout_s)
        await self._context.background.close()
        try:
            await self._reader.close()
        except (LedgerError, MetadataError) as error:
            _log.info("could not close the readers of %s: %s", self.name, error)

    def stop(self) -> None:
        """End without storing anything more, because the managed ledger is about to be deleted."""
        self.state = ManagedLedgerState.CLOSED
        self._wake()
        for cursor in self._cursors.all():
            cursor.stop()
        self._appender.refuse(ManagedLedgerClosedError(f"{self.name} is being deleted"))

    async def end_list(self) -> int:
        """Write the list of ledgers no more, and return the version of its last write; call it after `stop`."""
        return await self._lists.end()

    async def release(self) -> None:
        """Release every handle; call it after `stop`."""
        await self._appender.release()
        await self._release(0.0)

    def _check_usable(self) -> None:
        if self.state is ManagedLedgerState.FENCED:
            raise ManagedLedgerFencedError(f"{self.name} belongs to another owner")
        if self.state is ManagedLedgerState.CLOSED:
            raise ManagedLedgerClosedError(f"{self.name} is closed")

    async def recover_cursors(self, known: Mapping[str, Node] | None) -> None:
        """Load every stored cursor. Part of opening. `known`: their nodes by their encoded names, if just read."""
        await self._cursors.recover(known)


async def _at(place: Place | None, close: Callable[[Transact | None], Awaitable[None]]) -> None:
    """Do a part of the close at its place of a joint write; without one it writes alone."""
    if place is None:
        await close(None)
        return
    with place:
        await close(place.write)
