"""Reads copies back from the one bookie that stored them, before the metadata rely on them. Changes nothing."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.reading.range_read import RangeReader
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, Segment
from quire_bookie.recovery.fragments import Fragment
from quire_bookie.wire.availability import EntryRange


async def read_back(
    handle: LedgerHandle,
    metadata: LedgerMetadata,
    fragment: Fragment,
    position: int,
    bookie: BookieId,
    *,
    pace: RateLimit,
    batch_bytes: int,
    without: Iterable[EntryId] = (),
    advanced: Callable[[], None] = lambda: None,
) -> int:
    """Read from `bookie` all entries that `position` must hold and verify each digest. Return the bytes read.

    `without`: entries known to be lost. `advanced` is called after each read.

    Raises the LedgerError of the first entry that the bookie does not serve intact.
    """
    lost = set(without)
    # Metadata that name this bookie alone, so that no other replica can serve the read.
    segment = Segment(EntryId(0), (bookie,))
    alone = replace(metadata, ensemble_size=1, write_quorum=1, ack_quorum=1, segments=(segment,))
    reader = RangeReader(handle.read_way, handle.settings)
    size_bytes = 0
    for first, last in _without(fragment.stored(position), lost):
        at: int = first
        while at <= last:
            entries = await reader.read(alone, EntryId(at), EntryId(last), batch_bytes)
            advanced()
            at += len(entries)
            part_bytes = sum(len(entry.payload) for entry in entries)
            size_bytes += part_bytes
            await pace.take(part_bytes)
    return size_bytes


def _without(ranges: Iterable[EntryRange], lost: set[EntryId]) -> Iterable[EntryRange]:
    for first, last in ranges:
        at: int = first
        for entry in sorted(entry for entry in lost if first <= entry <= last):
            if entry > at:
                yield EntryId(at), EntryId(entry - 1)
            at = entry + 1
        if at <= last:
            yield EntryId(at), last
