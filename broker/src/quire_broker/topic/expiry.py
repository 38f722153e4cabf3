"""Expires messages that were not consumed in time: acknowledges them as `messageTTL` of topic or namespace requires.

Publish times are from the producers' clocks. A message that is young by its own publish time keeps all later ones,
until its ledger was closed that long ago. A message that may still be needed must never be acknowledged because another
one is old.
"""

import asyncio
import logging

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import QuireError
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics

CHECK_INTERVAL_S = 60.0
log = logging.getLogger("quire.broker.topic")


class Expiry:
    """Expires messages of the topics that are loaded here."""

    def __init__(self, topics: Topics, clock: WallClock) -> None:
        self._topics = topics
        self._changed = topics.changed()
        self._clock = clock

    async def run(self, interval_s: float = CHECK_INTERVAL_S) -> None:
        """Check the topics after each interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.round()

    async def round(self) -> None:
        """Check every topic with a backlog once. A topic that fails now is checked in the next round."""
        async for topic in self._changed.round():
            if not topic.has_backlog:
                continue
            self._changed.keep(topic)  # its messages grow old without a change
            try:
                ttl_s = (await self._topics.rules(topic)).get("message_ttl_in_seconds")
                # Other programs also write namespaces: a value that is not a number of seconds must not expire messages
                # or end the loop.
                if type(ttl_s) is int and ttl_s > 0:
                    await self._expire(topic, self._clock.now_ms() - ttl_s * 1000)
            except QuireError as error:
                log.info("could not expire messages of %s, trying again later: %s", topic.name, error)

    @staticmethod
    async def _expire(topic: Topic, before_ms: int) -> None:
        for subscription in list(topic.subscriptions.values()):
            if not topic.closing and not subscription.closed and subscription.cursor.backlog:
                await subscription.expire(before_ms)
