"""What a place is to whoever keeps objects in one. Knows no service."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from quire_bookie.model import Buffer


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as a listing has it. `modified_ms`: when it was complete, by the place's clock."""

    name: str
    size_bytes: int
    modified_ms: int


class Place(Protocol):
    """A flat room of objects under names with `/`. Every failure is PlaceError, one line."""

    @property
    def url(self) -> str:
        """As a person wrote it."""
        ...

    async def put(
        self, name: str, data: bytes, *, overwrite: bool = False, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Write an object; durable and whole when it returns. PlaceError when there is one, unless it may go.

        `attributes`: the object's user metadata, where the place has such.
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
        """Write an object piece by piece, in parts; it is there, durable and whole, when this returns, or not at all.

        Holds at most `parts_at_once + 1` parts. An object of this name is replaced. Errors of `chunks` end it.
        """
        ...

    async def get(self, name: str) -> bytes | None:
        """An object, or None."""
        ...

    async def get_range(self, name: str, start: int, end: int) -> Buffer:
        """Bytes `start` to `end` (exclusive), fewer only at the object's end. ObjectMissingError."""
        ...

    async def names(self, folder: str = "") -> list[str]:
        """The names of all objects below a folder, ascending."""
        ...

    def stored(self, folder: str = "") -> AsyncIterator[Stored]:
        """All objects below a folder, as they are listed."""
        ...

    async def delete(self, name: str) -> None:
        """Remove an object; one that is not there is fine."""
        ...
