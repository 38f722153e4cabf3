"""Applies changed policies to the loaded topics that they concern.

Each pass visits every loaded topic, and each new partitioned topic of the cluster is a change. So changes that are
noticed during a pass wait for the next one together: thousands of them cost two passes and not thousands.
"""

from collections.abc import Awaitable, Callable

from quire_bookie.env.background import Background
from quire_broker.names import TopicName
from quire_broker.policies.store import nodes_of


class PolicyChanges:
    """Collects the changed nodes of one broker. `apply` applies the policies of the topics that a condition names."""

    def __init__(self, apply: Callable[[Callable[[TopicName], bool]], Awaitable[None]], background: Background) -> None:
        self._apply = apply
        self._background = background
        self._changed: set[str] = set()
        self._applying = False

    def notice(self, node: str) -> None:
        """Apply a changed node soon. Empty: maybe any node has changed."""
        self._changed.add(node)
        if not self._applying:
            self._applying = True
            self._background.start(self._run(), "changed policies")

    async def _run(self) -> None:
        try:
            while self._changed:
                changed, self._changed = frozenset(self._changed), set()
                await self._apply(_concerned(changed))
        finally:
            self._applying = False


def _concerned(changed: frozenset[str]) -> Callable[[TopicName], bool]:
    """Return whether policies of a topic may be in one of these nodes."""
    return lambda topic: "" in changed or not changed.isdisjoint(nodes_of(topic))
