"""Owns the node `/bookies`, the rack of each bookie. Written by Pulsar's tools, and by bookies with a configured rack.

    {"<group>": {"<bookie id>": {"rack": "/zone/rack", "hostname": "..."}}}

A namespace may name the groups that hold its ledgers (`quorum.bookie_groups`). One task follows the node; a value that
does not parse leaves the known racks in place and is never overwritten. A bookie writes only its own entry and
preserves the content of all others.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

from quire_bookie.env.background import start_background
from quire_bookie.env.chance import Chance
from quire_bookie.errors import BadVersionError, MetadataFormatError, MetadataUnavailableError, MetadataUnknownError
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S, RACK_MAP_CONFLICTS_MAX
from quire_bookie.metadata.retrying import with_retries
from quire_bookie.metadata.store import ABSENT, MetadataStore, Watch
from quire_bookie.model import BookieId
from quire_bookie.quorum.bookie_groups import DEFAULT_GROUP

_log = logging.getLogger("quire.metadata.racks")
RACK_MAP = "/bookies"


def decode_rack_map(value: bytes) -> dict[BookieId, str]:
    """Return the racks by bookie; empty for an empty node. MetadataFormatError."""
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
        raise MetadataFormatError(f"{RACK_MAP} is not a rack map: {error}") from error


def with_place(value: bytes, bookie: BookieId, place: str, host: str) -> bytes:
    """Return the map with the bookie's entry, in its present group or else Pulsar's default one. MetadataFormatError.

    If the entry is up to date, returns the same bytes.
    """
    if decode_rack_map(value).get(bookie) == place:
        return value
    groups: dict[str, Any] = json.loads(value) if value.strip() else {}
    group = next((name for name, members in groups.items() if bookie in members), DEFAULT_GROUP)
    members = groups.setdefault(group, {})
    members[bookie] = (members.get(bookie) or {}) | {"rack": place, "hostname": host}
    return json.dumps(groups).encode()


def without_place(value: bytes, bookie: BookieId) -> bytes:
    """Return the map without a removed bookie. MetadataFormatError."""
    if bookie not in decode_rack_map(value):
        return value
    return json.dumps(_without(json.loads(value), bookie)).encode()


def rack_groups(value: bytes) -> dict[str, dict[str, Any]]:
    """Return the entries of the bookies by group, as stored. MetadataFormatError."""
    decode_rack_map(value)  # checks the form
    groups: dict[str, dict[str, Any]] = json.loads(value) if value.strip() else {}
    return groups


def with_entry(value: bytes, group: str, bookie: BookieId, rack: str, host: str | None) -> bytes:
    """Return the map with the bookie in this group, and in no other. MetadataFormatError."""
    groups = _without(rack_groups(value), bookie)
    groups.setdefault(group, {})[bookie] = {"rack": rack, "hostname": host}
    return _encoded(groups)


def without_entry(value: bytes, bookie: BookieId) -> bytes:
    """Return the map without the bookie, and without a group that is empty then. MetadataFormatError."""
    return _encoded(_without(rack_groups(value), bookie))


def _without(groups: dict[str, dict[str, Any]], bookie: BookieId) -> dict[str, dict[str, Any]]:
    return {name: {one: entry for one, entry in members.items() if one != bookie} for name, members in groups.items()}


def _encoded(groups: dict[str, dict[str, Any]]) -> bytes:
    """Return the map without its empty groups."""
    return json.dumps({name: members for name, members in groups.items() if members}).encode()


async def change_rack_map(store: MetadataStore, chance: Chance, decide: Callable[[bytes], bytes]) -> None:
    """Replace the map by `decide(current)`. `decide` may be called repeatedly; many bookies may write at once.

    MetadataFormatError: the map does not parse and stays. MetadataUnavailableError, MetadataUnknownError: call again.
    """
    low_s, high_s = METADATA_RETRY_BACKOFF_S
    unknown: MetadataUnknownError | None = None
    for attempt in range(RACK_MAP_CONFLICTS_MAX):
        node = await store.get(RACK_MAP)
        before = b"" if node is None else node.value
        wanted = decide(before)
        if wanted == before:
            return
        try:
            await store.put(RACK_MAP, wanted, expected=ABSENT if node is None else node.version)
            return
        except BadVersionError:
            # All bookies of a pool start at once and write here.
            await asyncio.sleep(chance.uniform(0.0, min(high_s, low_s * (attempt + 1))))
        except MetadataUnknownError as error:
            unknown = error
    raise unknown or MetadataUnavailableError(
        f"{RACK_MAP} was changed {RACK_MAP_CONFLICTS_MAX} times meanwhile; try again"
    )


class RackMap:
    """Keeps the rack map current. Open it, read `places` at any time, close it."""

    def __init__(self, store: MetadataStore, watch: Watch) -> None:
        """Use `open`."""
        self.places: dict[BookieId, str] = {}
        self._groups: dict[BookieId, str] = {}
        self._store = store
        self._watch = watch
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, store: MetadataStore) -> "RackMap":
        """Read the map and follow it. MetadataUnavailableError if the store is unavailable."""
        racks = cls(store, await store.watch(RACK_MAP))
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(racks._watch.close)
            await racks._load()
            undo.pop_all()
        racks._task = start_background(racks._follow(), "rack-map", _log)
        return racks

    def group_of(self, bookie: BookieId) -> str:
        """Return the group of a bookie."""
        return self._groups.get(bookie, DEFAULT_GROUP)

    async def close(self) -> None:
        """Stop following."""
        await self._watch.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        async for _ in self._watch:
            await with_retries(self._load, f"read {RACK_MAP}", _log.warning)

    async def _load(self) -> None:
        node = await self._store.get(RACK_MAP)
        value = b"" if node is None else node.value
        try:
            groups, self.places = rack_groups(value), decode_rack_map(value)
        except MetadataFormatError as error:
            _log.warning("invalid rack map ignored, the previous racks stay in use: %s", error)
        else:
            self._groups = {BookieId(one): name for name, members in groups.items() for one in members}
