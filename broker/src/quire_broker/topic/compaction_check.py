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
        self._changed = topics.changed()
        self._settings = settings

    async def run(self) -> None:
        """Check the topics after each interval, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.check_interval_s)
            await self.round()

    async def round(self) -> None:
        """Check every topic that changed once. One that cannot be checked or compacted now is checked again."""
        async for topic in self._changed.round():
            try:
                threshold = (await self._topics.rules(topic)).get("compaction_threshold")
                if self._check(topic, self._settings.threshold_bytes if threshold is None else threshold):
                    self._changed.keep(topic)
            except QuireError as error:
                self._changed.keep(topic)
                log.info("could not check the compaction threshold of %s, trying again later: %s", topic.name, error)

    @staticmethod
    def _check(topic: Topic, threshold: object) -> bool:
        """Compact a topic above the threshold. Return whether it is above."""
        # Other programs also write namespaces: a value that is not a number of bytes must not end the loop.
        if type(threshold) is not int or threshold <= 0 or topic.closing:
            return False
        is_above = topic.compaction.pending_bytes > threshold
        if is_above and not topic.compaction.running:
            topic.compaction.start()
        return is_above
