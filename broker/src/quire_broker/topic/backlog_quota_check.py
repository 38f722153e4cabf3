"""Enforces the backlog quotas of the topics that are loaded here, periodically and for each new producer.

    consumer_backlog_eviction   a check skips the oldest messages of the subscriptions that are too far behind
    producer_request_hold       a check closes the producers; new ones are refused until the backlog is below the
    producer_exception          limit: the first kind makes clients wait, the second makes them fail

Between two checks a topic may exceed its quota by the messages that arrive meanwhile. A producer must never be refused
because of a message that cannot be read now.
"""

import asyncio
import logging
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import QuireError
from quire_broker.errors import ProducerHoldError, ProducerQuotaError
from quire_broker.limits import BACKLOG_QUOTA_CHECK_S
from quire_broker.policies.backlog_quota import BacklogQuota, BacklogQuotas, QuotaKind, QuotaPolicy, quotas_of
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import Topics

log = logging.getLogger("quire.broker.topic")


@dataclass(frozen=True, slots=True)
class BacklogQuotaSettings:
    """The quotas of namespaces without their own. If `enabled` is false, nothing is checked in any namespace."""

    enabled: bool = True
    check_interval_s: float = BACKLOG_QUOTA_CHECK_S
    default: BacklogQuotas = field(default_factory=BacklogQuotas)


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that a topic exceeds, and the measured value."""

    kind: QuotaKind
    quota: BacklogQuota
    found: int
    """The measured value in bytes or seconds."""

    def __str__(self) -> str:
        unit = "bytes" if self.kind is QuotaKind.SIZE else "s"
        return f"backlog of {self.found} {unit}, the {self.kind} quota is {self.quota.limit}"


class BacklogQuotaCheck:
    """Checks the quotas of one broker's topics."""

    def __init__(self, topics: Topics, settings: BacklogQuotaSettings, clock: WallClock) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._changed = topics.changed() if settings.enabled else None

    async def admit(self, topic: Topic) -> None:
        """Raise ProducerHoldError or ProducerQuotaError if a topic accepts no producers.

        Errors of the metadata store.
        """
        if not self._settings.enabled:
            return
        for found in await self._exceeded(topic):
            if found.quota.policy is QuotaPolicy.HOLD:
                raise ProducerHoldError(f"Cannot create producer on topic with backlog quota exceeded: {found}")
            if found.quota.policy is QuotaPolicy.REFUSE:
                raise ProducerQuotaError(f"Cannot create producer on topic with backlog quota exceeded: {found}")

    async def run(self) -> None:
        """Check the topics after each interval, until cancelled."""
        while self._changed is not None:
            await asyncio.sleep(self._settings.check_interval_s)
            await self.round()

    async def round(self) -> None:
        """Check every topic that changed or has a backlog once. A backlog that cannot be read now is read again."""
        assert self._changed is not None, "nothing is checked"
        async for topic in self._changed.round():
            if topic.has_backlog:
                self._changed.keep(topic)  # it grows old without a change
            try:
                for found in await self._exceeded(topic):
                    if not topic.closing:
                        await self._act(topic, found)
            except QuireError as error:
                log.info("could not check the backlog of %s, trying again later: %s", topic.name, error)

    async def _exceeded(self, topic: Topic) -> list[Exceeded]:
        backlog = topic.backlog
        quotas = backlog.quotas = quotas_of(await self._topics.rules(topic), self._settings.default)
        found = []
        if quotas.size is not None and (size_bytes := backlog.size_bytes) >= quotas.size.limit:
            found.append(Exceeded(QuotaKind.SIZE, quotas.size, size_bytes))
        if quotas.age is not None:
            age_ms = await self._age_ms(topic)
            if age_ms > quotas.age.limit * 1000:
                found.append(Exceeded(QuotaKind.AGE, quotas.age, age_ms // 1000))
        return found

    async def _age_ms(self, topic: Topic) -> int:
        try:
            oldest = await topic.backlog.find_oldest()
        except QuireError as error:
            log.info("could not read the oldest message of %s now: %s", topic.name, error)
            return 0
        return 0 if oldest is None else self._clock.now_ms() - oldest.time_ms

    async def _act(self, topic: Topic, found: Exceeded) -> None:
        if found.quota.policy is not QuotaPolicy.EVICT:
            producers = topic.producers.everyone
            if producers:
                log.warning("%s: %s: disconnecting %d producers", topic.name, found, len(producers))
            for producer in producers:
                topic.release_producer(producer)
            return
        log.warning("%s: %s: skipping the oldest messages of the slowest subscriptions", topic.name, found)
        if found.kind is QuotaKind.SIZE:
            await topic.backlog.evict_size(found.quota.limit)
        else:
            await topic.backlog.evict_age(self._clock.now_ms() - found.quota.limit * 1000)
