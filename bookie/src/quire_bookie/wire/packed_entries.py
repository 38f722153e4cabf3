"""The entries of a batch's answer as they came: each behind its length of 4 bytes. Never looks into an entry.

Thousands of views of them cost more than what is done with all at once, so they are made when one is asked for.
"""

from collections.abc import Iterator, Sequence
from typing import overload

from quire_bookie.bulk import check_batch, count_batch, join_batch, split_batch
from quire_bookie.model import Buffer

_LENGTH_BYTES = 4


class PackedEntries(Sequence[Buffer]):
    """See the module's text. ValueError when one runs over the end of `body`."""

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
        """Of all together."""
        return len(self._body) - _LENGTH_BYTES * self._count

    def are_right(self, ledger: int, first: int) -> bool:
        """Whether they are those from `first` on and match their CRC32C."""
        return check_batch(ledger, first, self._body) == self._count

    def payloads(self, head_bytes: int) -> tuple[Buffer, bytes]:
        """What is behind each head, joined: offsets of 32 bits in the machine's order, and bytes. IndexError."""
        return join_batch(self._body, head_bytes)


def stored_bytes(entries: Sequence[Buffer]) -> int:
    """Of all together."""
    return entries.size_bytes if isinstance(entries, PackedEntries) else sum(map(len, entries))
