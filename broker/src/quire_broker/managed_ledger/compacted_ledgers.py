"""The compacted ledger of one managed ledger: a copy of its entries up to the *horizon*, without superseded ones.

    hold     entries that a first compaction reads are not trimmed meanwhile; afterwards its cursor holds them back
    create   a new ledger, recorded as unreferenced: unless it is put into use, its record deletes it
    record   one transaction: cursor `__compaction` with the horizon and the id of the new ledger, the new ledger no
             longer unreferenced, the former one unreferenced. Only afterwards does trimming pass the horizon

A crash before `record` leaves the former state and a record; a crash after it leaves the new state and a record. The
next owner deletes the recorded ledgers. The transaction checks that no other owner wrote the list of ledgers. Cursor
and property have Pulsar's names, so stock brokers read the same.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BadVersionError
from quire_bookie.metadata.store import Operation
from quire_bookie.model import LedgerId
from quire_broker.errors import CompactionError
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.cursors.cursor import COMPACTION_CURSOR
from quire_broker.managed_ledger.cursors.registry import Cursors
from quire_broker.managed_ledger.ledger_port import Reader, Writer
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.managed_ledger.unreferenced import unreferenced

LEDGER_PROPERTY: Final = "CompactedTopicLedger"
"""Integer property of the cursor: the id of the compacted ledger."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compacted ledger in use. It replaces the entries up to and including `horizon`."""

    horizon: Position
    ledger_id: int


class CompactedLedgers:
    """Creates, records and opens the compacted ledgers of one managed ledger."""

    def __init__(self, context: ManagedLedgerContext, cursors: Cursors) -> None:
        self._context = context
        self._cursors = cursors

    @property
    def current(self) -> Compacted | None:
        """The compacted ledger in use; None if the managed ledger was never compacted."""
        cursor = self._cursors.durable.get(COMPACTION_CURSOR)
        ledger_id = None if cursor is None else cursor.properties.get(LEDGER_PROPERTY)
        return None if cursor is None or ledger_id is None else Compacted(cursor.mark_delete, ledger_id)

    async def hold(self) -> None:
        """Keep all present entries from being trimmed until `release`."""
        await self._cursors.hold(COMPACTION_CURSOR)

    def release(self) -> None:
        """End `hold`."""
        self._cursors.release(COMPACTION_CURSOR)

    async def create(self, custom: Mapping[str, bytes]) -> Writer:
        """Create a ledger that is deleted unless `record` follows. Errors of client and store."""
        return await unreferenced(self._context, self._context.maker.create_compacted(custom))

    def discard(self, writer: Writer) -> None:
        """Delete a ledger in the background, unless it is in use."""
        writer.abandon()
        self._context.deletions.begin([writer.ledger_id])

    async def record(self, ledger_id: LedgerId, horizon: Position) -> None:
        """Put a closed ledger into use, then delete the former one. CompactionError, MetadataError.

        It goes on if the caller is cancelled: a later write of the cursor must know whether this one was done.
        """
        name = f"recording compacted ledger {ledger_id}"
        task = self._context.background.spawn(self._record(ledger_id, horizon), name)
        await asyncio.shield(task)

    async def _record(self, ledger_id: LedgerId, horizon: Position) -> None:
        deletions, current = self._context.deletions, self.current
        former = [] if current is None else [current.ledger_id]
        also: list[Operation] = [*deletions.record(former), deletions.withdraw(ledger_id)]
        checks = [deletions.unclaimed(ledger_id)]
        try:
            await self._cursors.place(COMPACTION_CURSOR, horizon, {LEDGER_PROPERTY: ledger_id}, also, checks)
        except BadVersionError as error:
            raise CompactionError(
                f"compacted ledger {ledger_id} of {self._context.name} is not used: another broker serves the topic "
                "or has begun to delete the ledger; compact the topic again at its owner"
            ) from error
        deletions.begin(former)

    async def open(self, ledger_id: int) -> Reader:
        """Open a compacted ledger for reads. Errors of the ledger client."""
        password = self._context.settings.password
        return await self._context.client.open_ledger(
            LedgerId(ledger_id), password=password, recover=False, accept_stored=to_read
        )

    async def reserve(self, size_bytes: int) -> None:
        """Reserve memory for a read. `give_back` returns it."""
        await self._context.memory.reserve(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Return reserved memory."""
        self._context.memory.give_back(size_bytes)
