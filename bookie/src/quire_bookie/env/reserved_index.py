"""An index store that releases the space reserve when a commit finds no space on a full file system."""

from collections.abc import AsyncIterator, Sequence

from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.space_reserve import SpaceReserves


class ReservedIndexStore:
    """Implements `IndexStore` on top of another one, whose folder is `path`."""

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
        """Forward."""
        return self._index.scan(start, end)

    async def commit(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), *, sync: bool = True
    ) -> None:
        """Forward; if there is no space, use the reserve."""
        await self._reserves.retry(self._disk, self._path, lambda: self._index.commit(puts, deletes, sync=sync))

    async def delete_range(self, start: bytes, end: bytes) -> None:
        """Forward; if there is no space, use the reserve."""
        await self._reserves.retry(self._disk, self._path, lambda: self._index.delete_range(start, end))
