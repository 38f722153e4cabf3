"""One node that this owner writes by compare-and-set. Owns its version; does not interpret the value.

A write with an unknown outcome is never considered lost: the node is read back until the store answers. It then has
our value and the next version (done), the expected version (write again: under the same expectation at most one of the
attempts takes effect), or anything else (another writer).
"""

from collections.abc import Sequence

from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import (
    BadVersionError,
    MetadataUnavailableError,
    MetadataUnknownError,
)
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.store import ABSENT, Check, Delete, MetadataStore, Node, Operation, Put, Read


class StoredNode:
    """A node and its last known version."""

    def __init__(self, store: MetadataStore, key: str, backoff: Backoff) -> None:
        self._store = store
        self._backoff = backoff
        self.key = key
        self.version = ABSENT

    async def load(self) -> bytes | None:
        """Read the value and remember its version; None if there is no such node."""
        return self.adopt(await self._store.get(self.key))

    def adopt(self, node: Node | None) -> bytes | None:
        """Do the same with a node that was just read."""
        self.version = ABSENT if node is None else node.version
        return None if node is None else node.value

    async def write(
        self,
        value: bytes,
        also: Sequence[Operation] = (),
        checks: Sequence[Check] = (),
        reads: Sequence[Read] = (),
        transact: Transact | None = None,
    ) -> list[list[Node]] | None:
        """Replace the value, in one transaction with `also`, if the `checks` hold. Return what `reads` found in it.

        `transact`: executes it, without reads, perhaps together with nodes of other callers.

        None: the outcome was unknown for a while, so that nothing was read.
        BadVersionError: another owner wrote it, or a check failed. MetadataUnavailableError: certainly not done.
        Cancelled: may be done.
        """
        unknown = False
        while True:
            try:
                found: list[list[Node]] = []
                every = [Check(self.key, self.version), *checks]
                if transact is not None:
                    assert not reads, "a joint write returns no nodes"
                    await transact(every, [Put(self.key, value), *also])
                elif also or checks or reads:
                    found = await self._store.transact(every, [Put(self.key, value), *also], reads)
                else:
                    await self._store.put(self.key, value, expected=self.version)
            except MetadataUnknownError:
                unknown = True
            except MetadataUnavailableError:
                if not unknown:
                    raise
            except BadVersionError:
                if not unknown:
                    raise
            else:
                self.version += 1
                return found
            if await self._applied(value):
                self.version += 1
                return None

    async def remove(self, also: Sequence[Operation] = (), checks: Sequence[Check] = ()) -> None:
        """Delete the node, in one transaction with `also`, if the `checks` hold. Errors as for `write`.

        A missing node counts as deleted.
        """
        unknown = False
        while True:
            try:
                await self._store.transact([Check(self.key, self.version), *checks], [Delete(self.key), *also])
            except MetadataUnknownError:
                unknown = True
            except MetadataUnavailableError:
                if not unknown:
                    raise
            except BadVersionError:
                if not unknown:
                    raise
            else:
                self.version = ABSENT
                return
            if await self._applied(None):
                self.version = ABSENT
                return

    async def _applied(self, value: bytes | None) -> bool:
        """Return whether the unknown write took effect; wait for an answer. BadVersionError if another owner wrote."""
        while True:
            await self._backoff.wait()
            try:
                node = await self._store.get(self.key)
            except (MetadataUnavailableError, MetadataUnknownError):
                continue
            if value is None:
                if node is None:
                    return True
            elif node is not None and node.version == self.version + 1 and node.value == value:
                return True
            if (ABSENT if node is None else node.version) != self.version:
                raise BadVersionError(f"{self.key} was changed by another writer")
            return False
