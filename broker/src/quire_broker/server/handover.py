"""Moves bundles to other brokers so that their clients wait as briefly as possible, and receives those of others.

    old owner                                     new owner
    offer the bundle to one broker                read the policies
    close idle topics, then those with clients
    complete the offer, with their names    -->   take the bundle, load these topics
    name the new owner to all clients       -->   their requests wait for the load

Without another broker the bundle is released. Each step may fail: then clients look up their topics. A new owner fences
the ledgers whatever the old one believes, so the offer saves time and guarantees nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from quire_bookie.env.background import Background
from quire_bookie.errors import MetadataError, QuireError
from quire_broker.errors import ServiceNotReadyError
from quire_broker.limits import HANDOVER_LOADS_MAX, HANDOVER_TAKE_S, HANDOVER_TOPICS_MAX, HANDOVERS_MAX
from quire_broker.names import parse_topic
from quire_broker.ownership.owners import BrokerUrls, Bundle, Offer, Owners
from quire_broker.policies.store import PolicyStore
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics
from quire_broker.wire.kinds import Moved

NO_BROKER = ""
"""As the next owner: the bundle is released."""
log = logging.getLogger("quire.broker.handover")


def moved_to(urls: BrokerUrls) -> Moved | None:
    """Return the addresses for close commands. None: clients may use a named listener, and which is not known."""
    return None if urls.listeners else Moved(urls.native, urls.native_tls)


class Handover:
    """Moves the bundles of one broker."""

    def __init__(
        self,
        owners: Owners,
        topics: Topics,
        policies: PolicyStore,
        background: Background,
        successor: Callable[[Bundle], Awaitable[str | None]],
    ) -> None:
        """`successor`: chooses the id of the broker that gets a bundle; None: there is none."""
        self._owners = owners
        self._topics = topics
        self._policies = policies
        self._background = background
        self._successor = successor
        self._loads = asyncio.Semaphore(HANDOVER_LOADS_MAX)
        self.moved = 0
        """Bundles that another broker took from this one."""

    async def topics_of(self, bundle: Bundle) -> list[Topic]:
        """Return the loaded topics of a bundle; without the metadata store possibly others of its namespace."""
        topics = [topic for topic in self._topics.loaded if topic.name.namespace == bundle.namespace]
        try:
            ring = await self._policies.bundles(bundle.namespace)
        except QuireError:
            ring = None
        if ring is None:
            return topics  # closing one topic too many is better than keeping one
        return [topic for topic in topics if ring.bundle_of(str(topic.name)) == bundle.range]

    async def move(self, bundle: Bundle, to: str | None = None) -> None:
        """Hand a bundle to the broker `to`, or to any that may own it; release it if there is none, or for NO_BROKER.

        Does nothing for a bundle that is not ours.
        """
        if not self._owners.leave(bundle):
            return
        closed: list[Topic] = []
        moved = None
        try:
            target, version = await self._begin(bundle, to)
            await self._close(await self.topics_of(bundle), closed)
            if target is not None:
                moved = await self._complete(bundle, target, version, closed)
        finally:
            try:
                await self._owners.release(bundle)  # one that was taken is no longer ours
            finally:
                for topic in closed:
                    self._topics.let_go(topic, moved)

    async def _begin(self, bundle: Bundle, to: str | None) -> tuple[str | None, int]:
        """Choose the next owner and announce the move, so that no other broker takes the bundle."""
        try:
            target = await self._successor(bundle) if to is None else to
            if target is not None and target != NO_BROKER:
                return target, await self._owners.offer(bundle, Offer(target))
        except (MetadataError, ServiceNotReadyError) as error:
            log.warning("%s is closed without a new owner: %s", bundle, error)
        return None, 0

    async def _close(self, topics: list[Topic], closed: list[Topic]) -> None:
        """Close the ledgers: of idle topics first, so that the others wait less. Add those closed to `closed`.

        They are in it also if this call fails or is cancelled.
        """

        async def close(topic: Topic) -> None:
            if await self._topics.quiesce(topic):
                closed.append(topic)

        used = [topic for topic in topics if topic.used]
        for group in ([topic for topic in topics if not topic.used], used):
            # It waits for all of them, whatever happens to one.
            done = await asyncio.gather(*(close(topic) for topic in group), return_exceptions=True)
            for failure in done:
                if failure is not None:
                    raise failure

    async def _complete(self, bundle: Bundle, to: str, version: int, closed: list[Topic]) -> Moved | None:
        names = tuple(str(topic.name) for topic in closed if topic.used)[:HANDOVER_TOPICS_MAX]
        try:
            await self._owners.offer(bundle, Offer(to, closed=True, topics=names), version)
            owner = await self._owners.successor(bundle, HANDOVER_TAKE_S)
        except (MetadataError, ServiceNotReadyError) as error:
            log.warning("%s was not handed to %s: %s", bundle, to, error)
            return None
        if owner is None:
            log.warning("%s was not taken by %s: it is released", bundle, to)
            return None
        self.moved += 1
        log.info("%s is served by %s now", bundle, owner.urls.clients)
        return moved_to(owner.urls)

    def modified(self, bundle: Bundle) -> None:
        """Look whether another broker offers the bundle to this one."""
        self._background.start(self._receive(bundle), f"look at {bundle}")

    async def _receive(self, bundle: Bundle) -> None:
        try:
            offer = await self._owners.accept(bundle)
            if offer is None:
                return
            await self._policies.policies(bundle.namespace)
        except (MetadataError, ServiceNotReadyError) as error:
            log.info("%s is not taken: %s", bundle, error)
            return
        for name in offer.topics[:HANDOVER_TOPICS_MAX]:
            self._background.start(self._load(name), f"load {name}, which was handed over")

    async def _load(self, name: str) -> None:
        async with self._loads:
            try:
                await self._topics.get(parse_topic(name), create=False)
            except QuireError as error:
                log.info("%s is loaded when a client asks for it: %s", name, error)

    async def drain(self) -> None:
        """Hand every bundle to other brokers, and take none any more."""
        self._owners.drain()
        gate = asyncio.Semaphore(HANDOVERS_MAX)

        async def one(bundle: Bundle) -> None:
            async with gate:
                try:
                    await self.move(bundle)
                except QuireError as error:
                    log.warning("could not release %s: %s", bundle, error)

        await asyncio.gather(*(one(bundle) for bundle in self._owners.held))
