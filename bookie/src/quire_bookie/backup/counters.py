"""Raises counters in the metadata, which are nodes whose version is the count. Never lowers one.

No store can set the version of a node, so a counter is raised by writing it repeatedly, many writes at once. When that
would take too many writes, ledger ids switch to long ids, whose high half can be chosen (`metadata.ledger_ids`).
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
"""Numbers that a counter may have issued since the backup. Skipping a number costs nothing."""


def is_counter(node: Node) -> bool:
    """Return whether a node is the parent of numbered nodes: written more than once, and always empty."""
    return node.version > 0 and not node.value and not node.key.startswith(f"{layout.ROOT}/")


async def raise_counter(store: MetadataStore, path: str, version: int) -> int:
    """Write the node until its version is at least `version`; return the number of writes.

    After MetadataUnavailableError, call it again: it continues.
    """
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
        return  # the next read of the version shows whether it was written


def high_path(high: int) -> str:
    """Return the path of the counter of the low halves of long ids with this high half."""
    return f"{layout.LONG_ID_COUNTERS}/HOB-{high:010d}"


def high_of(path: str) -> int | None:
    """Return the high half whose counter is at `path`; None for any other path."""
    name = path.removeprefix(f"{layout.LONG_ID_COUNTERS}/HOB-")
    return int(name) if name != path and len(name) == 10 and name.isascii() and name.isdigit() else None


def reserve_puts(high: int) -> list[Put]:
    """Return the writes that make new ledgers take long ids with this high half."""
    return [Put(layout.LONG_ID_COUNTERS, b""), Put(high_path(high), b"")]


def highest_high(ledgers: Iterable[int]) -> int:
    """Return the highest high half among ledger ids; 0 when all are short."""
    return max((ledger >> 32 for ledger in ledgers), default=0)


async def leave_long_ids(store: MetadataStore, high: int, *more: Check) -> bool:
    """Return to short ids if no long id was issued since they were reserved. False: long ids stay.

    Bookies may have noted the counter of long ids. So the epoch rises in the same transaction: otherwise they would
    take the missing counter for a sign that an older copy of the metadata is in use.
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
