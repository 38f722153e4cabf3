"""Where the bookies stand, as an operator wrote it with Pulsar's tools: the node `/bookies`. Never writes it.

    {"<group>": {"<bookie id>": {"rack": "/zone/rack", "hostname": "..."}}}

The groups (isolation) are not interpreted. One task follows the node; a value that does not parse leaves what was
known.
"""

import asyncio
import contextlib
import json
import logging

from quire_bookie.env.background import start_background
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.following import patiently
from quire_bookie.metadata.store import MetadataStore, Watch
from quire_bookie.model import BookieId

_log = logging.getLogger("quire.metadata.racks")
RACK_MAP = "/bookies"


def decode_rack_map(value: bytes) -> dict[BookieId, str]:
    """Places by bookie; empty for an empty node. MetadataFormatError."""
    if not value.strip():
        return {}
    try:
        groups = json.loads(value)
        places: dict[BookieId, str] = {}
        for members in groups.values():
            for bookie, entry in members.items():
                rack = (entry or {}).get("rack")
                if isinstance(rack, str) and rack.strip("/"):
                    places[BookieId(bookie)] = "/" + rack.strip("/")
        return places
    except (ValueError, AttributeError, TypeError) as error:
        raise MetadataFormatError(f"{RACK_MAP} is no rack map: {error}") from error


class RackMap:
    """The rack map, kept current. Open it, read `places` at any time, close it."""

    def __init__(self, store: MetadataStore, watch: Watch) -> None:
        """Use `open`."""
        self.places: dict[BookieId, str] = {}
        self._store = store
        self._watch = watch
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, store: MetadataStore) -> "RackMap":
        """Read the map and follow it. MetadataUnavailableError when the store is away."""
        racks = cls(store, await store.watch(RACK_MAP))
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(racks._watch.close)
            await racks._load()
            undo.pop_all()
        racks._task = start_background(racks._follow(), "rack-map", _log)
        return racks

    async def close(self) -> None:
        """Stop following."""
        await self._watch.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        async for _ in self._watch:
            await patiently(self._load, f"read {RACK_MAP}", _log.warning)

    async def _load(self) -> None:
        node = await self._store.get(RACK_MAP)
        try:
            self.places = {} if node is None else decode_rack_map(node.value)
        except MetadataFormatError as error:
            _log.warning("ignored, what was known before holds: %s", error)
