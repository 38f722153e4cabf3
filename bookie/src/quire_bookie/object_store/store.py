"""The interface of an object store. Independent of the storage service."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer


@dataclass(frozen=True, slots=True)
class Stored:
    """An object of a listing. `modified_ms`: when it was completed, by the clock of the store."""

    name: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """A flat set of objects whose names may contain `/`. Every failure raises ObjectStoreError, with one line."""

    @property
    def url(self) -> str:
        """The URL as the user wrote it."""
        ...

    async def put(
        self, name: str, data: bytes, *, overwrite: bool = False, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Write an object that is durable and complete when this returns.

        ObjectStoreError when an object of this name exists, unless `overwrite`. `attributes`: user metadata of the
        object, where the store supports it.
        """
        ...

    async def put_stream(
        self,
        name: str,
        chunks: AsyncIterator[Buffer],
        *,
        part_bytes: int,
        parts_at_once: int,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Write an object in parts. It is durable and complete when this returns; after an error it does not exist.

        Holds at most `parts_at_once + 1` parts in memory. Replaces an object of this name. An error of `chunks` ends
        the write and is raised.
        """
        ...

    async def get(self, name: str) -> bytes | None:
        """Return the content of an object; None when it does not exist."""
        ...

    async def get_range(self, name: str, start: int, end: int) -> Buffer:
        """Return the bytes from `start` up to `end`, fewer only at the end of the object.

        ObjectMissingError when the object does not exist.
        """
        ...

    async def names(self, folder: str = "") -> list[str]:
        """Return the names of all objects below a folder, ascending."""
        ...

    def stored(self, folder: str = "") -> AsyncIterator[Stored]:
        """Yield all objects below a folder in the order of the listing."""
        ...

    async def delete(self, name: str) -> None:
        """Delete an object; succeeds when it does not exist."""
        ...
