"""Who is the auditor: one ephemeral node, taken by whoever comes first and passed on when its session ends.

/ledgers/underreplication/leader   ephemeral; value: the bookie id as a JSON string

As Pulsar's metadata driver does it: absent -> create; there with our own value but from an older lease -> delete and
create; else follow, and try again when it is deleted. Leading is a lease: whoever acts asks `still_leads` before a step
that two should not take, and every such step must be harmless when two take it all the same.
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
from quire_bookie.metadata.following import watch_with_retries
from quire_bookie.metadata.store import ABSENT, MetadataStore, Watch
from quire_bookie.metadata.under_replication import UNDER_REPLICATION

_log = logging.getLogger("quire.metadata.election")
LEADER = f"{UNDER_REPLICATION}/leader"
FOLLOW_POLL_S = 30.0
"""A follower looks again after so long whatever the watch says: events can be lost with the store away."""


async def current_leader(store: MetadataStore) -> str | None:
    """The id of whoever leads; None when nobody does or the value is no JSON string."""
    node = await store.get(LEADER)
    if node is None:
        return None
    try:
        found = json.loads(node.value)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


class Election:
    """One candidate. `name` is what others read as the leader."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self._store = store
        self._value = json.dumps(name, ensure_ascii=False).encode()

    async def win(self) -> None:
        """Return once this process leads. Waits out a store that is away."""
        watch = await watch_with_retries(self._store, LEADER, _log.info)
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
        """Whether the node is there and of this session, linearizable. MetadataUnavailableError."""
        node = await self._store.get(LEADER)
        return node is not None and node.owned

    async def resign(self) -> None:
        """Let another lead. What cannot be reached goes with the session."""
        try:
            node = await self._store.get(LEADER)
            if node is not None and node.owned:
                await self._store.delete(LEADER, expected=node.version)
        except MetadataError as error:
            _log.info("the election's node goes with the session: %s", error)

    async def _try(self) -> bool:
        try:
            node = await self._store.get(LEADER)
            if node is not None and node.owned:
                return True
            if node is not None:
                if node.value != self._value:
                    return False
                # Ours, of a session before this one: nobody else would ever answer for it.
                await self._store.delete(LEADER, expected=node.version)
            await self._store.put(LEADER, self._value, expected=ABSENT, ephemeral=True)
            return True
        except (BadVersionError, NodeMissingError):
            return False
        except MetadataUnknownError:
            return await self._settle()
        except MetadataError as error:
            _log.info("cannot take part in the election now: %s", error)
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
