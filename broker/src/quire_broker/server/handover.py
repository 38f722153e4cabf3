"""Moves bundles to other brokers so that their clients wait as briefly as possible.

    old owner                                     new owner (`receiving`)
    close idle topics, a few at a time
    offer the bundle to one broker          -->   prepare the topics with clients
    wait until it is ready                  <--   answer the offer
    close the topics with clients, and with the
    same write complete the offer           -->   take the bundle, load these topics
    name the new owner to all clients       -->   their requests wait for the load

The clients are sent to the new owner at once if it has answered; else when it owns the bundle. The offer is completed
after the close if a topic takes long to close, or if the joint write fails. Without another broker the bundle is
released. Each step may fail: then clients look up their topics. A new owner fences the ledgers whatever the old one
believes, so the offer saves time and guarantees nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TypeVar

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BadVersionError, MetadataError, QuireError
from quire_bookie.metadata.joint_write import JointWrite, Place
from quire_broker.errors import ServiceNotReadyError
from quire_broker.limits import (
    HANDOVER_CLOSES_MAX,
    HANDOVER_PREPARE_S,
    HANDOVER_SILENT_S,
    HANDOVER_TAKE_S,
    HANDOVER_TOPICS_MAX,
    HANDOVERS_MAX,
    MOVE_CLOSE_S,
)
from quire_broker.ownership.offers import Offer
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owners, owner_urls
from quire_broker.policies.store import PolicyStore
from quire_broker.server.steps import Steps
from quire_broker.topic.non_persistent_topic import NonPersistentTopic
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics
from quire_broker.topic_steps import in_steps
from quire_broker.wire.kinds import Moved

T = TypeVar("T", Topic, NonPersistentTopic)
NO_BROKER = ""
"""As the next owner: the bundle is released."""
log = logging.getLogger("quire.broker.handover")


def moved_to(urls: BrokerUrls) -> Moved:
    """Return the addresses for close commands."""
    listeners = tuple((one.name, Moved(one.native, one.native_tls)) for one in urls.listeners)
    return Moved(urls.native, urls.native_tls, listeners)


@dataclass(frozen=True, slots=True)
class _Target:
    """The next owner of a bundle that is offered to it."""

    broker_id: str
    version: int
    """The version of the bundle's node with the offer."""
    ready: BrokerUrls | None = None
    """Its addresses, once it has prepared the topics."""


class Handover:
    """Moves the bundles of one broker."""

    def __init__(
        self,
        owners: Owners,
        topics: Topics,
        policies: PolicyStore,
        successor: Callable[[Bundle], Awaitable[str | None]],
        close_s: float = MOVE_CLOSE_S,
    ) -> None:
        """`successor`: chooses the id of the broker that gets a bundle; None: there is none.

        `close_s`: how long the topics of a bundle may take to close.
        """
        self._owners = owners
        self._topics = topics
        self._policies = policies
        self._successor = successor
        self._close_s = close_s
        self._silent_until_s: dict[str, float] = {}
        """Brokers that did not prepare in time, by id: other moves to them do not wait."""
        self.moved = 0
        """Bundles that another broker took from this one."""

    async def topics_of(self, bundle: Bundle) -> list[Topic]:
        """Return the loaded topics of a bundle; without the metadata store possibly others of its namespace."""
        return await self._of(bundle, self._topics.loaded)

    async def let_go_unstored(self, bundle: Bundle, moved: Moved | None = None) -> None:
        """Forget the non-persistent topics of a bundle; their clients open them at the new owner."""
        loaded = self._topics.non_persistent.loaded
        for topic in await self._of(bundle, loaded) if loaded else ():
            self._topics.non_persistent.let_go(topic, moved)

    async def _of(self, bundle: Bundle, loaded: Sequence[T]) -> list[T]:
        try:
            ring = await self._policies.bundles(bundle.namespace)
        except QuireError:
            ring = None
        found = []
        async for topic in in_steps(loaded):
            # Without the bundles, closing one topic too many is better than keeping one.
            if topic.name.namespace == bundle.namespace and (
                ring is None or ring.bundle_at(topic.hash) == bundle.range
            ):
                found.append(topic)
        return found

    async def move(self, bundle: Bundle, to: str | None = None) -> None:
        """Hand a bundle to the broker `to`, or to any that may own it; release it if there is none, or for NO_BROKER.

        Does nothing for a bundle that is not ours. One that is just being divided moves in its parts.
        """
        for part in await self._owners.parts_of(bundle):
            await self._move(part, to)

    async def _move(self, bundle: Bundle, to: str | None) -> None:
        if not self._owners.leave(bundle):
            return
        closed: list[Topic] = []
        moved, steps = None, Steps()
        try:
            topics = await self.topics_of(bundle)
            idle = [topic for topic in topics if not topic.used]
            await self._close_in_time(bundle, idle, closed, self._close_idle(idle, closed))
            steps.done("idle closed")
            used = _used(topics)
            target = await self._begin(bundle, to, used)
            steps.done("prepared")
            joint = None if target is None else self._joint(bundle, target, used)
            await self._close_in_time(bundle, used, closed, self._close_used(used, closed, joint))
            steps.done("closed")
            if target is not None and joint is not None:
                moved = await self._give(bundle, target, closed, joint, steps)
        finally:
            try:
                await self._owners.release(bundle)  # one that was taken is no longer ours
            finally:
                for topic in closed:
                    self._topics.let_go(topic, moved)
                await self.let_go_unstored(bundle, moved)

    async def _begin(self, bundle: Bundle, to: str | None, used: list[Topic]) -> _Target | None:
        """Choose the next owner and announce the move, so that no other broker takes the bundle. Let it prepare."""
        try:
            target = await self._successor(bundle) if to is None else to
            if target is None or target == NO_BROKER:
                return None
            names = _named(used)
            if not names or self._is_silent(target):
                return _Target(target, await self._owners.offer(bundle, Offer(target, topics=names)))
            return await self._prepared(bundle, Offer(target, topics=names))
        except (MetadataError, ServiceNotReadyError) as error:
            log.warning("%s is closed without a new owner: %s", bundle, error)
        return None

    def _is_silent(self, broker_id: str) -> bool:
        return asyncio.get_running_loop().time() < self._silent_until_s.get(broker_id, 0.0)

    async def _prepared(self, bundle: Bundle, offer: Offer) -> _Target:
        """Offer the bundle, and wait for a short time until the next owner is ready."""
        readiness = self._owners.readiness
        async with readiness.watching(str(bundle)) as watch:
            version = await self._owners.offer(bundle, offer)
            try:
                async with asyncio.timeout(HANDOVER_PREPARE_S):
                    data = await readiness.answer(watch, str(bundle), version)
            except TimeoutError:
                log.info("%s is given to %s, which did not prepare in time", bundle, offer.to)
                self._silent_until_s[offer.to] = asyncio.get_running_loop().time() + HANDOVER_SILENT_S
                return _Target(offer.to, version)
        self._silent_until_s.pop(offer.to, None)
        return _Target(offer.to, version, owner_urls(data))

    def _joint(self, bundle: Bundle, target: _Target, used: list[Topic]) -> JointWrite:
        """Return the write that closes the topics with clients and completes the offer."""
        offer = Offer(target.broker_id, closed=True, topics=_named(used))
        return self._owners.offer_with(bundle, offer, target.version)

    async def _close_in_time(
        self, bundle: Bundle, topics: list[Topic], closed: list[Topic], closing: Coroutine[None, None, None]
    ) -> None:
        """Close the ledgers, but give the bundle away without that if it takes too long: the next owner fences them."""
        try:
            async with asyncio.timeout(self._close_s):
                await closing
        except TimeoutError:
            left = len(set(topics) - set(closed))
            log.warning(
                "%d of %d topics of %s were not closed in %.1f s: the next owner recovers their ledgers",
                *(left, len(topics), bundle, self._close_s),
            )

    async def _close_idle(self, topics: list[Topic], closed: list[Topic]) -> None:
        """Close topics without clients, so slowly that the others are served meanwhile. Add those closed to `closed`.

        They are in it also if this call fails or is cancelled.
        """
        left = iter(topics)

        async def some() -> None:
            for topic in left:
                if not topic.used and await self._topics.quiesce(topic):
                    closed.append(topic)

        await _all(some() for _ in range(HANDOVER_CLOSES_MAX))

    async def _close_used(self, topics: list[Topic], closed: list[Topic], joint: JointWrite | None) -> None:
        """Close topics with clients at the same time, with one write. Add those closed to `closed`, as above."""

        async def close(topic: Topic, place: Place | None) -> None:
            try:
                if await self._topics.quiesce(topic, place):
                    closed.append(topic)
            finally:
                if place is not None:
                    place.leave()

        places = [(topic, None if joint is None else joint.place()) for topic in topics]
        await _all(close(topic, place) for topic, place in places)

    async def _give(
        self, bundle: Bundle, target: _Target, closed: list[Topic], joint: JointWrite, steps: Steps
    ) -> Moved | None:
        """Complete the offer, and send the clients to the new owner, at once if it is ready. Return where it is."""
        giving = asyncio.ensure_future(self._complete(bundle, target, _named(_used(closed)), joint))
        if target.ready is not None:
            for topic in closed:
                self._topics.let_go(topic, moved_to(target.ready))
        owner = await giving
        steps.done("taken")
        if owner is None:
            return None
        self.moved += 1
        log.info("%s is served by %s now: %s", bundle, owner.clients, steps)
        return moved_to(owner)

    async def _complete(
        self, bundle: Bundle, target: _Target, names: tuple[str, ...], joint: JointWrite
    ) -> BrokerUrls | None:
        """Let the next owner take the bundle. None if it does not."""
        try:
            await joint.settle()
            if not joint.is_concluded:
                await self._offer_alone(bundle, Offer(target.broker_id, closed=True, topics=names), target, joint)
            owner = await self._owners.successor(bundle, HANDOVER_TAKE_S)
        except (MetadataError, ServiceNotReadyError) as error:
            log.warning("%s was not handed to %s: %s", bundle, target.broker_id, error)
            return None
        if owner is None:
            log.warning("%s was not taken by %s: it is released", bundle, target.broker_id)
            return None
        return owner.urls

    async def _offer_alone(self, bundle: Bundle, offer: Offer, target: _Target, joint: JointWrite) -> None:
        try:
            await self._owners.offer(bundle, offer, target.version)
        except BadVersionError:
            if not joint.is_unknown:  # else the joint write has completed the offer
                raise

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


def _used(topics: list[Topic]) -> list[Topic]:
    """Return the topics with clients."""
    return [topic for topic in topics if topic.used]


def _named(used: list[Topic]) -> tuple[str, ...]:
    """Return the names of topics, up to the bound of an offer."""
    return tuple(str(topic.name) for topic in used)[:HANDOVER_TOPICS_MAX]


async def _all(works: Iterable[Coroutine[None, None, None]]) -> None:
    """Wait for all of them, whatever happens to one, then raise the first failure."""
    for failure in await asyncio.gather(*works, return_exceptions=True):
        if failure is not None:
            raise failure
