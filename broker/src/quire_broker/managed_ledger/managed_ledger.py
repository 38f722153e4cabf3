"""One managed ledger: the facade over its parts. Owns the order in which they open and close; computes nothing.

appender   pending appends and the ledger being written      ledger_list   which entries exist
reader     entries from cache, writer or closed ledgers       cursors       who has consumed what
offloads   copies of closed ledgers in a bucket
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum

from quire_bookie.errors import LedgerError, MetadataError, QuireError
from quire_bookie.model import Buffer
from quire_broker.managed_ledger.append_batch import AppendDone
from quire_broker.managed_ledger.appender import Appender, AppendState, AppendStats
from quire_broker.managed_ledger.cursor import Cursor
from quire_broker.managed_ledger.cursors import Cursors
from quire_broker.managed_ledger.entry_cache import TopicCache
from quire_broker.managed_ledger.errors import (
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
)
from quire_broker.managed_ledger.ledger_list import LedgerRecord
from quire_broker.managed_ledger.ledger_port import Payload, Writer
from quire_broker.managed_ledger.list_store import ListStore
from quire_broker.managed_ledger.offloads import Offloads
from quire_broker.managed_ledger.opening import Opened, open_list
from quire_broker.managed_ledger.patience import patiently
from quire_broker.managed_ledger.position import EARLIEST, Position, StoredEntry
from quire_broker.managed_ledger.reader import READ_BYTES_MAX, EntryReader
from quire_broker.managed_ledger.room import Room
from quire_broker.managed_ledger.search import find_first
from quire_broker.managed_ledger.trimming import trimmable

_log = logging.getLogger("quire.managed_ledger")
_DRAIN_S = 5.0
_TRIM_AT_ONCE = 50  # ledgers leaving the list in one transaction, each with its deletion record


class ManagedLedgerState(Enum):
    """What can be done with it."""

    OPEN = "open"
    TERMINATED = "terminated"  # reads and acknowledgments go on
    FENCED = "fenced"
    CLOSED = "closed"


class ManagedLedger:
    """See the module's text. Made by `ManagedLedgerFactory.open`."""

    append: Callable[[Payload, AppendDone], None]
    """`append(entry, done)`: take an entry (a buffer, or a tuple of buffers that follow each other).

    Never waits. `done(position, None)` or `done(None, error)` is called once per append, in order of the appends; an
    append that failed may still be stored.
    """

    def __init__(self, room: Room, opened: Opened, cache: TopicCache) -> None:
        """Use `open_managed_ledger`."""
        self.name = room.name
        self.state = ManagedLedgerState.OPEN
        self.on_fenced: Callable[[ManagedLedgerFencedError], None] | None = None
        """Called once when another owner took over; nothing can be done with this handle any more."""
        self._room = room
        self._lists: ListStore = opened.lists
        self._ledgers = opened.lists.ledgers
        self._cache = cache
        self._reader = EntryReader(
            room.client, self._ledgers, cache, room.background, room.settings, room.tier, room.memory
        )
        self._trim_lock = asyncio.Lock()
        """Held from the choice of the ledgers that go until they have left the list."""
        self.offloads = Offloads(room, self._lists, self._trim_lock, self._lost_list)
        """Attempts at offloading its ledgers, and the broker's own."""
        self._cursors = Cursors(
            room,
            self._lists,
            self._reader,
            trimming=self._trim_lock,
            passed_ledger=self._trim_soon,
            lost_node=self._lost_node,
        )
        self._appender = Appender(
            self._lists, room.maker, room.availability, self, room.background, room.clock, room.settings, room.backoff
        )
        self.append = self._appender.append
        self._listeners: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._trimming: asyncio.Task[None] | None = None
        self._trim_due_s = self._loop.time() + room.settings.trim_interval_s
        if opened.lists.node.terminated is not None:
            self.state = ManagedLedgerState.TERMINATED
            self._appender.refuse(ManagedLedgerTerminatedError(f"{self.name} is terminated"))
        elif opened.writer is not None:
            self._appender.install(opened.writer)

    # ---- what it is
    @property
    def last_confirmed(self) -> Position:
        """The newest stored entry; entry id -1 when there is none."""
        return self._ledgers.last_confirmed

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties stored with it."""
        return self._lists.node.properties

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """The durable cursors by name."""
        return self._cursors.durable

    @property
    def ledgers(self) -> list[LedgerRecord]:
        """Its ledgers, oldest first, with what is confirmed so far."""
        return self._ledgers.counted()

    @property
    def entries(self) -> int:
        """Stored entries."""
        return self._ledgers.entries

    @property
    def size_bytes(self) -> int:
        """Payload of the stored entries."""
        return self._ledgers.size_bytes

    @property
    def append_stats(self) -> AppendStats:
        """Counters of the write side."""
        return self._appender.stats

    # ---- appends
    def on_append(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after last_confirmed moved, once per batch; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def confirmed(self, ledger_id: int, first: int, entries: list[Payload]) -> None:
        """The appender's report; not for callers."""
        if self._worth_caching():
            self._cache.insert(ledger_id, first, entries, self._loop.time())

    def _worth_caching(self) -> bool:
        backlog_max = self._room.settings.cache_backlog_max
        last = self._ledgers.last_confirmed
        for cursor in self._cursors.all():
            if cursor.active and self._ledgers.entries_between(cursor.read_position, last) <= backlog_max:
                return True
        return False

    def advanced(self) -> None:
        """The appender's report; not for callers."""
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception:  # noqa: BLE001  a listener's fault must not keep the others from hearing
                _log.exception("a listener for appends of %s failed", self.name)

    def writes_to(self, writer: Writer | None) -> None:
        """The appender's report; not for callers."""
        self._reader.tail = writer
        self._trim_soon()

    def fenced(self, error: ManagedLedgerFencedError) -> None:
        """The appender's report; not for callers."""
        if self.state in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED):
            return
        _log.warning("%s", error)
        self.state = ManagedLedgerState.FENCED
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
        """Fence this handle when another owner wrote the list of ledgers since we did. Errors of the metadata store."""
        usable = self.state in (ManagedLedgerState.OPEN, ManagedLedgerState.TERMINATED)
        if usable and not await self._lists.still_owned():
            self._lost_list(ManagedLedgerFencedError(f"{self.name} had another owner while the session was lost"))

    async def roll(self) -> None:
        """Change to a new ledger now, unless the present one is empty. Errors: nothing changed."""
        self._check_usable()
        await self._appender.roll()

    async def terminate(self) -> Position:
        """Take no appends any more, for good; the last position. Appends that are pending are stored first."""
        self._check_usable()
        last = await self._appender.terminate()
        self.state = ManagedLedgerState.TERMINATED
        return last

    # ---- reads
    async def read(self, start: Position, entries_max: int = 100, bytes_max: int = READ_BYTES_MAX) -> list[StoredEntry]:
        """Entries from `start` on, acknowledged or not; [] beyond the last, at least one when there is one."""
        self._check_usable()
        return await self._reader.read(start, entries_max, bytes_max)

    def first_position(self) -> Position:
        """The first entry, or where it will be."""
        return self._ledgers.first_position()

    def next_position(self, position: Position) -> Position:
        """The entry after `position`, or where the next one is expected."""
        return self._ledgers.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """The entry before `position`; the place before the first one when there is none."""
        return self._ledgers.previous_position(position)

    def entries_between(self, after: Position, through: Position) -> int:
        """Number of entries after `after`, up to and including `through`."""
        return self._ledgers.entries_between(after, through)

    async def find_first(self, predicate: Callable[[Buffer], bool]) -> Position | None:
        """The first entry for which `predicate` holds, provided it then holds for all later ones; None without one."""
        self._check_usable()
        return await find_first(self._ledgers, self._reader, predicate)

    # ---- cursors
    async def open_cursor(
        self, name: str, initial: Position = EARLIEST, properties: Mapping[str, str] | None = None
    ) -> Cursor:
        """The durable cursor of that name. A new one starts at `initial` and is stored when this returns.

        EARLIEST, LATEST, or the first entry to read. `properties` are the subscription's and only taken when new.
        """
        self._check_usable()
        return await self._cursors.open(name, initial, properties or {})

    def open_reader_cursor(self, name: str, start: Position) -> Cursor:
        """A cursor that is not stored, reading from `start` on (EARLIEST, LATEST or a position)."""
        self._check_usable()
        return self._cursors.open_reader(name, start)

    def close_reader_cursor(self, cursor: Cursor) -> None:
        """Forget a cursor made by `open_reader_cursor`."""
        cursor.stop()
        self._cursors.readers.discard(cursor)

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor and what is stored of it. CursorMissingError."""
        self._check_usable()
        await self._cursors.delete(name)

    # ---- upkeep
    async def set_property(self, key: str, value: str | None) -> None:
        """Store a property, or remove it with None. ManagedLedgerFencedError; errors of the metadata store."""
        self._check_usable()
        try:
            await self._lists.set_property(key, value)
        except ManagedLedgerFencedError as error:
            self._lost_list(error)
            raise

    async def trim(self) -> list[int]:
        """Drop the ledgers that nobody needs (see `trimming`); their ids. They are deleted in the background."""
        self._check_usable()
        gone: list[int] = []
        while True:
            async with self._trim_lock:
                batch = trimmable(
                    self._ledgers.counted(),
                    tail=self._ledgers.tail,
                    slowest=self._cursors.slowest(),
                    now_ms=self._room.clock.now_ms(),
                    settings=self._room.settings,
                )[:_TRIM_AT_ONCE]
                if not batch:
                    return gone
                await self._drop(batch)
            gone.extend(batch)

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

    def _trim_soon(self) -> None:
        usable = self.state in (ManagedLedgerState.OPEN, ManagedLedgerState.TERMINATED)
        if self._trimming is None and usable and self._room.availability.now().metadata_reachable:
            self._trimming = self._room.background.spawn(self._trim_in_background(), f"trimming of {self.name}")

    async def _trim_in_background(self) -> None:
        try:
            await self.trim()
            await self.offloads.drop_copies()
            if self.state in (ManagedLedgerState.OPEN, ManagedLedgerState.TERMINATED):
                self.offloads.run_due()
        except MetadataError as error:
            _log.info("%s is trimmed later: %s", self.name, error)
        finally:
            self._trimming = None

    def tick(self) -> None:
        """The factory's clock: rollover by age, trimming by retention, cached entries that all have read."""
        if self.state is ManagedLedgerState.OPEN:
            self._appender.roll_if_full()
        now_s = self._loop.time()
        if now_s >= self._trim_due_s:
            self._trim_due_s = now_s + self._room.settings.trim_interval_s
            self._trim_soon()
        cursors = self._cursors.all()
        if cursors:
            self._cache.drop_before(min(cursor.read_position for cursor in cursors))

    # ---- the end
    async def close(self) -> None:
        """Store what is pending, save every cursor, close the ledger. Safe to call again."""
        if self.state is ManagedLedgerState.CLOSED:
            return
        fenced = self.state is ManagedLedgerState.FENCED
        self.state = ManagedLedgerState.CLOSED
        if fenced:
            self._appender.refuse(ManagedLedgerClosedError(f"{self.name} is closed"))
            await self._appender.release()
        else:
            await self._appender.close(_DRAIN_S)
            results = await asyncio.gather(
                *(cursor.close() for cursor in self._cursors.durable.values()), return_exceptions=True
            )
            for result in results:
                if isinstance(result, QuireError):
                    _log.warning("a cursor of %s keeps the state saved last: %s", self.name, result)
                elif isinstance(result, BaseException):
                    raise result
        for cursor in self._cursors.readers:
            cursor.stop()
        await self._release(0.0 if fenced else _DRAIN_S)

    async def _release(self, patience_s: float) -> None:
        await self.offloads.stop()
        if patience_s and self._room.availability.now().metadata_reachable:
            await self._room.background.settle(patience_s)
        await self._room.background.close()
        try:
            await self._reader.close()
        except (LedgerError, MetadataError) as error:
            _log.info("closing the readers of %s: %s", self.name, error)

    def stop(self) -> None:
        """End without storing anything more: it is about to be deleted."""
        self.state = ManagedLedgerState.CLOSED
        for cursor in self._cursors.all():
            cursor.stop()
        self._appender.refuse(ManagedLedgerClosedError(f"{self.name} is being deleted"))

    async def release(self) -> None:
        """After `stop`: give back every handle."""
        await self._appender.release()
        await self._release(0.0)

    def _check_usable(self) -> None:
        if self.state is ManagedLedgerState.FENCED:
            raise ManagedLedgerFencedError(f"{self.name} belongs to another owner")
        if self.state is ManagedLedgerState.CLOSED:
            raise ManagedLedgerClosedError(f"{self.name} is closed")

    @property
    def switching(self) -> bool:
        """Whether appends wait for a ledger."""
        return self._appender.state in (AppendState.SWITCHING, AppendState.NO_LEDGER)

    async def recover_cursors(self) -> None:
        """Load every stored cursor; part of opening."""
        await self._cursors.recover()


async def open_managed_ledger(room: Room, cache: TopicCache, *, create: bool) -> ManagedLedger:
    """Take over and load one managed ledger. Waits while the metadata store is away. Errors: nothing stays open."""
    settings = room.settings
    opened = await patiently(lambda: open_list(room, create=create), room.backoff(), settings.metadata_patience_s)
    ledger = ManagedLedger(room, opened, cache)
    try:
        await patiently(ledger.recover_cursors, room.backoff(), settings.metadata_patience_s)
        await patiently(room.deletions.resume, room.backoff(), settings.metadata_patience_s)
        await patiently(room.segments.resume, room.backoff(), settings.metadata_patience_s)
    except BaseException:
        ledger.stop()
        await ledger.release()
        raise
    return ledger
