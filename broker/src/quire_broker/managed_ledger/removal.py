"""Deletes a managed ledger in steps, each on the condition that no other owner has written its list of ledgers since.

The ledgers leave the list first, in the transactions that record their deletion. The cursors follow, and last the node
of the list. So a broker that was stopped for longer than its lease deletes nothing of the next owner: its next step
fails. After an error the node is still there, and the deletion can be repeated.
"""

from collections.abc import Sequence
from dataclasses import replace

from quire_bookie.errors import BadVersionError, MetadataUnavailableError
from quire_bookie.metadata.store import Check
from quire_broker.managed_ledger.compacted_ledgers import LEDGER_PROPERTY
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.cursors.cursor_state import NO_CURSOR_LEDGER, decode_node
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError, ManagedLedgerMissingError
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, decode_list, encode_list
from quire_broker.managed_ledger.nodes.offload_attempts import unreferenced_objects

_LEDGERS_AT_ONCE = 45  # that leave the list in one transaction: each with two records, of the ledger and of its objects


class Removal:
    """The deletion of one managed ledger, which may be continued after an error."""

    def __init__(self, context: ManagedLedgerContext, version: int | None) -> None:
        """`version`: of the list as its owner wrote it last; None: the deletion begins without an owner."""
        self._context = context
        self._stored = context.node(node_path(context.name))
        self._version = version

    async def run(self) -> None:
        """Delete ledgers, those left by earlier owners too, cursors with their ledgers, objects, and the node.

        ManagedLedgerMissingError. ManagedLedgerFencedError: another owner has written the list; what it wrote stays.
        MetadataUnavailableError: call it again.
        """
        value = await self._stored.load()
        if value is None:
            raise ManagedLedgerMissingError(f"{self._context.name} does not exist")
        if self._version not in (None, self._stored.version):
            raise self._fenced()
        try:
            await self._remove_all(decode_list(value))
        except BadVersionError as error:
            raise self._fenced() from error
        finally:
            self._version = self._stored.version

    def _fenced(self) -> ManagedLedgerFencedError:
        return ManagedLedgerFencedError(f"{self._context.name} is written by another owner: it is not deleted")

    async def _remove_all(self, listed: LedgerListNode) -> None:
        context = self._context
        await context.deletions.resume()
        await self._empty(listed)
        for encoded in await context.store.children(self._stored.key):
            await self._remove_cursor(f"{self._stored.key}/{encoded}")
        await context.deletions.wait(context.settings.metadata_retry_s)
        if context.deletions.pending:
            raise MetadataUnavailableError(
                f"{len(context.deletions.pending)} ledgers of {context.name} could not be deleted yet: try again"
            )
        await self._stored.remove()
        await context.segments.delete_recorded(context.tier.settings.read_timeout_s)

    async def _empty(self, listed: LedgerListNode) -> None:
        """Take the ledgers out of the list. Also writes a list without ledgers: that fails if it has another owner."""
        while True:
            gone, left = listed.ledgers[:_LEDGERS_AT_ONCE], listed.ledgers[_LEDGERS_AT_ONCE:]
            listed = replace(listed, ledgers=left)
            ids = [record.ledger_id for record in gone]
            objects = self._context.segments.record(unreferenced_objects(gone, left))
            await self._stored.write(encode_list(listed), [*self._context.deletions.record(ids), *objects])
            self._context.deletions.begin(ids)
            if not left:
                return

    async def _remove_cursor(self, path: str) -> None:
        cursor = self._context.node(path)
        node = await cursor.load()
        if node is None:
            return
        stored = decode_node(node)
        named: Sequence[int] = sorted(
            {stored.ledger_id, stored.state.properties.get(LEDGER_PROPERTY, NO_CURSOR_LEDGER)} - {NO_CURSOR_LEDGER}
        )
        ours = Check(self._stored.key, self._stored.version)
        await self._context.deletions.record_now([bucket.ledger_id for bucket in stored.buckets], [ours])
        await cursor.remove(self._context.deletions.record(named), [ours])
        self._context.deletions.begin(named)
