"""Claims on topics for tests without bundles."""

from dataclasses import dataclass

from quire_bookie.metadata.store import Node
from quire_broker.names import TopicName


@dataclass
class Claimed:
    """A claim that is confirmed by any node."""

    tenure: int
    key: str = "/namespace/bundle"
    is_confirmed: bool = False

    def check(self, node: Node | None) -> None:
        self.is_confirmed = True


class OwnTopics:
    """Owns every topic, unless `owned` is false."""

    owned = True

    async def tenure(self, topic: TopicName, read: bool) -> int:
        """1 for a topic of ours."""
        return int(self.owned)

    async def claim(self, topic: TopicName) -> Claimed:
        """A claim that is confirmed by any node."""
        return Claimed(int(self.owned))
