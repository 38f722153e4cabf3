"""Computes the entry ids held of a ledger, as inclusive runs, from the index's blocks (256 ids each) and the caches.

Never reads an entry, and never omits an id that may be held: a block that is damaged, or lost a part to damage, raises
DamagedError.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.formats.block_index import decode_block, ids_in_block
from quire_bookie.storage.formats.index_keys import BLOCK_MASK, BLOCK_SHIFT, block_key, block_of_key, last_block_key
from quire_bookie.storage.write_cache import WriteCache

EntryRange = tuple[EntryId, EntryId]
_FULL_BLOCK = (1 << BLOCK_MASK + 1) - 1
_BLOCKS_PER_YIELD = 16


async def indexed_ranges(index: IndexStore, ledger: LedgerId) -> list[EntryRange]:
    """Return the ids in the index, ascending. DamagedError if some may be missing."""
    found: list[EntryRange] = []
    async for key, value in index.scan(block_key(ledger, 0), last_block_key(ledger) + b"\0"):
        base = block_of_key(key) << BLOCK_SHIFT
        for first, last in runs_of_mask(ids_in_block(key, value)):
            extend(found, base + first, base + last)
    return found


async def indexed_size(index: IndexStore, ledger: LedgerId) -> tuple[int, int]:
    """Return the number of entries in the index, and their bytes; entries hidden by damage are not counted."""
    entries = size_bytes = blocks = 0
    try:
        async for key, value in index.scan(block_key(ledger, 0), last_block_key(ledger) + b"\0"):
            for segment in decode_block(key, value).segments:
                entries += len(segment.sizes)
                size_bytes += sum(segment.sizes)
            blocks += 1
            if blocks % _BLOCKS_PER_YIELD == 0:
                await asyncio.sleep(0)
    except DamagedError:
        return entries, size_bytes
    return entries, size_bytes


def cached_ranges(cache: WriteCache, ledger: LedgerId) -> list[EntryRange]:
    """Return the ids in both halves of the write cache, ascending."""
    return join_ranges(_runs_of_ids(ids) for ids in cache.ids_of(ledger))


def runs_of_mask(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of ones in a bit mask, as inclusive pairs."""
    if mask == _FULL_BLOCK:
        yield 0, BLOCK_MASK
        return
    at = 0
    while mask:
        skipped = (mask & -mask).bit_length() - 1
        mask >>= skipped
        at += skipped
        count = (~mask & mask + 1).bit_length() - 1
        yield at, at + count - 1
        mask >>= count
        at += count


def join_ranges(lists: Iterable[Iterable[EntryRange]]) -> list[EntryRange]:
    """Join the ids of several lists into ascending runs that neither overlap nor touch."""
    joined: list[EntryRange] = []
    for first, last in sorted(each for ranges in lists for each in ranges):
        extend(joined, first, last)
    return joined


def extend(ranges: list[EntryRange], first: int, last: int) -> None:
    """Add a run that starts at or after the start of the last one."""
    if ranges and first <= ranges[-1][1] + 1:
        ranges[-1] = (ranges[-1][0], EntryId(max(ranges[-1][1], last)))
    else:
        ranges.append((EntryId(first), EntryId(last)))


def _runs_of_ids(ids: Sequence[int]) -> list[EntryRange]:
    """Return the runs of ascending ids. Ids without gaps are one run, recognised by its ends alone."""
    if not ids:
        return []
    if ids[-1] - ids[0] + 1 == len(ids):
        return [(EntryId(ids[0]), EntryId(ids[-1]))]
    found: list[EntryRange] = []
    for entry in ids:
        extend(found, entry, entry)
    return found
