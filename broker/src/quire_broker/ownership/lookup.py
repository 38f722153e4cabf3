"""The answer to *who serves this topic*, for the binary protocol and for REST."""

from quire_broker.errors import NotFoundError, TopicNotFoundError
from quire_broker.ownership.owners import Owner, Owners
from quire_broker.topic.topic_names import TopicName


class Lookups:
    """Finds owners; a free bundle becomes ours by being asked for."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    async def find(self, topic: TopicName, *, take: bool = True) -> Owner | None:
        """The owner of the topic's bundle. TopicNotFoundError when its namespace does not exist."""
        try:
            bundle = await self._owners.bundle_of(topic)
        except NotFoundError as error:
            raise TopicNotFoundError(str(error)) from error
        return await self._owners.owner_of(bundle, take=take)

    async def bundle_range(self, topic: TopicName) -> str:
        """The range text of the topic's bundle."""
        return (await self._owners.bundle_of(topic)).range

    async def is_ours(self, topic: TopicName) -> bool:
        """Whether this broker holds the topic's bundle. Takes nothing."""
        return self._owners.holds(await self._owners.bundle_of(topic))
