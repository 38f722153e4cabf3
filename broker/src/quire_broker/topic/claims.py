"""Describes how topics learn that this broker may open them."""

from typing import Protocol

from quire_broker.managed_ledger.claim import Claim
from quire_broker.names import TopicName


class TopicClaim(Claim, Protocol):
    """The claim on the managed ledger of a topic whose bundle this broker owns, as far as it knows."""

    @property
    def tenure(self) -> int:
        """The tenure of the bundle when the claim was made; 0 if it is not ours beyond doubt."""
        ...

    @property
    def is_confirmed(self) -> bool:
        """Whether the node was read, and showed that the bundle is ours in this tenure."""
        ...


class TopicOwnership(Protocol):
    """Knows which topics this broker owns."""

    async def tenure(self, topic: TopicName, read: bool) -> int:
        """Return the tenure of the topic's bundle; with `read`, read its node first. 0 if it is not ours."""
        ...

    async def claim(self, topic: TopicName) -> TopicClaim:
        """Return a claim on the topic's ledger. Waits for a bundle that another broker is giving to this one."""
        ...
