"""Copies a fragment's entries from replicas that have them to bookies that lack them. Never changes metadata.

Every entry is read through the quorum reader, which verifies its digest and asks another replica if one fails. It is
stored byte for byte. Reading continues while earlier batches are on their way to the disks.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import field, replace
from typing import TypeAlias

from quire_bookie.client.ledger_entry import LedgerEntry, StoredRun
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.reading.range_read import RangeReader
from quire_bookie.dataclass import dataclass
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import LedgerError
from quire_bookie.limits import REPLICATION_BATCHES_IN_FLIGHT
from quire_bookie.model import BookieId, EntryId, LedgerMetadata
from quire_bookie.recovery.fragments import Fragment, union
from quire_bookie.recovery.reachable_links import ReachableLinks
from quire_bookie.recovery.replica_writer import ReplicaWriter
from quire_bookie.wire.availability import EntryRange

UNREADABLE_MAX = 100


class ReplicaWriteError(LedgerError):
    """The bookie that should receive the copies did not store them. Another bookie may."""

    def __init__(self, bookie: BookieId, cause: LedgerError) -> None:
        super().__init__(f"bookie {bookie} did not take copies: {cause}")
        self.bookie = bookie
        self.cause = cause


_Read: TypeAlias = StoredRun | list[LedgerEntry] | LedgerError


@dataclass(frozen=True, slots=True)
class Target:
    """Entries of `position` within `ranges` that `bookie` should receive."""

    position: int
    bookie: BookieId
    ranges: tuple[EntryRange, ...]


@dataclass(slots=True)
class Copied:
    """The result of a copy. `unreadable`: entries that no replica could serve, with the reason."""

    entries: int = 0
    size_bytes: int = 0
    unreadable: dict[EntryId, LedgerError] = field(default_factory=dict)


async def copy_fragment(
    handle: LedgerHandle,
    metadata: LedgerMetadata,
    fragment: Fragment,
    targets: Sequence[Target],
    pace: RateLimit,
    batch_bytes: int,
    unreadable_max: int = UNREADABLE_MAX,
    *,
    advanced: Callable[[], None] = lambda: None,
) -> Copied:
    """Copy to all targets. On return every entry except the `unreadable` ones is durable at every target.

    Stops after `unreadable_max` unreadable entries: the rest is not copied then. `advanced` is called after each read
    and each store.

    Raises ReplicaWriteError if a target failed. Cancellation leaves copies that count nowhere.
    """
    way = replace(handle.read_way, links=ReachableLinks(handle.read_way.links))
    reader = RangeReader(way, handle.settings)
    writers = [ReplicaWriter(handle, target.bookie) for target in targets]
    copied = Copied()
    under_way: set[asyncio.Task[None]] = set()
    ranges = union(one for target in targets for one in target.ranges)
    assert targets and all(0 <= target.position < len(fragment.ensemble) for target in targets)
    assert not ranges or fragment.first <= ranges[0][0] <= ranges[-1][1] <= fragment.last, "copies stay in the segment"
    try:
        async with aclosing(_batches(reader, metadata, ranges, batch_bytes)) as batches:
            async for at, read in batches:
                advanced()
                if isinstance(read, LedgerError):
                    if any(_wants(fragment, target, at) for target in targets):
                        copied.unreadable[at] = read
                        if len(copied.unreadable) >= unreadable_max:
                            return copied
                    continue
                await _store(fragment, targets, writers, read, under_way, copied, pace)
                while len(under_way) >= REPLICATION_BATCHES_IN_FLIGHT:
                    await _reap(under_way)
                    advanced()
        while under_way:
            await _reap(under_way)
            advanced()
        return copied
    finally:
        for writer in writers:
            writer.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _batches(
    reader: RangeReader, metadata: LedgerMetadata, ranges: Iterable[EntryRange], batch_bytes: int
) -> AsyncGenerator[tuple[EntryId, _Read], None]:
    """Yield the first id and the entries of each batch, or the error of that one entry. Reads one batch ahead."""
    for first, last in ranges:
        at: int = first
        reading: asyncio.Task[_Read] | None = None
        try:
            while at <= last:
                entries = await (reading or _read(reader, metadata, EntryId(at), last, batch_bytes))
                begin, reading = EntryId(at), None
                at += _count(entries)
                assert begin < at <= last + 1, "each read advances, and stays within its range"
                if at <= last:
                    ahead = _read(reader, metadata, EntryId(at), last, batch_bytes)
                    reading = asyncio.get_running_loop().create_task(ahead, name="read entries to copy")
                yield begin, entries
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


async def _read(
    reader: RangeReader, metadata: LedgerMetadata, first: EntryId, last: EntryId, batch_bytes: int
) -> _Read:
    try:
        stored = await reader.read_stored(metadata, first, last, batch_bytes)
        return stored or await reader.read(metadata, first, last, batch_bytes)
    except LedgerError as error:
        return error


def _count(read: _Read) -> int:
    if isinstance(read, LedgerError):
        return 1
    return len(read.entries if isinstance(read, StoredRun) else read)


def _wants(fragment: Fragment, target: Target, entry: EntryId) -> bool:
    return fragment.holds(target.position, entry) and any(low <= entry <= high for low, high in target.ranges)


async def _store(
    fragment: Fragment,
    targets: Sequence[Target],
    writers: Sequence[ReplicaWriter],
    read: StoredRun | list[LedgerEntry],
    under_way: "set[asyncio.Task[None]]",
    copied: Copied,
    pace: RateLimit,
) -> None:
    for target, writer in zip(targets, writers, strict=True):
        if isinstance(read, StoredRun):
            parts: Sequence[StoredRun | list[LedgerEntry]] = [*_within(read, target.ranges)]
        else:
            parts = [wanted] if (wanted := [one for one in read if _wants(fragment, target, one.entry_id)]) else []
        for part in parts:
            if isinstance(part, StoredRun):
                count, size_bytes = len(part.entries), part.payload_bytes
            else:
                count, size_bytes = len(part), sum(len(entry.payload) for entry in part)
            await pace.take(size_bytes)
            copied.entries += count
            copied.size_bytes += size_bytes
            under_way.add(asyncio.get_running_loop().create_task(_store_one(writer, part), name="copy entries"))


def _within(run: StoredRun, ranges: Iterable[EntryRange]) -> Iterator[StoredRun]:
    """Yield the parts of a run within these ranges. Used where every bookie holds every entry of the fragment."""
    overhead_bytes = run.head_bytes
    for low, high in ranges:
        if low <= run.first and run.end <= high + 1:
            yield run
        elif low < run.end and run.first <= high:
            begin = max(low, run.first)
            entries = run.entries[begin - run.first : high + 1 - run.first]
            yield StoredRun(EntryId(begin), entries, sum(map(len, entries)) - overhead_bytes * len(entries))


async def _store_one(writer: ReplicaWriter, copies: StoredRun | Sequence[LedgerEntry]) -> None:
    try:
        if isinstance(copies, StoredRun):
            await writer.store_run(copies)
        else:
            await writer.store(copies)
    except LedgerError as error:
        raise ReplicaWriteError(writer.bookie, error) from error


async def _reap(under_way: "set[asyncio.Task[None]]") -> None:
    done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    under_way -= done
    failed = [error for task in done if (error := task.exception()) is not None]  # several may fail in one step
    if failed:
        raise failed[0]
