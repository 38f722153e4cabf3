"""A bucket in memory, for virtual time: keeps the promises of an object store, with faults to inject."""

import asyncio
from collections.abc import AsyncIterator, Mapping

from quire_bookie.errors import ObjectMissingError, ObjectStoreError
from quire_bookie.model import Buffer
from quire_bookie.object_store.store import Stored


class MemoryObjectStore:
    """Objects by name. `broken`: every call fails. `fail_after`: this number of writes succeeds, then one fails."""

    url = "s3://memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.broken = False
        self.fail_after: int | None = None
        self.ranges = 0

    async def _answer(self, name: str, *, write: bool = False) -> None:
        await asyncio.sleep(0.01)
        if write and self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                self.fail_after = None
                raise ObjectStoreError(f"{name} could not be written: injected")
        if self.broken:
            raise ObjectStoreError(f"{name}: the bucket is away")

    async def put(
        self, name: str, data: bytes, *, overwrite: bool = False, attributes: Mapping[str, str] | None = None
    ) -> None:
        await self._answer(name, write=True)
        self.objects[name] = data

    async def put_stream(
        self,
        name: str,
        chunks: AsyncIterator[Buffer],
        *,
        part_bytes: int,
        parts_at_once: int,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        data = b"".join([bytes(chunk) async for chunk in chunks])
        await self._answer(name, write=True)
        self.objects[name] = data

    async def get(self, name: str) -> bytes | None:
        await self._answer(name)
        return self.objects.get(name)

    async def get_range(self, name: str, start: int, end: int) -> Buffer:
        await self._answer(name)
        self.ranges += 1
        if name not in self.objects:
            raise ObjectMissingError(f"{name} is not there")
        return self.objects[name][start:end]

    async def names(self, folder: str = "") -> list[str]:
        return sorted(self.objects)

    async def stored(self, folder: str = "") -> AsyncIterator[Stored]:
        for name, data in sorted(self.objects.items()):
            yield Stored(name, len(data), 0)

    async def delete(self, name: str) -> None:
        await self._answer(name)
        self.objects.pop(name, None)
