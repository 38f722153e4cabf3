"""The index-store port: an ordered key-value store whose commits survive a crash.

Contract, which the simulated store enforces: a batch is atomic; it is durable when `commit(..., sync=True)` has
returned, and without `sync` once a later synced commit has. An absent key is a statement (*no such entry*): a store
that cannot prove it, because a page is damaged, raises `DamagedError` and never returns None.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol


class IndexStore(Protocol):
    """Stores byte values under byte keys, which are ordered."""

    async def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if the key is provably absent."""
        ...

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return one value or None per key, in order."""
        ...

    async def last_at_or_below(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest pair with lower <= k <= key, or None."""
        ...

    def scan(self, start: bytes, end: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield pairs with start <= key < end, ascending, from one snapshot."""
        ...

    async def commit(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), *, sync: bool = True
    ) -> None:
        """Apply all changes or none."""
        ...

    async def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete start <= key < end. Durable with the next synced commit."""
        ...

    async def close(self) -> None:
        """Flush and close."""
        ...
