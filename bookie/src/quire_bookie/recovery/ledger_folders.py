"""Walks through all ledgers folder by folder, so that a walk of days needs little memory and no old revision.

Read-only.

A folder is a node prefix that holds at most ten thousand ledgers (`/ledgers/00/0123/`). Each is listed at a revision of
its own: a ledger that is created or deleted during the walk may be included or not.
"""

import re
from collections.abc import AsyncIterator

from quire_bookie.metadata import layout
from quire_bookie.metadata.store import MetadataStore

_SHORT_TOP = re.compile(r"[0-9]{2}")
_LONG_TOP = re.compile(r"[0-9]{3}")
_MIDDLE = re.compile(r"[0-9]{4}")
_SHORT_DEPTH, _LONG_DEPTH = 1, 3


async def ledger_folders(store: MetadataStore) -> AsyncIterator[str]:
    """Yield the prefixes, ending with `/`, of short ids and then of long ones. Raises MetadataUnavailableError."""
    tops = await store.children(layout.ROOT)
    for pattern, depth in ((_SHORT_TOP, _SHORT_DEPTH), (_LONG_TOP, _LONG_DEPTH)):
        for top in tops:
            if pattern.fullmatch(top):
                async for folder in _below(store, f"{layout.ROOT}/{top}", depth):
                    yield folder


async def _below(store: MetadataStore, path: str, depth: int) -> AsyncIterator[str]:
    if depth == 0:
        yield f"{path}/"
        return
    for name in await store.children(path):
        if _MIDDLE.fullmatch(name):
            async for folder in _below(store, f"{path}/{name}", depth - 1):
                yield folder
