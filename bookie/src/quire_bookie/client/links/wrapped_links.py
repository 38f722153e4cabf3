"""Implements `Links` on top of others: the base of those that change a part. Passes everything through."""

from asyncio import TimerHandle
from collections.abc import Callable, Collection

from quire_bookie.client.links.bookie_link import BookieLink, Links, Purpose, V3Link
from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.model import BookieId


class WrappedLinks:
    """Passes everything to other links."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def link(self, bookie: BookieId, purpose: Purpose) -> BookieLink:
        """See Links."""
        return self._links.link(bookie, purpose)

    def v3_link(self, bookie: BookieId, purpose: Purpose = Purpose.V3) -> V3Link:
        """See Links."""
        return self._links.v3_link(bookie, purpose)

    @property
    def suspects(self) -> Collection[BookieId]:
        """See Links."""
        return self._links.suspects

    @property
    def health(self) -> ReplicaHealth:
        """See Links."""
        return self._links.health

    def note_failure(self, bookie: BookieId) -> None:
        """See Links."""
        self._links.note_failure(bookie)

    def now_s(self) -> float:
        """See Links."""
        return self._links.now_s()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """See Links."""
        return self._links.call_later(delay_s, callback)
