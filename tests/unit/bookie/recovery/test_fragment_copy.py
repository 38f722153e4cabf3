"""Tests copies of a fragment that are under way together."""

import asyncio
import gc
from contextlib import aclosing
from typing import Any, cast

import pytest

from quire_bookie.client.ledger_entry import LedgerEntry, StoredRun
from quire_bookie.client.reading.range_read import RangeReader
from quire_bookie.errors import BookieUnavailableError, LedgerError, QuorumError
from quire_bookie.model import EntryId, LedgerId, LedgerMetadata
from quire_bookie.recovery.fragment_copy import _batches, _reap, _within


async def test_the_exceptions_of_copies_that_fail_in_one_step_are_all_retrieved() -> None:
    async def fail(bookie: str) -> None:
        raise BookieUnavailableError(bookie)

    loop = asyncio.get_running_loop()
    forgotten: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: forgotten.append(context))
    under_way = {loop.create_task(fail(bookie)) for bookie in ("b1", "b2", "b3")}
    with pytest.raises(BookieUnavailableError):
        await _reap(under_way)
    assert under_way == set()
    gc.collect()
    await asyncio.sleep(0)
    assert forgotten == []


class _Reads:
    """Serves two entries at a time, except entry 3. Records which reads started and which were cancelled."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.given_up: list[int] = []
        self.held = asyncio.Event()
        self.held.set()

    async def read_stored(self, *_: object) -> None:
        """Return None: no bookie serves batches."""

    async def read(
        self, metadata: LedgerMetadata, first: EntryId, last: EntryId, bytes_max: int | None
    ) -> list[LedgerEntry]:
        self.asked.append(first)
        try:
            await self.held.wait()
        except asyncio.CancelledError:
            self.given_up.append(first)
            raise
        if first == 3:
            raise QuorumError("entry 3")
        ids = [entry for entry in range(first, min(first + 2, last + 1)) if entry != 3]
        return [LedgerEntry(LedgerId(1), EntryId(entry), EntryId(entry - 1), 0, memoryview(b"")) for entry in ids]


async def test_the_next_batch_is_read_ahead_and_unreadable_entries_are_skipped() -> None:
    reads = _Reads()
    found: list[tuple[int, object]] = []
    ranges = [(EntryId(0), EntryId(5)), (EntryId(9), EntryId(9))]
    async with aclosing(_batches(cast(RangeReader, reads), cast(LedgerMetadata, None), ranges, 100)) as batches:
        async for at, entries in batches:
            await asyncio.sleep(0)
            ahead = {0: 2, 2: 3, 3: 4, 4: 4, 9: 9}[at]
            assert reads.asked[-1] == ahead
            assert not isinstance(entries, StoredRun)
            found.append((at, entries if isinstance(entries, LedgerError) else [one.entry_id for one in entries]))
    assert [at for at, _ in found] == [0, 2, 3, 4, 9]
    assert [ids for at, ids in found if at != 3] == [[0, 1], [2], [4, 5], [9]]
    assert isinstance(found[2][1], QuorumError)


async def test_the_read_ahead_ends_with_the_copy() -> None:
    reads = _Reads()
    ranges = [(EntryId(0), EntryId(5))]
    async with aclosing(_batches(cast(RangeReader, reads), cast(LedgerMetadata, None), ranges, 100)) as batches:
        async for at, _entries in batches:
            assert at == 0
            reads.held.clear()
            await asyncio.sleep(0)
            break
    assert reads.asked == [0, 2] and reads.given_up == [2]


def test_of_a_run_only_the_parts_that_are_wanted_are_copied_and_counted_by_their_payload() -> None:
    run = StoredRun(EntryId(10), [b"h" * 36 + b"x" * size for size in range(6)], 15)
    whole, first, last = (EntryId(0), EntryId(15)), (EntryId(8), EntryId(11)), (EntryId(13), EntryId(99))
    assert list(_within(run, [whole])) == [run]
    assert list(_within(run, [first, last, (EntryId(200), EntryId(210))])) == [
        StoredRun(EntryId(10), run.entries[:2], 1),
        StoredRun(EntryId(13), run.entries[3:], 12),
    ]
    assert list(_within(run, [(EntryId(0), EntryId(9)), (EntryId(16), EntryId(20))])) == []
