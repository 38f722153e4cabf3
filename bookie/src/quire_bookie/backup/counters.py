"""Counters in the metadata: nodes whose version is what counts. Raises them; never lowers one.

No store lets a version be set, so a counter is raised by putting it again and again, many puts at once. Ledger ids have
a way out when that is far: the long ids, whose high half is chosen (`metadata.ledger_ids`).
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from quire_bookie.errors import BadVersionError, MetadataUnknownError
from quire_bookie.metadata import layout
from quire_bookie.metadata.epoch import EPOCH_PATH, epoch_put, next_epoch, read_epoch_node
from quire_bookie.metadata.store import ABSENT, Check, Delete, MetadataStore, Node, Put

PUTS_AT_ONCE: Final = 128
COUNTER_MARGIN: Final = 1000
"""Numbers that a counter may have given out since the backup; a number that is left out costs nothing."""


def is_counter(node: Node) -> bool:
    """Whether a node is a parent of numbered nodes: put more than once, and always empty."""
    return node.version > 0 and not node.value and not node.key.startswith(f"{layout.ROOT}/")


async def raise_counter(store: MetadataStore, path: str, version: int) -> int:
    """Put the node until its version is at least this; how many puts. MetadataUnavailableError: again goes on."""
    puts = 0
    while True:
        node = await store.get(path)
        missing = version - (ABSENT if node is None else node.version)
        if missing <= 0:
            return puts
        batch = [_put(store, path) for _ in range(min(missing, PUTS_AT_ONCE))]
        puts += len(batch)
        await asyncio.gather(*batch)


async def _put(store: MetadataStore, path: str) -> None:
    try:
        await store.put(path, b"")
    except MetadataUnknownError:
        return  # the next look counts it, or does not


def high_path(high: int) -> str:
    """The counter of the low halves of long ids with this high half."""
    return f"{layout.LONG_ID_COUNTERS}/HOB-{high:010d}"


def high_of(path: str) -> int | None:
    """The high half whose counter is at `path`; None for any other path."""
    name = path.removeprefix(f"{layout.LONG_ID_COUNTERS}/HOB-")
    return int(name) if name != path and len(name) == 10 and name.isdigit() else None


def reserve_puts(high: int) -> list[Put]:
    """Puts with which new ledgers take long ids with this high half."""
    return [Put(layout.LONG_ID_COUNTERS, b""), Put(high_path(high), b"")]


def highest_high(ledgers: Iterable[int]) -> int:
    """The highest high half among ledger ids; 0 when all are short."""
    return max((ledger >> 32 for ledger in ledgers), default=0)


async def leave_long_ids(store: MetadataStore, high: int, *more: Check) -> bool:
    """Back to short ids, if no long one was given out since they were reserved. False: they stay.

    Bookies may have noted the counter of long ids: the epoch rises in the same transaction, so that its absence is not
    taken for metadata that went back.
    """
    path = high_path(high)
    node, parent = await store.get(path), await store.get(layout.LONG_ID_COUNTERS)
    if node is None or parent is None or node.version != 0:
        return False
    if len(await store.children(layout.LONG_ID_COUNTERS)) != 1:
        return False
    epoch = await read_epoch_node(store)
    checks = [Check(path, 0), Check(layout.LONG_ID_COUNTERS, parent.version), Check(EPOCH_PATH, epoch.version), *more]
    deletes = [Delete(path), Delete(layout.LONG_ID_COUNTERS)]
    try:
        await store.transact(checks, [*deletes, epoch_put(next_epoch(epoch.value))])
    except BadVersionError:
        return False
    return True
