"""Stores one durable cursor: in its node, and in a ledger of snapshots while it moves. Decides no position.

Every entry of a cursor ledger is a complete snapshot; the last one is valid. A new ledger receives its first snapshot,
then the node changes to it, then the old ledger is deleted. The node alone (cursor ledger -1) holds the state after a
clean close, or when no ledger can be written and the whole state fits into the node.

There are two cases when the state cannot be read. If it is provably lost (no such ledger, no such entry, bytes that are
not a state), the newest earlier snapshot is used, and finally the one in the node, so some entries are delivered again.
If it may still exist, CursorStateError is raised. The latest position is never used: it would skip entries that no
consumer has received.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import (
    BadVersionError,
    DigestMismatchError,
    LedgerError,
    MetadataError,
    MetadataFormatError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
)
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.store import Check, Node, Operation
from quire_bookie.model import EntryId, LedgerId
from quire_broker.limits import LEDGERS_RECORDED_AT_ONCE
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.cursors.bucket_format import BucketRecord
from quire_broker.managed_ledger.cursors.cursor_state import (
    NO_CURSOR_LEDGER,
    CursorNode,
    CursorState,
    StateBounds,
    decode_node,
    decode_position,
    encode_node,
    encode_position,
    fits_node,
)
from quire_broker.managed_ledger.errors import CursorMissingError, CursorStateError
from quire_broker.managed_ledger.ledger_port import Reader, Writer
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.nodes.stored_node import StoredNode
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.stored_passwords import to_recover

_log = logging.getLogger("quire.managed_ledger")
_SNAPSHOTS_TRIED = 100
_SWITCH_RETRY_S = 10.0


@dataclass(slots=True)
class CursorStoreStats:
    """Counters since the cursor was opened."""

    snapshots: int = 0
    snapshot_bytes: int = 0
    node_writes: int = 0
    failures: int = 0


class CursorStore:
    """Loads and saves the state of one durable cursor. One call at a time: the cursor holds a lock."""

    def __init__(self, context: ManagedLedgerContext, cursor: str, stored: StoredNode) -> None:
        self.stats = CursorStoreStats()
        self.cursor_properties: dict[str, str] = {}
        self.buckets: tuple[BucketRecord, ...] = ()
        """Where delivery times of delayed entries are saved; the node names them."""
        self.last_active_ms = context.clock.now_ms()
        """When a consumer last used the cursor, in ms since the epoch."""
        self.switched_ms = self.last_active_ms
        """When the cursor was loaded, or got its present ledger."""
        self._context = context
        self._cursor = cursor
        self._stored = stored
        self._writer: Writer | None = None
        self._ledger_id = NO_CURSOR_LEDGER
        self._strange: list[int] = []
        """Ledgers of buckets that a former owner wrote into the node meanwhile: its next write drops them."""
        self._opened_s = 0.0
        self._switch_not_before_s = 0.0
        settings = context.settings
        batches_max = settings.batch_acks_max if settings.persist_batch_acks else 0
        self._ledger_bounds = StateBounds(settings.unacked_ranges_max, batches_max, settings.cursor_state_bytes_max)
        self._node_bounds = StateBounds(
            settings.unacked_ranges_in_node_max, batches_max, settings.cursor_node_bytes_max, bitmap=False
        )

    @property
    def last_snapshot(self) -> Position | None:
        """Where the last snapshot is: the cursor ledger that the node names, and the entry; None without a ledger.

        The entry is -1 after the cursor was opened and before it is saved again.
        """
        if self._ledger_id == NO_CURSOR_LEDGER:
            return None
        return Position(self._ledger_id, self._writer.last_add_confirmed if self._writer is not None else -1)

    # ---- loading
    async def create(self, state: CursorState, cursor_properties: dict[str, str]) -> None:
        """Write the node of a new cursor. Raises BadVersionError if it exists."""
        self.cursor_properties = dict(cursor_properties)
        await self._write_node(NO_CURSOR_LEDGER, state)

    async def place(self, state: CursorState, also: Sequence[Operation], checks: Sequence[Check]) -> None:
        """Store a whole state, which fits into the node, in one transaction with `also`, if the `checks` hold.

        Creates the node of a new cursor. BadVersionError.
        """
        assert fits_node(state, self._node_bounds), "a state that is placed has no ranges"
        await self._write_node(NO_CURSOR_LEDGER, state, also, checks)

    async def load(self, ledgers: LedgerList, known: Node | None = None) -> CursorState:
        """Return the last valid state. CursorMissingError, CursorStateError; errors of the metadata store.

        `known`: the cursor's node, if it was just read.
        """
        before = None
        while True:
            value = await self._stored.load() if known is None else self._stored.adopt(known)
            known = None
            state = await self._load(value, ledgers, gone=before)
            if state is not None:
                return state
            # A former owner that has not noticed the take-over may have just changed to another ledger and deleted this
            # one.
            before = value

    async def _load(self, value: bytes | None, ledgers: LedgerList, *, gone: bytes | None) -> CursorState | None:
        """Return None if the ledger in the node does not exist and the node value differs from `gone`."""
        if value is None:
            raise CursorMissingError(f"{self._context.name} has no cursor {self._cursor}")
        try:
            node = decode_node(value, ledgers)
        except MetadataFormatError as error:
            raise CursorStateError(f"the node of cursor {self._cursor} of {self._context.name}: {error}") from error
        self.cursor_properties = dict(node.cursor_properties)
        self.buckets = node.buckets
        self._ledger_id = node.ledger_id
        if node.ledger_id == NO_CURSOR_LEDGER:
            # A node with a ledger is older than the last use: then the cursor counts as used now.
            self.last_active_ms = node.last_active_ms or self.last_active_ms
            return node.state
        try:
            found = await self._last_snapshot(node.ledger_id, ledgers)
        except NoSuchLedgerError:
            if value != gone:
                return None
            found = None
        except QuireError as error:
            raise CursorStateError(
                f"ledger {node.ledger_id} of cursor {self._cursor} of {self._context.name} cannot be read: {error}"
            ) from error
        if found is None:
            _log.warning(
                "cursor %s of %s continues from %s: its ledger %d holds no later state",
                self._cursor, self._context.name, node.state.mark_delete, node.ledger_id,
            )  # fmt: skip
            return node.state
        return found

    async def _last_snapshot(self, ledger_id: int, ledgers: LedgerList) -> CursorState | None:
        reader = await self._context.client.open_ledger(
            LedgerId(ledger_id),
            password=self._context.settings.password,
            recover=True,
            accept_stored=to_recover(self._context.name),
        )
        try:
            last = reader.last_add_confirmed
            for entry_id in range(last, max(-1, last - _SNAPSHOTS_TRIED), -1):
                state = await self._snapshot(reader, entry_id, ledgers)
                if state is not None:
                    return state
            return None
        finally:
            await reader.close()

    async def _snapshot(self, reader: Reader, entry_id: int, ledgers: LedgerList) -> CursorState | None:
        """Return the snapshot, or None if it is provably invalid. Other errors propagate to the caller."""
        try:
            entries = await reader.read(EntryId(entry_id), EntryId(entry_id))
            return decode_position(bytes(entries[0].payload), ledgers)
        except (NoSuchEntryError, DigestMismatchError, MetadataFormatError) as error:
            _log.warning(
                "skipping the invalid state %d in ledger %d of cursor %s of %s: %s",
                entry_id, reader.ledger_id, self._cursor, self._context.name, error,
            )  # fmt: skip
            return None

    # ---- saving
    async def save(self, state: CursorState) -> None:
        """Store `state` as it is now or later. On an error it is unknown whether the state is durable."""
        if self._writer is not None and not self._due_for_new_ledger():
            if await self._append(self._writer, state):
                return
            self._writer = None
            self._switch_not_before_s = max(self._switch_not_before_s, self._opened_s + _SWITCH_RETRY_S)
        if self._writer is None and self._now_s() < self._switch_not_before_s and fits_node(state, self._node_bounds):
            # A ledger could not be created, or failed soon: do not create another one for each snapshot.
            await self._write_node(NO_CURSOR_LEDGER, state)
            return
        old = self._writer
        try:
            await self._begin_ledger(state)
        except BadVersionError:
            raise  # there is another writer of the node: nothing may be written past it
        except (LedgerError, MetadataError) as error:
            self.stats.failures += 1
            self._switch_not_before_s = self._now_s() + _SWITCH_RETRY_S
            _log.info("could not create a new ledger for cursor %s of %s: %s", self._cursor, self._context.name, error)
            if old is not None and await self._append(old, state):
                return
            if not fits_node(state, self._node_bounds):
                raise
            await self._write_node(NO_CURSOR_LEDGER, state)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _due_for_new_ledger(self) -> bool:
        assert self._writer is not None
        settings = self._context.settings
        full = self._writer.last_add_confirmed + 1 >= settings.cursor_ledger_entries_max
        old = self._now_s() - self._opened_s >= settings.cursor_ledger_age_max_s
        due = full or old or self._context.maker.should_replace(self._writer)
        return due and self._now_s() >= self._switch_not_before_s

    async def _append(self, writer: Writer, state: CursorState) -> bool:
        data = encode_position(state, self._ledger_bounds)
        try:
            await writer.append(data)
        except (LedgerError, MetadataError) as error:
            self.stats.failures += 1
            _log.warning("cursor ledger %d of %s failed: %s", writer.ledger_id, self._context.name, error)
            return False
        self.stats.snapshots += 1
        self.stats.snapshot_bytes += len(data)
        return True

    async def _begin_ledger(self, state: CursorState) -> None:
        writer = await self._context.maker.create(self._cursor)
        try:
            data = encode_position(state, self._ledger_bounds)
            await writer.append(data)
            await self._write_node(writer.ledger_id, state)
        except (LedgerError, MetadataError):
            self._context.background.spawn(self._context.maker.discard(writer), f"discarding ledger {writer.ledger_id}")
            raise
        self.stats.snapshots += 1
        self.stats.snapshot_bytes += len(data)
        self._writer = writer
        self._opened_s = self._now_s()
        self.switched_ms = self._context.clock.now_ms()

    async def _write_node(
        self,
        ledger_id: int,
        state: CursorState,
        also: Sequence[Operation] = (),
        checks: Sequence[Check] = (),
        transact: Transact | None = None,
    ) -> None:
        """Store `ledger_id` in the node and delete the ledger that it named before."""
        node = CursorNode(ledger_id, state, self.cursor_properties, self.last_active_ms, self.buckets)
        old = [self._ledger_id] if self._ledger_id not in (NO_CURSOR_LEDGER, ledger_id) else []
        strange = [] if transact is not None else self._strange[:LEDGERS_RECORDED_AT_ONCE]
        records = [*self._context.deletions.record([*old, *strange]), *also]
        await self._stored.write(encode_node(node, self._node_bounds), records, checks, transact=transact)
        self.stats.node_writes += 1
        self._ledger_id = ledger_id
        del self._strange[: len(strange)]
        self._context.deletions.begin(strange)
        if old:
            self._retire(old)

    def _retire(self, old: list[int]) -> None:
        """Release the writer of the ledger that the node named before, then delete the ledger."""
        writer, self._writer = self._writer, None
        if writer is None or writer.ledger_id not in old:
            self._context.deletions.begin(old)
        else:
            self._context.background.spawn(self._close_and_delete(writer), f"retiring ledger {writer.ledger_id}")

    async def _close_and_delete(self, writer: Writer) -> None:
        try:
            await writer.close()
        except (LedgerError, MetadataError) as error:
            _log.debug("ledger %d is deleted without a close: %s", writer.ledger_id, error)
        self._context.deletions.begin([writer.ledger_id])

    async def set_cursor_properties(self, cursor_properties: dict[str, str], state: CursorState) -> None:
        """Replace the properties in the node.

        If there is a cursor ledger, the snapshot beside them is refreshed too.
        """
        before = self.cursor_properties
        self.cursor_properties = dict(cursor_properties)
        try:
            await self._write_node(self._ledger_id, state)
        except MetadataError:
            self.cursor_properties = before
            raise

    async def add_bucket(self, record: BucketRecord, state: CursorState) -> None:
        """Name a new bucket in the node; its ledger is recorded as unreferenced until then.

        BadVersionError if another owner wrote the node, or has begun to delete the ledger.
        """
        deletions, ledger = self._context.deletions, LedgerId(record.ledger_id)
        await self._change_buckets(
            (*self.buckets, record), state, [deletions.withdraw(ledger)], [deletions.unclaimed(ledger)]
        )

    async def drop_buckets(self, records: Collection[BucketRecord], state: CursorState) -> None:
        """Name these buckets no more, and delete their ledgers."""
        while gone := [one for one in self.buckets if one in records][:LEDGERS_RECORDED_AT_ONCE]:
            ledgers = [one.ledger_id for one in gone]
            left = tuple(one for one in self.buckets if one not in gone)
            await self._change_buckets(left, state, self._context.deletions.record(ledgers))
            self._context.deletions.begin(ledgers)

    async def _change_buckets(
        self,
        buckets: tuple[BucketRecord, ...],
        state: CursorState,
        also: Sequence[Operation],
        checks: Sequence[Check] = (),
    ) -> None:
        if self._ledger_id == NO_CURSOR_LEDGER and not fits_node(state, self._node_bounds):
            await self.save(state)  # the node alone would forget acknowledgments
        before, self.buckets = self.buckets, buckets
        try:
            await self._write_node(self._ledger_id, state, also, checks)
        except BaseException:
            self.buckets = before
            raise

    async def refresh(self) -> None:
        """Read the node's version again after a lost compare-and-set while the managed ledger is still ours."""
        value = await self._stored.load()
        node = None if value is None else decode_node(value)
        named = NO_CURSOR_LEDGER if node is None else node.ledger_id
        self._strange = [] if node is None else [one.ledger_id for one in node.buckets if one not in self.buckets]
        before, self._ledger_id = self._ledger_id, named
        if before not in (named, NO_CURSOR_LEDGER):
            self._retire([before])

    def may_leave(self, ledger_id: int) -> bool:
        """Return whether this is the ledger being written and `leave` can store the state elsewhere now."""
        return self._writer is not None and self._ledger_id == ledger_id and self._context.maker.has_bookies

    async def leave(self, state: CursorState) -> None:
        """Store `state` in the node, or in a new ledger if it does not fit; the present ledger is deleted.

        LedgerError, MetadataError: the state saved last is valid, and it is unknown whether this one is durable.
        """
        if fits_node(state, self._node_bounds):
            await self._write_node(NO_CURSOR_LEDGER, state)
        else:
            await self._begin_ledger(state)

    # ---- the end
    async def close(self, state: CursorState, *, dirty: bool, transact: Transact | None = None) -> None:
        """Store the complete state for the next owner: in the node if it fits, else in the cursor ledger.

        `transact`: writes the node.
        """
        if fits_node(state, self._node_bounds):
            await self._write_node(NO_CURSOR_LEDGER, state, transact=transact)
            return
        if dirty:
            await self.save(state)
        if self._writer is not None:
            await self._writer.close()
            self._writer = None

    async def remove(self) -> None:
        """Delete the cursor: its node first, then its ledgers."""
        old = [self._ledger_id] if self._ledger_id != NO_CURSOR_LEDGER else []
        buckets = [*(record.ledger_id for record in self.buckets), *self._strange]
        await self._context.deletions.record_now(buckets, [Check(self._stored.key, self._stored.version)])
        await self._stored.remove(self._context.deletions.record(old))
        self._ledger_id, self.buckets, self._strange = NO_CURSOR_LEDGER, (), []
        if old:
            self._retire(old)
