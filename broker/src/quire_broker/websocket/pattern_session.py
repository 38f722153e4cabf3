"""The session of a consumer of all topics that match a pattern.

open             asks for the topics, and attaches to them
a new topic      gets a consumer
a deleted topic  loses its consumer; a consumer never creates a topic that was deleted
too many topics  end the session, as it would leave out some
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from quire_broker.errors import BrokerError, ServerError
from quire_broker.limits import WEBSOCKET_RETRY_MAX_S
from quire_broker.names import TopicName
from quire_broker.server.broker_link import code_of
from quire_broker.server.budget import PublishBudget
from quire_broker.settings.websocket import WebSocketSettings
from quire_broker.websocket.attachment import Attachment, Links
from quire_broker.websocket.consumer_session import ConsumerSession
from quire_broker.websocket.dead_letters import DeadLetters
from quire_broker.websocket.parameters import ConsumerParameters, require_few
from quire_broker.websocket.stats import SessionStats
from quire_broker.websocket.topic_consumer import TopicConsumer
from quire_broker.websocket.topic_watch import TopicWatch


class PatternSession(ConsumerSession):
    """Owns the consumers of the topics that match at present, and the task of each."""

    def __init__(
        self,
        settings: WebSocketSettings,
        links: Links,
        pattern: TopicName,
        subscription: str,
        wanted: ConsumerParameters,
        budget: PublishBudget,
        stats: SessionStats,
        dead_letters: DeadLetters | None,
    ) -> None:
        super().__init__(settings, links, [], subscription, wanted, budget, stats, dead_letters)
        self._changed = asyncio.Event()
        self._listed = TopicWatch(links, pattern, self._changed.set)
        self._tasks: dict[TopicName, tuple[TopicConsumer, asyncio.Task[None]]] = {}

    @property
    def attachments(self) -> Sequence[Attachment]:
        """The watch of the list; the consumers have tasks of their own."""
        return [self._listed]

    async def open(self) -> None:
        """Attach to the topics that match. RefusedError: too many; QuireError."""
        await super().open()
        require_few(len(self._listed.topics))
        self._consumers += [self._consumer_at(topic) for topic in sorted(self._listed.topics, key=str)]
        found = await asyncio.gather(*(one.attach() for one in self._consumers), return_exceptions=True)
        for error in found:
            if error is not None and not _is_missing(error):
                raise error

    def _works(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [*super()._works(), self._follow()]

    def _consumer_at(self, topic: TopicName) -> TopicConsumer:
        """Return a consumer. Only a partition may be created, as partitions are listed before their first message."""
        return self._new_consumer(topic, creates=topic.partition >= 0, creates_again=False)

    async def _follow(self) -> None:
        """Keep a consumer for each topic that matches. RefusedError: too many."""
        async with asyncio.TaskGroup() as group:
            for consumer in self._consumers:
                self._tasks[consumer.topic] = consumer, group.create_task(self._keep(consumer))
            while True:
                self._changed.clear()
                topics = self._listed.topics
                require_few(len(topics))
                for topic in self._tasks.keys() - topics:
                    group.create_task(self._leave(*self._tasks.pop(topic)))
                for topic in sorted(topics - self._tasks.keys(), key=str):
                    consumer = self._consumer_at(topic)
                    self._consumers.append(consumer)
                    self._tasks[topic] = consumer, group.create_task(self._keep(consumer))
                await self._changed.wait()

    async def _keep(self, consumer: TopicConsumer) -> None:
        """Attach again whenever the broker has closed the consumer, until cancelled. QuireError.

        A topic that is missing was deleted: the next list omits it, unless it was created again.
        """
        while True:
            try:
                if consumer.link is None:
                    await consumer.attach_in_time()
                await consumer.stay()
            except BrokerError as error:
                if not _is_missing(error):
                    raise
            await asyncio.sleep(WEBSOCKET_RETRY_MAX_S)

    async def _leave(self, consumer: TopicConsumer, task: asyncio.Task[None]) -> None:
        self._consumers.remove(consumer)
        task.cancel()
        await consumer.leave()


def _is_missing(error: BaseException) -> bool:
    return isinstance(error, BrokerError) and code_of(error) is ServerError.TOPIC_NOT_FOUND
