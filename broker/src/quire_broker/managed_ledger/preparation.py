"""Prepares the opening of a managed ledger that another owner still writes, so that it takes one read and one write.

    prepare      while the other owner writes: create the ledger to write to next, recorded as unreferenced
    look_ahead   when the other owner has closed: read the list and the end of its last ledger
    open_list    one transaction: list as read, new ledger as created -> a list with the new ledger; reads the cursors

Nothing prepared is trusted. The transaction checks the version of the list that was read ahead, that the metadata of
the new ledger are as they were created, and that no client has begun to delete it. Any client may delete a ledger that
is recorded as unreferenced, and entries written to it afterwards would be lost. The last ledger of the list is not
recovered only if its metadata say that it is closed, which never changes again.
"""

import asyncio
from collections.abc import Iterable, Sequence

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import NoSuchLedgerError
from quire_bookie.metadata.store import Check, Node, Operation
from quire_bookie.model import LedgerId, LedgerState
from quire_broker.managed_ledger.appending.ledger_maker import ClosedCounts
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.ledger_port import Writer
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY, decode_list
from quire_broker.managed_ledger.unreferenced import unreferenced


@dataclass(frozen=True, slots=True)
class Ahead:
    """The nodes of a managed ledger that were read before it is opened."""

    node: Node
    """The list of ledgers."""
    closed: tuple[int, ClosedCounts] | None
    """Id and counts of the last ledger, if its metadata say that it is closed."""


@dataclass(slots=True)
class Preparation:
    """A ledger that no list contains yet, and the nodes that were read ahead."""

    context: ManagedLedgerContext
    writer: Writer
    last_ledger: int | None
    """The last ledger of the list when this was prepared: the other owner seldom begins another one."""
    ahead: Ahead | None = None
    is_used: bool = False
    """Whether a list may contain the ledger."""

    @property
    def checks(self) -> list[Check]:
        """The checks of the transaction that puts the ledger into a list."""
        return [self.writer.metadata_check, self.context.deletions.unclaimed(self.writer.ledger_id)]

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations of that transaction."""
        return [self.context.deletions.withdraw(self.writer.ledger_id)]

    async def look_ahead(self) -> None:
        """Read what the opening needs. Call it when the other owner has closed. MetadataError."""
        self.ahead = await _look_ahead(self.context, self.last_ledger)

    def follows(self, ledgers: Iterable[LedgerRecord]) -> bool:
        """Return whether the ledger has a higher id than these: the entries of a list are in the order of ids.

        The other owner may have begun a ledger after this one was created.
        """
        return all(record.ledger_id < self.writer.ledger_id for record in ledgers)

    async def discard(self) -> None:
        """Delete the ledger, unless a list may contain it. Errors of client and store: its record remains."""
        if not self.is_used:
            self.writer.abandon()
            await self.context.deletions.delete_now(self.writer.ledger_id)


async def prepare(context: ManagedLedgerContext) -> Preparation | None:
    """Create the next ledger. None if no managed ledger takes appends there. Errors of client and store."""
    node = await context.store.get(node_path(context.name))
    listed = None if node is None else decode_list(node.value)
    if listed is None or listed.terminated is not None or SOURCE_PROPERTY in listed.properties:
        return None
    writer = await unreferenced(context, context.maker.create())
    return Preparation(context, writer, listed.ledgers[-1].ledger_id if listed.ledgers else None)


async def _look_ahead(context: ManagedLedgerContext, last_ledger: int | None) -> Ahead | None:
    node, closed = await asyncio.gather(context.store.get(node_path(context.name)), _closed(context, last_ledger))
    return None if node is None else Ahead(node, closed)


async def _closed(context: ManagedLedgerContext, ledger_id: int | None) -> tuple[int, ClosedCounts] | None:
    if ledger_id is None:
        return None
    try:
        metadata = await context.client.read_metadata(LedgerId(ledger_id))
    except NoSuchLedgerError:
        return None
    if metadata.state is not LedgerState.CLOSED:
        return None
    return ledger_id, ClosedCounts(metadata.last_entry + 1, metadata.length)
