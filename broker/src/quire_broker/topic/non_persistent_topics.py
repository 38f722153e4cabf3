"""The non-persistent topics of this broker. They exist only here, from their first use on; see `non_persistent_topic`.

One that no client has used for `close_after_s` is forgotten: nothing of it could be lost.
"""

import asyncio
from collections.abc import Awaitable, Callable

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_broker.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from quire_broker.limits import UNUSED_TOPIC_S
from quire_broker.names import TopicName
from quire_broker.policies.store import Json
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.topic.claims import TopicOwnership
from quire_broker.topic.non_persistent_topic import NonPersistentTopic
from quire_broker.topic.rules_in_force import RulesInForce
from quire_broker.topic.serving import ServedTopic
from quire_broker.wire.kinds import Moved


@dataclass(frozen=True, slots=True)
class NonPersistentSettings:
    """Whether a broker serves such topics, and when it forgets one that has no client; 0: never."""

    enabled: bool = True
    close_after_s: float = UNUSED_TOPIC_S


class NonPersistentTopics:
    """Registry of the non-persistent topics."""

    def __init__(
        self,
        in_force: RulesInForce,
        settings: NonPersistentSettings,
        subscriptions: DispatchSettings,
        background: Background,
        ownership: TopicOwnership,
        may_create: Callable[[TopicName, Json], Awaitable[bool]],
        limit: Callable[[ServedTopic, Json], None],
    ) -> None:
        """`may_create`: whether a client's first use creates a topic; `limit` applies the rates of policies to it."""
        self._in_force = in_force
        self._settings = settings
        self._subscriptions = subscriptions
        self._background = background
        self._ownership = ownership
        self._may_create = may_create
        self._limit = limit
        self._topics: dict[TopicName, NonPersistentTopic] = {}
        self._closed = False
        self._dropped = 0
        """Messages that subscriptions of forgotten topics lost."""

    @property
    def loaded(self) -> list[NonPersistentTopic]:
        """All topics."""
        return list(self._topics.values())

    @property
    def enabled(self) -> bool:
        """Whether this broker serves such topics."""
        return self._settings.enabled

    @property
    def dropped(self) -> int:
        """Messages that subscriptions lost since the broker started."""
        return self._dropped + sum(topic.dropped for topic in self._topics.values())

    def find(self, name: TopicName) -> NonPersistentTopic | None:
        """Return the topic if it exists here."""
        return self._topics.get(name)

    async def get(self, name: TopicName, *, create: bool = True, may_create: bool = False) -> NonPersistentTopic:
        """Return the topic. TopicNotFoundError if it does not exist and must not be created.

        `may_create`: an administrator creates it, regardless of whether clients may.
        """
        found = self.find(name)
        if found is None:
            policies = await self._admit(name, create=create, may_create=may_create)
            # No await from here on: another broker that takes the bundle makes this one forget the topic.
            found = self.find(name)
            if found is None:
                found = self._topics[name] = NonPersistentTopic(name, self._subscriptions, self._background)
                self._limit(found, policies)
        found.used_at_s = asyncio.get_running_loop().time()
        return found

    async def _admit(self, name: TopicName, *, create: bool, may_create: bool) -> Json:
        """Return the policies of its namespace. Raise an error unless the topic may begin to exist here."""
        if not self.enabled:
            raise NotAllowedError(
                f"this broker serves no non-persistent topics, such as {name}: set enableNonPersistentTopics=true"
            )
        policies = await self._in_force.of_namespace(name.namespace)
        if policies is None:
            raise TopicNotFoundError(f"Namespace {name.namespace} not found")
        recorded = name.partition >= 0 and name.partition < await self._in_force.partitions(name.partitioned)
        if not recorded and not may_create and not (create and await self._may_create(name, policies)):
            raise TopicNotFoundError(f"Topic {name} not found")
        name.require_creatable()
        if not await self._ownership.tenure(name, True):
            raise ServiceNotReadyError(f"{name} is served by another broker; look it up again")
        if self._closed:
            raise ServiceNotReadyError("this broker is shutting down")
        return policies

    def delete(self, name: TopicName, *, force: bool = False) -> None:
        """End a topic. TopicNotFoundError, ConflictError while it is in use."""
        topic = self.find(name)
        if topic is None:
            raise TopicNotFoundError("Topic not found")
        topic.check_deletable(force=force)
        self.let_go(topic)

    def let_go(self, topic: NonPersistentTopic, moved: Moved | None = None) -> None:
        """Forget a topic and disconnect its clients: they go to the new broker, or look it up."""
        if self._topics.get(topic.name) is topic:
            self._dropped += topic.dropped
            del self._topics[topic.name]
        topic.disconnect(moved)

    def tick(self) -> None:
        """Sample the rates, and forget topics that nothing uses. Called periodically."""
        now_s = asyncio.get_running_loop().time()
        for topic in self.loaded:
            topic.sample(now_s)
            wait_s = self._settings.close_after_s
            if wait_s and not topic.used and now_s - topic.used_at_s >= wait_s:
                self.let_go(topic)

    def close(self) -> None:
        """Forget everything and accept nothing more."""
        self._closed = True
        for topic in self.loaded:
            self.let_go(topic)
