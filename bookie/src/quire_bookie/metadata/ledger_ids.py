"""Allocates ledger ids from the cluster-wide counters. Never allocates an id twice while the counter nodes are intact.

An id is the version of a counter node after an empty put on it. The short counter is `/ledgers/idgen`; when its ids
reach 2**31 - 1 the node `/ledgers/idgen-long` is created, and from then on every client counts below it: node
`HOB-%010d` gives the low half, its number the high half. BookKeeper's clients count with the same nodes.
"""

import re
from collections.abc import Sequence

from quire_bookie.errors import BadVersionError, MetadataError, MetadataUnknownError
from quire_bookie.limits import METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata import layout
from quire_bookie.metadata.epoch import read_epoch
from quire_bookie.metadata.store import ABSENT, Check, Get, MetadataStore, Put
from quire_bookie.model import IdCounters, LedgerId

_HIGH_ORDER = re.compile(r"HOB-([0-9]{10})")
_HIGH_ORDER_FIRST = 1
_HIGH_ORDER_END = 2**31
_LOW_ORDER_END = layout.SHORT_LEDGER_IDS_END


async def read_counters(store: MetadataStore) -> IdCounters:
    """Return counters that all belong to one epoch. MetadataFormatError, MetadataUnavailableError."""
    epoch = await read_epoch(store)
    while True:
        short, long = await _version(store, layout.ID_COUNTER), -1
        if await store.get(layout.LONG_ID_COUNTERS) is not None and (high := await _highest_high(store)):
            long = high << 32 | max(0, await _version(store, _high_order_path(high)))
        # A restore changes the counters in the transaction that raises the epoch.
        again = await read_epoch(store)
        if again == epoch:
            return IdCounters(epoch, short, long)
        epoch = again


async def _version(store: MetadataStore, path: str) -> int:
    node = await store.get(path)
    return ABSENT if node is None else node.version


async def _highest_high(store: MetadataStore) -> int:
    names = await store.children(layout.LONG_ID_COUNTERS)
    return max((int(match[1]) for name in names if (match := _HIGH_ORDER.fullmatch(name))), default=0)


def _high_order_path(high: int) -> str:
    return f"{layout.LONG_ID_COUNTERS}/HOB-{high:010d}"


class LedgerIds:
    """Allocates ledger ids; several clients may do so at once."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def next_id(self) -> LedgerId:
        """Return a new id. MetadataUnavailableError, MetadataUnknownError (an id may be skipped, which is harmless)."""
        try:
            number = await self._count(layout.ID_COUNTER, [Check(layout.LONG_ID_COUNTERS, ABSENT)])
        except BadVersionError:
            return await self._next_long_id()
        if number < _LOW_ORDER_END:
            return LedgerId(number)
        await self._create(layout.LONG_ID_COUNTERS)
        return await self._next_long_id()

    async def _next_long_id(self) -> LedgerId:
        high = max(await _highest_high(self._store), _HIGH_ORDER_FIRST)
        low = await self._count(_high_order_path(high))
        if low >= _LOW_ORDER_END:
            high += 1
            low = await self._count(_high_order_path(high))
        if high >= _HIGH_ORDER_END:
            raise MetadataError("all ledger ids are used")
        return LedgerId(high << 32 | low)

    async def _count(self, path: str, checks: Sequence[Check] = ()) -> int:
        """Return the next number of a counter, starting at 1: the put that creates the node (version 0) is skipped.

        BadVersionError: a check failed.
        """
        for attempt in range(1, METADATA_UNKNOWN_RETRIES + 1):
            try:
                number = await self._rise(path, checks)
                return number or await self._rise(path, checks)
            except MetadataUnknownError:
                # A number of unknown outcome is only skipped.
                if attempt == METADATA_UNKNOWN_RETRIES:
                    raise
        raise AssertionError("unreachable")

    async def _rise(self, path: str, checks: Sequence[Check]) -> int:
        (found,) = await self._store.transact(checks, [Put(path, b"")], [Get(path)])
        if not found:
            raise MetadataUnknownError(f"{path} is not there after a write")
        return found[0].version

    async def _create(self, path: str) -> None:
        try:
            await self._store.put(path, b"", expected=ABSENT)
        except BadVersionError:
            return  # another client was faster
