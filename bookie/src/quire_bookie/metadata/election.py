"""Elects a leader: one ephemeral node, created by the first candidate and free again when its session ends.

/ledgers/underreplication/leader   the auditor; ephemeral; value: the bookie id as a JSON string

Brokers elect theirs under a key of their own.

Follows Pulsar's metadata driver: if the node is absent, create it; if it has our value but an older lease, delete and
create it; otherwise follow it, and retry when it is deleted. Leadership is a lease: the leader calls `still_leads`
before a step that two processes should not take, and each such step must be harmless if two take it nevertheless.
"""

import asyncio
import json
import logging

from quire_bookie.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnknownError,
    NodeMissingError,
)
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata.retrying import watch_with_retries
from quire_bookie.metadata.store import ABSENT, MetadataStore, Watch
from quire_bookie.metadata.under_replication import UNDER_REPLICATION

_log = logging.getLogger("quire.metadata.election")
LEADER = f"{UNDER_REPLICATION}/leader"
FOLLOW_POLL_S = 30.0
"""Interval after which a follower retries without an event: events can be lost while the store is unavailable."""


async def current_leader(store: MetadataStore) -> str | None:
    """Return the id of the leader; None if there is none or the value is not a JSON string."""
    node = await store.get(LEADER)
    if node is None:
        return None
    try:
        found = json.loads(node.value)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


class Election:
    """One candidate. `name` is what other processes read of the leader, as JSON."""

    def __init__(self, store: MetadataStore, name: object, key: str = LEADER) -> None:
        self._store, self._key = store, key
        self._value = json.dumps(name, ensure_ascii=False, separators=(",", ":")).encode()

    async def win(self) -> None:
        """Return once this process leads. Waits while the store is unavailable."""
        watch = await watch_with_retries(self._store, self._key, _log.info)
        try:
            changed = asyncio.Event()
            following = asyncio.ensure_future(self._follow(watch, changed))
            try:
                while True:
                    changed.clear()
                    if await self._try():
                        return
                    try:
                        async with asyncio.timeout(FOLLOW_POLL_S):
                            await changed.wait()
                    except TimeoutError:
                        continue
            finally:
                following.cancel()
        finally:
            await watch.close()

    async def still_leads(self) -> bool:
        """Return whether the node exists and belongs to this session, linearizable. MetadataUnavailableError."""
        node = await self._store.get(self._key)
        return node is not None and node.owned

    async def resign(self) -> None:
        """Give up leadership. If the store is unavailable, the node is removed with the session."""
        try:
            node = await self._store.get(self._key)
            if node is not None and node.owned:
                await self._store.delete(self._key, expected=node.version)
        except MetadataError as error:
            _log.info("could not resign, the election node is removed with the session: %s", error)

    async def _try(self) -> bool:
        try:
            node = await self._store.get(self._key)
            if node is not None and node.owned:
                return True
            if node is not None:
                if node.value != self._value:
                    return False
                # Our node of an earlier session: no other process would remove it before its lease expires.
                await self._store.delete(self._key, expected=node.version)
            await self._store.put(self._key, self._value, expected=ABSENT, ephemeral=True)
            return True
        except (BadVersionError, NodeMissingError):
            return False
        except MetadataUnknownError:
            return await self._settle()
        except MetadataError as error:
            _log.info("cannot take part in the election, will try again: %s", error)
            await asyncio.sleep(METADATA_RETRY_BACKOFF_S[1])
            return False

    async def _settle(self) -> bool:
        try:
            return await self.still_leads()
        except MetadataError:
            return False

    async def _follow(self, watch: Watch, changed: asyncio.Event) -> None:
        async for _ in watch:
            changed.set()
