"""The entries of a batch response as received: each after its length of 4 bytes. Never decodes an entry.

Creating thousands of views costs more than processing all entries in one step, so views are created on demand.
"""

from collections.abc import Iterator, Sequence
from typing import overload

from quire_bookie.bulk import check_batch, count_batch, join_batch, split_batch
from quire_bookie.model import Buffer

_LENGTH_BYTES = 4


class PackedEntries(Sequence[Buffer]):
    """A sequence of the entries in `body`. ValueError if an entry extends beyond its end."""

    __slots__ = ("_body", "_count", "_views")

    def __init__(self, body: Buffer) -> None:
        self._body = body
        self._count = count_batch(body)
        self._views: list[memoryview] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Buffer: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...

    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._all())

    def _all(self) -> list[memoryview]:
        if self._views is None:
            self._views = split_batch(self._body)
        return self._views

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries together."""
        return len(self._body) - _LENGTH_BYTES * self._count

    def are_valid(self, ledger: int, first: int) -> bool:
        """Return whether the entries have the ids from `first` on and match their CRC32C."""
        return check_batch(ledger, first, self._body) == self._count

    def payloads(self, head_bytes: int) -> tuple[Buffer, bytes]:
        """Return offsets (32 bits, native byte order) and joined bytes of what follows each head. IndexError."""
        return join_batch(self._body, head_bytes)


def stored_bytes(entries: Sequence[Buffer]) -> int:
    """Return the bytes of all entries together."""
    return entries.size_bytes if isinstance(entries, PackedEntries) else sum(map(len, entries))
