"""An index store that finds space for its commits on a full file system: it releases the reserve when it must."""

from collections.abc import AsyncIterator, Sequence

from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.space_reserve import SpaceReserves


class ReservedIndexStore:
    """Implements `IndexStore` on another one, whose folder is `path`."""

    def __init__(self, index: IndexStore, disk: Disk, reserves: SpaceReserves, path: str) -> None:
        self._index = index
        self._disk = disk
        self._reserves = reserves
        self._path = path
        self.get = index.get
        self.get_many = index.get_many
        self.last_at_or_below = index.last_at_or_below
        self.close = index.close

    def scan(self, start: bytes, end: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """As the store below."""
        return self._index.scan(start, end)

    async def commit(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), *, sync: bool = True
    ) -> None:
        """As the store below; without space, from the reserve."""
        await self._reserves.retry(self._disk, self._path, lambda: self._index.commit(puts, deletes, sync=sync))

    async def delete_range(self, start: bytes, end: bytes) -> None:
        """As the store below; without space, from the reserve."""
        await self._reserves.retry(self._disk, self._path, lambda: self._index.delete_range(start, end))
