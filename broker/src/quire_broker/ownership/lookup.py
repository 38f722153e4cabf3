"""Answers which broker serves a topic, for the binary protocol and for REST."""

from quire_broker.errors import NotFoundError, TopicNotFoundError
from quire_broker.names import TopicName
from quire_broker.ownership.isolation import Isolation
from quire_broker.ownership.owners import Owner, Owners


class Lookups:
    """Finds owners; this broker takes a free bundle when it is asked for it."""

    def __init__(self, owners: Owners, isolation: Isolation | None = None) -> None:
        """Without `isolation` every bundle may be taken."""
        self._owners = owners
        self._isolation = isolation

    async def find(self, topic: TopicName, *, take: bool = True) -> Owner | None:
        """Return the owner of the topic's bundle, or a broker that may own it if this one may not.

        TopicNotFoundError, ServiceNotReadyError.
        """
        try:
            bundle = await self._owners.bundle_of(topic)
        except NotFoundError as error:
            raise TopicNotFoundError(str(error)) from error
        if take and self._isolation is not None and not self._owners.holds(bundle):
            owner = await self._owners.owner_of(bundle, take=False)
            # The bundle is free: a policy may name the brokers that may own it.
            owner = owner or await self._isolation.elsewhere(bundle)
            if owner is not None:
                return owner
        return await self._owners.owner_of(bundle, take=take)

    async def bundle_range(self, topic: TopicName) -> str:
        """Return the range text of the topic's bundle."""
        return (await self._owners.bundle_of(topic)).range

    async def tenure(self, topic: TopicName) -> int:
        """Return the tenure of the topic's bundle, see `Owners.confirmed_tenure`. Takes no bundle."""
        return await self._owners.confirmed_tenure(await self._owners.bundle_of(topic))
