"""Reads one batch of consecutive entries from one of its replicas, for ledgers whose bookies all hold every entry.

As `entry_read` for single entries: reads from the next replica when one fails, or in addition when one is slow. The
first response with a valid first entry wins. Entries after a damaged one are dropped; the caller reads that entry from
another replica. If all replicas fail, the batch has no error: a single read of the first entry finds the reason.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from quire_bookie.client.entry_read import MISSING_ERRORS, ReadWay
from quire_bookie.client.speculation import Speculation
from quire_bookie.errors import LedgerError
from quire_bookie.model import ENTRY_HEADER_BYTES, BookieId, Buffer, EntryId
from quire_bookie.wire.packed_entries import stored_bytes

_Entry = TypeVar("_Entry")
Decode: TypeAlias = Callable[[Sequence[Buffer], EntryId], tuple[Sequence[_Entry], LedgerError | None]]
"""Returns the valid entries before the first invalid one, and its error: see `ReadWay.decode_batch`."""


class Batch(NamedTuple, Generic[_Entry]):
    """Entries in order, at least one, and their bookie. `is_damaged`: the next entry cannot be read there."""

    bookie: BookieId
    entries: Sequence[_Entry]
    payload_bytes: int
    """Payload bytes of all entries together."""
    is_damaged: bool


class BatchRead(Generic[_Entry]):
    """Reads `count` entries from `first` on from one of the replicas, in a response of at most `bytes_max`."""

    def __init__(
        self,
        way: ReadWay,
        first: EntryId,
        count: int,
        bytes_max: int,
        replicas: Sequence[BookieId],
        speculation: Speculation,
        decode: Decode[_Entry],
    ) -> None:
        self._way = way
        self._first = first
        self._count = count
        self._bytes_max = bytes_max
        self._replicas = replicas
        self._speculation = speculation
        self._decode = decode
        self._asked = 0
        self._failed = 0
        self._result: asyncio.Future[Batch[_Entry] | None] = asyncio.get_running_loop().create_future()

    async def run(self) -> Batch[_Entry] | None:
        """Return the first valid response; None if no replica gave one. After a cancellation, responses are dropped."""
        if len(self._replicas) > 1:
            self._speculation.began(self)
        self._ask()
        try:
            return await self._result
        finally:
            self._speculation.ended(self)

    def speculate(self, waited_s: float) -> bool:
        """See SpeculativeRead."""
        if self._result.done() or self._asked >= len(self._replicas):
            return False
        self._way.links.health.overdue(self._replicas[self._asked - 1], waited_s)
        self._ask()
        return True

    def _ask(self) -> None:
        bookie = self._replicas[self._asked]
        self._asked += 1
        way = self._way
        way.links.link(bookie, way.purpose).read_batch(
            way.ledger, self._first, self._count, self._bytes_max, partial(self._answered, bookie)
        )

    def _answered(self, bookie: BookieId, answer: Sequence[Buffer] | LedgerError) -> None:
        if self._result.done():
            return  # another replica was faster, or the read was cancelled
        entries: Sequence[_Entry] = ()
        taken: Sequence[Buffer] = ()
        is_damaged = False
        if isinstance(answer, LedgerError):
            is_damaged = not isinstance(answer, MISSING_ERRORS)
        else:
            # A bookie that violates the protocol may return more entries than requested: drop the rest.
            taken = answer if len(answer) <= self._count else answer[: self._count]
            entries, error = self._decode(taken, self._first)
            is_damaged = error is not None
        if is_damaged:
            self._way.links.health.failed(bookie)
        if entries:
            size_bytes = stored_bytes(taken if len(entries) == len(taken) else taken[: len(entries)])
            size_bytes -= len(entries) * (ENTRY_HEADER_BYTES + self._way.digest.size)
            self._result.set_result(Batch(bookie, entries, size_bytes, is_damaged))
            return
        self._failed += 1
        assert self._failed <= self._asked <= len(self._replicas), "each replica responds once"
        if self._asked < len(self._replicas):
            self._ask()
        elif self._failed == self._asked:
            self._result.set_result(None)
