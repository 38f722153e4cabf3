"""Messages that nobody consumed in time: acknowledged by the broker, as the namespace's `messageTTL` says.

Publish times are the producers' clocks: a message that is young enough by its own keeps those behind it, until its
ledger was closed that long ago. It must never acknowledge one that may still be wanted because another one is old.
"""

import asyncio
import logging

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import QuireError
from quire_broker.policies.store import PolicyStore
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics

CHECK_INTERVAL_S = 60.0
log = logging.getLogger("quire.broker.topic")


class Expiry:
    """Of the topics that are loaded here."""

    def __init__(self, topics: Topics, policies: PolicyStore, clock: WallClock) -> None:
        self._topics = topics
        self._policies = policies
        self._clock = clock

    async def run(self, interval_s: float = CHECK_INTERVAL_S) -> None:
        """A round after each interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.round()

    async def round(self) -> None:
        """Every topic once. What cannot be done now is done in the next round."""
        for topic in self._topics.loaded:
            try:
                policies = await self._policies.policies(topic.name.namespace)
                ttl_s = (policies or {}).get("message_ttl_in_seconds")
                # Namespaces are also written by others: what is no number of seconds must neither expire nor end this.
                if type(ttl_s) is int and ttl_s > 0:
                    await self._expire(topic, self._clock.now_ms() - ttl_s * 1000)
            except QuireError as error:
                log.info("messages of %s expire later: %s", topic.name, error)

    @staticmethod
    async def _expire(topic: Topic, before_ms: int) -> None:
        for subscription in list(topic.subscriptions.values()):
            if not topic.closing and not subscription.closed and subscription.cursor.backlog:
                await subscription.expire(before_ms)
