"""The list node of one managed ledger and the live list beside it. Owns every write of that node, one at a time.

A lost compare-and-set means that another owner took over; it is never retried with the new version. When a ledger
leaves the list or the bookies, the same transaction writes its deletion record. The same holds for objects that are no
longer in any record.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from quire_bookie.errors import BadVersionError
from quire_bookie.metadata.store import Check
from quire_broker.managed_ledger.deletion import Deletions
from quire_broker.managed_ledger.errors import ManagedLedgerClosedError, ManagedLedgerFencedError
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode, encode_list
from quire_broker.managed_ledger.nodes.offload_attempts import unreferenced_objects
from quire_broker.managed_ledger.nodes.stored_node import StoredNode
from quire_broker.managed_ledger.segment_deletion import SegmentDeletions

ROOT = "/managed-ledgers"


def node_path(name: str) -> str:
    """Return the path of a managed ledger's node. Its cursors are the children."""
    return f"{ROOT}/{name}"


class ListStore:
    """Writes the list of one managed ledger.

    `node` is the stored value, `ledgers` also counts later confirmed entries.
    """

    def __init__(
        self,
        name: str,
        stored: StoredNode,
        node: LedgerListNode,
        ledgers: LedgerList,
        deletions: Deletions,
        segments: SegmentDeletions,
        *,
        is_shadow: bool = False,
    ) -> None:
        """`is_shadow`: the node has no ledgers, `ledgers` are those of another managed ledger."""
        self.name = name
        self.node = node
        self.ledgers = ledgers
        self.on_update: Callable[[], None] = lambda: None
        """Called after each change of the list."""
        self.running_properties: dict[str, Callable[[], str | None]] = {}
        """Properties whose present values each write of the list stores, unless they are None."""
        self._stored = stored
        self._deletions = deletions
        self._segments = segments
        self._lock = asyncio.Lock()
        self._ended = False
        self._is_shadow = is_shadow

    async def update(
        self,
        change: Callable[[LedgerListNode], LedgerListNode],
        *,
        tail: Callable[[], int | None] | None = None,
        dropped: Sequence[int] = (),
    ) -> None:
        """Store `change` of the present node, then delete `dropped`. `tail()` returns the ledger being written from
        then on.

        ManagedLedgerFencedError: another owner wrote it. ManagedLedgerClosedError: it is being deleted.
        MetadataUnavailableError: certainly not done.
        """
        async with self._lock:
            self._check_open()
            target = self._with_running_properties(change(self.node))
            own = {record.ledger_id for record in self.node.ledgers}
            assert own.issuperset(dropped), "only ledgers of its own list are deleted"
            unreferenced = unreferenced_objects(self.node.ledgers, target.ledgers)
            records = [*self._deletions.record(dropped), *self._segments.record(unreferenced)]
            try:
                await self._stored.write(encode_list(target), records)
            except BadVersionError as error:
                raise ManagedLedgerFencedError(f"{self.name} is written by another owner") from error
            self.node = target
            if not self._is_shadow:
                self.ledgers.replace(target.ledgers, tail=self.ledgers.tail if tail is None else tail())
        self._deletions.begin(dropped)
        self._segments.begin(unreferenced)
        self.on_update()

    def _with_running_properties(self, node: LedgerListNode) -> LedgerListNode:
        present = {name: value() for name, value in self.running_properties.items()}
        found = {name: value for name, value in present.items() if value is not None}
        return replace(node, properties={**node.properties, **found}) if found else node

    async def set_property(self, key: str, value: str | None) -> None:
        """Set one property, or remove it if `value` is None."""

        def change(node: LedgerListNode) -> LedgerListNode:
            properties = dict(node.properties)
            if value is None:
                properties.pop(key, None)
            else:
                properties[key] = value
            return replace(node, properties=properties)

        await self.update(change)

    async def still_owned(self) -> bool:
        """Return whether the node still has the version of our last write."""
        async with self._lock:
            version = self._stored.version
            try:
                await self._stored.load()
                return self._stored.version == version
            finally:
                self._stored.version = version

    async def while_owned(self, write: Callable[[Check], Awaitable[None]]) -> None:
        """Write another node with the check that no other owner wrote the list. No write of the list runs meanwhile."""
        async with self._lock:
            self._check_open()
            await write(Check(self._stored.key, self._stored.version))

    async def end(self) -> int:
        """Refuse further writes, wait for the one that runs, and return the version of the node after it."""
        self._ended = True
        async with self._lock:
            return self._stored.version

    def _check_open(self) -> None:
        if self._ended:
            raise ManagedLedgerClosedError(f"{self.name} is being deleted")
