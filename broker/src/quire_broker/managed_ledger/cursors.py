"""The cursors of one managed ledger: made, found again after a restart, deleted. One call a name at a time."""

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import quote_plus, unquote_plus

from quire_bookie.errors import BadVersionError
from quire_broker.managed_ledger.cursor import Cursor
from quire_broker.managed_ledger.cursor_fix import aligned
from quire_broker.managed_ledger.cursor_state import CursorState
from quire_broker.managed_ledger.cursor_store import CursorStore
from quire_broker.managed_ledger.errors import CursorMissingError, CursorStateError
from quire_broker.managed_ledger.list_store import ListStore, node_path
from quire_broker.managed_ledger.patience import patiently
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.managed_ledger.reader import EntryReader
from quire_broker.managed_ledger.room import Room
from quire_broker.managed_ledger.trimming import slowest_mark_delete

_LOADS_AT_ONCE = 16
BROKER_CURSORS = frozenset({"pulsar.dedup", "__compaction"})
"""Names of durable cursors that the broker keeps for itself."""


def encoded_name(name: str) -> str:
    """A topic's or cursor's name as part of a path: the form encoding of Java, which keeps `*` and not `~`."""
    return quote_plus(name, safe="*").replace("~", "%7E")


class Cursors:
    """`durable` and `readers` by name."""

    def __init__(
        self,
        room: Room,
        lists: ListStore,
        reader: EntryReader,
        *,
        trimming: asyncio.Lock,
        passed_ledger: Callable[[], None],
        lost_node: Callable[[], None],
    ) -> None:
        """`trimming`: held while ledgers are chosen and leave the list, so that no cursor is put into one of them."""
        self.durable: dict[str, Cursor] = {}
        self.readers: set[Cursor] = set()
        self._room = room
        self._lists = lists
        self._reader = reader
        self._trimming = trimming
        self._arriving: dict[str, Position] = {}
        self._passed_ledger = passed_ledger
        self._lost_node = lost_node
        self._locks: dict[str, asyncio.Lock] = {}

    def all(self) -> list[Cursor]:
        """Every open cursor."""
        return [*self.durable.values(), *self.readers]

    def slowest(self) -> Position | None:
        """The lowest mark-delete of the durable ones; None when that must not start a trimming.

        The broker's own cursors hold trimming back but are no subscription: with only those, and no retention set,
        somebody who subscribes later must still find everything.
        """
        settings = self._room.settings
        subscribed = any(name not in BROKER_CURSORS for name in self.durable)
        if not subscribed and settings.retention_s == 0 and settings.retention_bytes == 0:
            return None
        marks = [cursor.holds_back for cursor in self.durable.values()]
        return slowest_mark_delete([*marks, *self._arriving.values()])

    async def recover(self) -> None:
        """Load every cursor that has a node. Errors: the first that cannot be loaded."""
        names = await self._room.store.children(node_path(self._room.name))
        gate = asyncio.Semaphore(_LOADS_AT_ONCE)

        async def load(encoded: str) -> None:
            async with gate:
                name = unquote_plus(encoded)
                store = self._store_of(encoded)
                state = aligned(await store.load(self._lists.ledgers), self._lists.ledgers)
                self.durable[name] = self._make(name, state, store)

        results = await asyncio.gather(*(load(encoded) for encoded in names), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def open(self, name: str, initial: Position, properties: Mapping[str, str]) -> Cursor:
        """The durable cursor of that name, made at `initial` when there is none. Waits while the metadata is away."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            known = self.durable.get(name)
            if known is not None:
                return known
            room = self._room
            async with self._trimming:
                state = CursorState(self._mark_before(initial))
                self._arriving[name] = state.mark_delete
            store = self._store_of(encoded_name(name))
            try:
                await patiently(
                    lambda: store.create(state, dict(properties)), room.backoff(), room.settings.metadata_patience_s
                )
            except BadVersionError as error:
                if not await self._lists.still_owned():
                    self._lost_node()
                    raise CursorStateError(f"cursor {name} of {room.name} was made by another owner") from error
                # The node is that of a call that was cancelled, or of a former owner that does not know of us yet.
                state = aligned(await store.load(self._lists.ledgers), self._lists.ledgers)
            finally:
                del self._arriving[name]
            cursor = self.durable[name] = self._make(name, state, store)
            return cursor

    def open_reader(self, name: str, start: Position) -> Cursor:
        """A cursor in memory only: it holds nothing back and is forgotten when closed."""
        cursor = self._make(name, CursorState(self._mark_before(start)), None)
        self.readers.add(cursor)
        return cursor

    def _mark_before(self, start: Position) -> Position:
        ledgers = self._lists.ledgers
        if start == LATEST:
            return ledgers.last_confirmed
        first = ledgers.first_position() if start == EARLIEST else ledgers.at_or_after(start)
        return min(ledgers.previous_position(first), ledgers.last_confirmed)

    def _store_of(self, encoded: str) -> CursorStore:
        stored = self._room.node(f"{node_path(self._room.name)}/{encoded}")
        return CursorStore(self._room, unquote_plus(encoded), stored)

    def _make(self, name: str, state: CursorState, store: CursorStore | None) -> Cursor:
        return Cursor(
            name,
            self._room,
            self._lists,
            self._reader,
            state,
            store,
            trimming=self._trimming,
            passed_ledger=self._passed_ledger,
            lost_node=self._lost_node,
        )

    async def delete(self, name: str) -> None:
        """Delete the durable cursor. CursorMissingError; errors of the metadata store: it is still there."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            cursor = self.durable.get(name)
            if cursor is None:
                raise CursorMissingError(f"{self._room.name} has no cursor {name}")
            await cursor.remove()
            del self.durable[name]
        self._passed_ledger()
