"""Compacts the topics that are loaded here when more bytes were added than their threshold, checked periodically.

The threshold is a policy of topic or namespace, else a setting of the broker; 0: a topic is compacted only on request.
"""

import asyncio
import logging

from quire_bookie.errors import QuireError
from quire_broker.settings.compaction import CompactionSettings
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics

log = logging.getLogger("quire.broker.compaction")


class CompactionCheck:
    """Checks the thresholds of one broker's topics."""

    def __init__(self, topics: Topics, settings: CompactionSettings) -> None:
        self._topics = topics
        self._settings = settings

    async def run(self) -> None:
        """Check all topics after each interval, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.check_interval_s)
            await self.round()

    async def round(self) -> None:
        """Check every topic once. A topic that cannot be checked now is checked in the next round."""
        async for topic in self._topics.in_steps():
            try:
                threshold = (await self._topics.rules(topic)).get("compaction_threshold")
                self._check(topic, self._settings.threshold_bytes if threshold is None else threshold)
            except QuireError as error:
                log.info("could not check the compaction threshold of %s, trying again later: %s", topic.name, error)

    @staticmethod
    def _check(topic: Topic, threshold: object) -> None:
        # Other programs also write namespaces: a value that is not a number of bytes must not end the loop.
        if type(threshold) is not int or threshold <= 0 or topic.closing or topic.compaction.running:
            return
        if topic.compaction.pending_bytes > threshold:
            topic.compaction.start()
