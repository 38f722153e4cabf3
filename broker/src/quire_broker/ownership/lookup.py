"""The answer to *who serves this topic*, for the binary protocol and for REST."""

from quire_broker.errors import NotFoundError, TopicNotFoundError
from quire_broker.names import TopicName
from quire_broker.ownership.isolation import Isolation
from quire_broker.ownership.owners import Owner, Owners


class Lookups:
    """Finds owners; a free bundle becomes ours by being asked for."""

    def __init__(self, owners: Owners, isolation: Isolation | None = None) -> None:
        """Without `isolation` every bundle may be taken."""
        self._owners = owners
        self._isolation = isolation

    async def find(self, topic: TopicName, *, take: bool = True) -> Owner | None:
        """The owner of the topic's bundle, or who is to be asked when we may not own it. TopicNotFoundError,
        ServiceNotReadyError.
        """
        try:
            bundle = await self._owners.bundle_of(topic)
        except NotFoundError as error:
            raise TopicNotFoundError(str(error)) from error
        if take and self._isolation is not None and not self._owners.holds(bundle):
            owner = await self._owners.owner_of(bundle, take=False)
            # Nobody has it: a policy may name the brokers that may.
            owner = owner or await self._isolation.elsewhere(bundle)
            if owner is not None:
                return owner
        return await self._owners.owner_of(bundle, take=take)

    async def bundle_range(self, topic: TopicName) -> str:
        """The range text of the topic's bundle."""
        return (await self._owners.bundle_of(topic)).range

    async def tenure(self, topic: TopicName) -> int:
        """Of this broker's ownership of the topic's bundle, see `Owners.confirmed_tenure`. Takes nothing."""
        return await self._owners.confirmed_tenure(await self._owners.bundle_of(topic))
