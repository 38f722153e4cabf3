"""Deletes topics that are inactive, and subscriptions that expired, as policies or the broker's settings require.

    topic          no clients for `topic_after_s`, and no subscription, or (delete_when_subscriptions_caught_up) no
                   backlog; its retention is over, too
    subscription   no consumer for `subscription_after_s`; not a replicated one

A round visits only loaded topics with such rules; no topic has a timer. Before a topic is deleted its broker reads
that it still owns it, and looks at its clients in the same step in which it closes the topic to them. It must never
delete a topic with a client, or with a message that a subscription has not acknowledged.
"""

import asyncio
import logging

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import MetadataError, QuireError
from quire_broker.names import TopicName
from quire_broker.policies.inactivity import DeleteMode
from quire_broker.settings.topics import InactivitySettings
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics

RETURN_S = 300.0
"""After a topic was loaded, no subscription expires for this time."""
log = logging.getLogger("quire.broker.topic")


class InactiveTopics:
    """Deletes the inactive topics and expired subscriptions of one broker."""

    def __init__(self, topics: Topics, settings: InactivitySettings, clock: WallClock) -> None:
        self._topics = topics
        self._interval_s = settings.check_interval_s
        self._clock = clock
        self._half_deleted: set[TopicName] = set()
        """Topics whose deletion failed: the next round tries again."""
        self.deleted = 0
        """How many topics were deleted."""
        self.expired = 0
        """How many subscriptions were deleted."""

    async def run(self) -> None:
        """Check after each interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Check every loaded topic that has rules once."""
        await self._delete_rest()
        async for topic in self._topics.with_rules():
            try:
                await self._expire(topic)
                if self._is_due(topic):
                    await self._delete(topic)
            except QuireError as error:
                log.info("could not check whether %s is inactive, trying again later: %s", topic.name, error)

    @staticmethod
    def _is_due(topic: Topic) -> bool:
        rules, now_s = topic.rules, asyncio.get_running_loop().time()
        if is_active(topic):
            topic.idle_since_s = now_s
        wait_s = max(rules.topic_after_s, topic.ledger.retained_s())
        return rules.mode is not None and not topic.closing and now_s - topic.idle_since_s >= wait_s

    async def _delete(self, topic: Topic) -> None:
        idle_s = asyncio.get_running_loop().time() - topic.idle_since_s
        try:
            if not await self._topics.delete_inactive(topic, is_active):
                return
        except QuireError:
            if topic.closing:
                self._half_deleted.add(topic.name)
            raise
        self.deleted += 1
        log.info("deleted %s: inactive for %.0f s, policy %s", topic.name, idle_s, topic.rules.mode)

    async def _delete_rest(self) -> None:
        """Load topics whose deletion failed, unless a client did. They are inactive since then."""
        self._half_deleted = {name for name in self._half_deleted if self._topics.find(name) is None}
        for name in list(self._half_deleted):
            try:
                topic = await self._topics.get(name, create=False)
            except MetadataError as error:
                log.info("cannot load %s to delete the rest of it yet: %s", name, error)
                return
            except QuireError as error:
                log.info("nothing is left to delete of %s: %s", name, error)
            else:
                topic.idle_since_s = float("-inf")
            self._half_deleted.discard(name)

    async def _expire(self, topic: Topic) -> None:
        after_ms = topic.rules.subscription_after_s * 1000
        # Until then clients of a topic that another broker served may come back.
        if not after_ms or asyncio.get_running_loop().time() - topic.loaded_s < RETURN_S:
            return
        for subscription in topic.durable_subscriptions:
            idle_ms = self._clock.now_ms() - subscription.cursor.last_active_ms
            if topic.closing or not may_expire(subscription) or idle_ms < after_ms:
                continue
            log.info(
                "deleting subscription %s of %s with a backlog of %d: no consumer for %d s",
                subscription.name,
                topic.name,
                subscription.backlog,
                idle_ms // 1000,
            )
            # Without an await since the look at its consumers: one that comes now waits for the end of the deletion.
            await topic.drop_subscription(subscription.name)
            self.expired += 1


def is_active(topic: Topic) -> bool:
    """Return whether its policy keeps a topic because of its clients, subscriptions or messages."""
    subscriptions = topic.subscriptions.values()
    if topic.used or topic.changing:
        return True
    if topic.rules.mode is DeleteMode.CAUGHT_UP:
        return any(one.cursor.backlog > 0 for one in subscriptions)
    return bool(subscriptions)


def may_expire(subscription: Subscription) -> bool:
    """Return whether a subscription may be deleted when it is idle for long enough."""
    return not (subscription.consumers or subscription.changing or subscription.replicated or subscription.closed)


def due_ms(topic: Topic, now_ms: int) -> int | None:
    """Return when a topic has something to delete if nothing uses it until then, in ms since the epoch; None: never."""
    rules, found = topic.rules, []
    if rules.mode is not None and not is_active(topic):
        wait_s = max(rules.topic_after_s, topic.ledger.retained_s())
        if wait_s != float("inf"):
            idle_s = asyncio.get_running_loop().time() - topic.idle_since_s
            found.append(now_ms + int((wait_s - idle_s) * 1000))
    if rules.subscription_after_s:
        idle = [one for one in topic.durable_subscriptions if may_expire(one)]
        found += [one.cursor.last_active_ms + rules.subscription_after_s * 1000 for one in idle]
    return min(found, default=None)
