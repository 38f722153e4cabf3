"""Answers which broker serves a topic, for the binary protocol and for REST.

While the owner of a bundle changes, and while it does not accept connections, lookups wait: a client that got an error
or a dead address would pause before it tries again, longer each time.
"""

import asyncio
import contextlib
from functools import partial
from typing import Protocol

from quire_broker.errors import NotFoundError, TopicNotFoundError
from quire_broker.limits import BUNDLES_TAKEN_MAX, LOOKUP_HOLD_S, LOOKUP_RECHECK_S
from quire_broker.names import TopicName
from quire_broker.ownership.claims import BundleClaim
from quire_broker.ownership.owners import Bundle, BundleMovesError, Owner, Owners
from quire_broker.ownership.reachability import Reachability


class Elsewhere(Protocol):
    """Chooses the broker that gets a bundle without owner."""

    async def elsewhere(self, bundle: Bundle) -> Owner | None:
        """Return another broker that may own the bundle; None: this broker may. ServiceNotReadyError, MetadataError."""
        ...


class Lookups:
    """Finds owners; this broker takes a free bundle when it is asked for it, unless another broker gets it."""

    def __init__(
        self, owners: Owners, placement: Elsewhere | None = None, reachability: Reachability | None = None
    ) -> None:
        """Without `placement` this broker takes every free bundle; without `reachability` all owners are reachable."""
        self._owners = owners
        self._placement = placement
        self._reachability = reachability
        self._finding: dict[tuple[Bundle, bool], asyncio.Future[Owner | None]] = {}
        """Running searches, by the bundle and whether it may be taken."""
        self._gate = asyncio.Semaphore(BUNDLES_TAKEN_MAX)
        """Held while a bundle is taken: when many lose their owner, those taken first are served first."""

    async def find(self, topic: TopicName, *, take: bool = True) -> Owner | None:
        """Return the owner of the topic's bundle, or a broker that may own it if this one may not.

        TopicNotFoundError, ServiceNotReadyError.
        """
        try:
            bundle = await self._owners.bundle_of(topic)
        except NotFoundError as error:
            raise TopicNotFoundError(str(error)) from error
        return await self.find_bundle(bundle, take=take)

    async def find_bundle(self, bundle: Bundle, *, take: bool = True) -> Owner | None:
        """Return the owner of a bundle as `find` does. ServiceNotReadyError."""
        if self._owners.holds(bundle):
            return await self._owners.owner_of(bundle, take=take)
        # Thousands of clients look up the topics of a bundle that has lost its owner: they share one search.
        running = self._finding.get((bundle, take))
        if running is None:
            running = self._finding[bundle, take] = asyncio.ensure_future(self._settled(bundle, take=take))
            running.add_done_callback(partial(self._found, (bundle, take)))
        return await asyncio.shield(running)

    async def _settled(self, bundle: Bundle, *, take: bool) -> Owner | None:
        """Return the owner once it is certain and accepts connections, or after a time limit."""
        until_s = asyncio.get_running_loop().time() + LOOKUP_HOLD_S
        while True:
            change = self._owners.change_of(bundle)
            late = asyncio.get_running_loop().time() >= until_s
            try:
                owner = await self._placed(bundle, take=take)
                if owner is None or await self._reaches(owner, late=late):
                    return owner
            except BundleMovesError:
                if late:
                    raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOKUP_RECHECK_S):
                    await asyncio.shield(change)

    async def _placed(self, bundle: Bundle, *, take: bool) -> Owner | None:
        if not take:
            return await self._owners.owner_of(bundle, take=False)
        if self._placement is None:
            async with self._gate:
                return await self._owners.owner_of(bundle)
        owner = await self._owners.owner_of(bundle, take=False)
        if owner is None and not await self._owners.has_left_behind(bundle):
            owner = await self._placement.elsewhere(bundle)
        if owner is not None:
            return owner
        async with self._gate:
            return await self._owners.owner_of(bundle)

    async def _reaches(self, owner: Owner, *, late: bool) -> bool:
        """Return whether clients can be sent to the owner. When it is late, one that has kept its lease is trusted."""
        if owner.ours or self._reachability is None or await self._reachability.is_reachable(owner.urls):
            return True
        if late:
            self._reachability.trust(owner.urls)
        return late

    def _found(self, key: tuple[Bundle, bool], search: "asyncio.Future[Owner | None]") -> None:
        self._finding.pop(key, None)
        if not search.cancelled():
            search.exception()  # every client that waited may be gone

    async def bundle_range(self, topic: TopicName) -> str:
        """Return the range text of the topic's bundle."""
        return (await self._owners.bundle_of(topic)).range

    async def tenure(self, topic: TopicName, read: bool) -> int:
        """Return the tenure of the topic's bundle; with `read` see `Owners.confirmed_tenure`. Takes no bundle.

        Waits for a bundle that another broker is giving to this one: its node has been read then.
        """
        bundle = await self._owners.bundle_of(topic)
        if await self._owners.arrivals.wait(bundle.key) or not read:
            return self._owners.tenure(bundle)
        return await self._owners.confirmed_tenure(bundle)

    async def claim(self, topic: TopicName) -> BundleClaim:
        """Return a claim on the topic's ledger. Takes no bundle, and waits as `tenure` does."""
        bundle = await self._owners.bundle_of(topic)
        await self._owners.arrivals.wait(bundle.key)
        return BundleClaim(self._owners, bundle)
