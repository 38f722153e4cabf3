"""Closes topics that nothing uses, and loads them again when time gives them work.

    loaded   without clients and requests for `close_after_s`   -->   closed: saved, in no memory, in every listing
    closed   a request, or the time to delete consumed data     -->   loaded

The broker keeps the bundle. A topic stays loaded while a subscription has a backlog, which expires, counts for quotas
and is in the metrics, and while its ledgers change or are offloaded. It must never close a topic that has a client, and
never delete one (`inactive` does): what closing does not save is not in a topic.
"""

import asyncio
import heapq
import itertools
import logging

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import MetadataError, QuireError
from quire_broker.names import TopicName
from quire_broker.settings.topics import UnusedTopicSettings
from quire_broker.topic.inactive import due_ms
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics

CHECK_S = 5.0
"""Between two rounds."""
CLOSES_AT_ONCE = 4
_CHECKS_PER_STEP = 200
_RETRY_MS = 60_000
log = logging.getLogger("quire.broker.topic")


class UnusedTopics:
    """Closes the unused topics of one broker."""

    def __init__(self, topics: Topics, settings: UnusedTopicSettings, clock: WallClock) -> None:
        self._topics = topics
        self._close_after_s = settings.close_after_s
        self._clock = clock
        self._numbers = itertools.count()
        self._checks: list[tuple[float, int, Topic]] = []
        """Loop times at which topics may be unused for long enough."""
        self._wanted_ms: dict[TopicName, int] = {}
        """When closed topics have work, in ms since the epoch."""
        self._wanted: list[tuple[int, int, TopicName]] = []
        """The same by time. A time that differs is outdated."""
        self._idle_since_s: dict[TopicName, float] = {}
        """Of the closed topics that are deleted when they are inactive."""
        self.closed = 0
        """How many topics were closed."""
        if self._close_after_s:
            topics.on_loaded = self._loaded

    def _loaded(self, topic: Topic) -> None:
        self._wanted_ms.pop(topic.name, None)
        topic.idle_since_s = self._idle_since_s.pop(topic.name, topic.idle_since_s)
        self._check_in(topic, self._close_after_s)

    def _check_in(self, topic: Topic, wait_s: float) -> None:
        at_s = asyncio.get_running_loop().time() + wait_s
        heapq.heappush(self._checks, (at_s, next(self._numbers), topic))

    async def run(self) -> None:
        """Close and load topics until cancelled."""
        while self._close_after_s:
            await asyncio.sleep(CHECK_S)
            await self.round()

    async def round(self) -> None:
        """Close topics that are unused for long enough, and load closed ones that have work now."""
        await asyncio.gather(*(self._close_some() for _ in range(CLOSES_AT_ONCE)))
        await self._load_wanted()

    async def _close_some(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for number in itertools.count(1):
            if not self._checks or self._checks[0][0] > now_s:
                return
            topic = heapq.heappop(self._checks)[2]
            if self._topics.find(topic.name) is topic:
                await self._check(topic)
            if number % _CHECKS_PER_STEP == 0:
                await asyncio.sleep(0)

    async def _check(self, topic: Topic) -> None:
        wait_s = topic.used_at_s + self._close_after_s - asyncio.get_running_loop().time()
        wanted_ms = self._wanted_from_ms(topic)
        if topic.used or topic.must_stay or (wanted_ms is not None and wanted_ms <= self._clock.now_ms()):
            wait_s = self._close_after_s
        if wait_s > 0:
            self._check_in(topic, wait_s)
            return
        # Without an await since the look at its clients: one that comes now waits for the end of the unload.
        await self._topics.unload(topic.name)
        self.closed += 1
        if wanted_ms is not None:
            self._load_at(topic.name, wanted_ms)
            if topic.rules.mode is not None and self._topics.find(topic.name) is None:
                self._idle_since_s[topic.name] = topic.idle_since_s

    def _wanted_from_ms(self, topic: Topic) -> int | None:
        """Return when a topic has work if it is closed now, in ms since the epoch; None: not before its next use."""
        times = topic.ledger.wanted_from_ms(), due_ms(topic, self._clock.now_ms())
        return min([time_ms for time_ms in times if time_ms is not None], default=None)

    def _load_at(self, name: TopicName, wanted_ms: int) -> None:
        if self._topics.find(name) is None:
            self._wanted_ms[name] = wanted_ms
            heapq.heappush(self._wanted, (wanted_ms, next(self._numbers), name))

    async def _load_wanted(self) -> None:
        """Load the closed topics that have work, one at a time. Those of bundles that moved are others' work."""
        while self._wanted and self._wanted[0][0] <= self._clock.now_ms():
            wanted_ms, _, name = heapq.heappop(self._wanted)
            if self._wanted_ms.get(name) != wanted_ms:
                continue
            del self._wanted_ms[name]
            try:
                await self._topics.get(name, create=False)
            except MetadataError as error:
                log.info("could not load %s for its upkeep, trying again later: %s", name, error)
                self._load_at(name, self._clock.now_ms() + _RETRY_MS)
            except QuireError as error:
                log.info("%s is not loaded for its upkeep: %s", name, error)
                self._idle_since_s.pop(name, None)
