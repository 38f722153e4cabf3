"""The cursors of one managed ledger: creation, recovery after a restart, deletion. One call per name at a time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote_plus, unquote_plus

from quire_bookie.errors import BadVersionError
from quire_bookie.metadata.retrying import retry_unavailable
from quire_bookie.metadata.store import Check, Node, Operation
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.cursors.cursor import COMPACTION_CURSOR, Cursor
from quire_broker.managed_ledger.cursors.cursor_fix import aligned
from quire_broker.managed_ledger.cursors.cursor_state import CursorState
from quire_broker.managed_ledger.cursors.cursor_store import CursorStore
from quire_broker.managed_ledger.errors import CursorMissingError, CursorStateError
from quire_broker.managed_ledger.list_store import ListStore, node_path
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.managed_ledger.reading.reader import EntryReader
from quire_broker.managed_ledger.trimming import slowest_mark_delete

_LOADS_AT_ONCE = 16
BROKER_CURSORS = frozenset({"pulsar.dedup", COMPACTION_CURSOR})
"""Names of durable cursors that the broker uses itself."""


def encoded_name(name: str) -> str:
    """Return a topic's or cursor's name encoded for a path, as Java's form encoding does: it keeps `*` but not `~`."""
    return quote_plus(name, safe="*").replace("~", "%7E")


class Cursors:
    """Keeps the cursors of one managed ledger: `durable` by name, and `readers`."""

    def __init__(
        self,
        context: ManagedLedgerContext,
        lists: ListStore,
        reader: EntryReader,
        *,
        trimming: asyncio.Lock,
        passed_ledger: Callable[[], None],
        moved: Callable[[], None],
        lost_node: Callable[[], None],
        loaded: Callable[[CursorState], None],
    ) -> None:
        """Initialise.

        `trimming` is held while ledgers are chosen and unlisted, so that no cursor starts in one of them. `moved` is
        called after a cursor was created or sought, `loaded` with each state that was stored, before it is aligned with
        the ledgers.
        """
        self.durable: dict[str, Cursor] = {}
        self.readers: set[Cursor] = set()
        self._context = context
        self._lists = lists
        self._reader = reader
        self._trimming = trimming
        self._arriving: dict[str, Position] = {}
        self._passed_ledger = passed_ledger
        self._moved = moved
        self._lost_node = lost_node
        self._loaded = loaded
        self._locks: dict[str, asyncio.Lock] = {}

    def all(self) -> list[Cursor]:
        """Return every open cursor."""
        return [*self.durable.values(), *self.readers]

    def slowest(self) -> Position | None:
        """Return the lowest mark-delete position of the durable cursors; None if it must not start a trimming.

        The broker's own cursors hold trimming back but are not subscriptions. If there are only those and no retention
        is set, a later subscriber must still find all entries.
        """
        settings = self._context.settings
        subscribed = any(name not in BROKER_CURSORS for name in self.durable)
        if not subscribed and settings.retention_s == 0 and settings.retention_bytes == 0:
            return None
        marks = [cursor.holds_back for cursor in self.durable.values()]
        return slowest_mark_delete([*marks, *self._arriving.values()])

    async def recover(self, known: Mapping[str, Node] | None = None) -> None:
        """Load every cursor that has a node. Raises the first error of a cursor that cannot be loaded.

        `known`: the nodes by their encoded names, if they were just read.
        """
        nodes = known or {}
        names = await self._context.store.children(node_path(self._context.name)) if known is None else list(nodes)
        gate = asyncio.Semaphore(_LOADS_AT_ONCE)

        async def load(encoded: str) -> None:
            async with gate:
                name = unquote_plus(encoded)
                store = self._store_of(encoded)
                state = await self._load(store, nodes.get(encoded))
                self.durable[name] = self._make(name, state, store)

        results = await asyncio.gather(*(load(encoded) for encoded in names), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _load(self, store: CursorStore, known: Node | None = None) -> CursorState:
        ledgers = self._lists.ledgers
        state = await store.load(ledgers, known)
        self._loaded(state)
        return aligned(state, ledgers)

    async def open(self, name: str, initial: Position, properties: Mapping[str, str]) -> Cursor:
        """Return the durable cursor, created at `initial` if it does not exist. Waits for unavailable metadata."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            known = self.durable.get(name)
            if known is not None:
                return known
            context = self._context
            async with self._trimming:
                state = CursorState(self._mark_before(initial))
                self._arriving[name] = state.mark_delete
            store = self._store_of(encoded_name(name))
            try:
                await retry_unavailable(
                    lambda: store.create(state, dict(properties)), context.backoff(), context.settings.metadata_retry_s
                )
            except BadVersionError as error:
                if not await self._lists.still_owned():
                    self._lost_node()
                    raise CursorStateError(f"cursor {name} of {context.name} was created by another owner") from error
                # The node was made by a cancelled call, or by a former owner that has not noticed the take-over.
                state = await self._load(store)
            finally:
                del self._arriving[name]
            cursor = self.durable[name] = self._make(name, state, store)
            self._moved()
            return cursor

    async def hold(self, name: str) -> None:
        """Hold back trimming as a cursor before the first entry would, until `release`. For a cursor to be placed."""
        async with self._trimming:
            self._arriving[name] = self._mark_before(EARLIEST)

    def release(self, name: str) -> None:
        """End `hold`."""
        self._arriving.pop(name, None)
        self._passed_ledger()

    async def place(
        self,
        name: str,
        position: Position,
        properties: Mapping[str, int],
        also: Sequence[Operation],
        checks: Sequence[Check],
    ) -> None:
        """Create the durable cursor at a position, or move it there: see `Cursor.place`. Errors as there."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            known = self.durable.get(name)
            if known is not None:
                await known.place(position, properties, also, checks)
                return
            store = self._store_of(encoded_name(name))
            state = CursorState(position, properties=dict(properties))
            await self._lists.while_owned(lambda ours: store.place(state, also, [ours, *checks]))
            self.durable[name] = self._make(name, state, store)
            self._moved()

    def open_reader(self, name: str, start: Position) -> Cursor:
        """Return a cursor in memory only: it holds back no trimming and is dropped when closed."""
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
        stored = self._context.node(f"{node_path(self._context.name)}/{encoded}")
        return CursorStore(self._context, unquote_plus(encoded), stored)

    def _make(self, name: str, state: CursorState, store: CursorStore | None) -> Cursor:
        cursor = Cursor(
            name,
            self._context,
            self._lists,
            self._reader,
            state,
            store,
            trimming=self._trimming,
            passed_ledger=self._passed_ledger,
            moved=self._moved,
            lost_node=self._lost_node,
        )
        cursor.active = name not in BROKER_CURSORS
        return cursor

    async def delete(self, name: str) -> None:
        """Delete the durable cursor. CursorMissingError.

        After an error of the metadata store the cursor still exists.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            cursor = self.durable.get(name)
            if cursor is None:
                raise CursorMissingError(f"{self._context.name} has no cursor {name}")
            await cursor.remove()
            del self.durable[name]
        self._passed_ledger()
