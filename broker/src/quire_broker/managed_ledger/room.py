"""What the parts of one managed ledger share. Values only; owned by whoever opens it."""

from dataclasses import dataclass

from quire_bookie.env.background import Background
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.metadata.store import MetadataStore
from quire_broker.managed_ledger.deletion import Deletions
from quire_broker.managed_ledger.ledger_maker import Availability, LedgerMaker
from quire_broker.managed_ledger.ledger_port import Ledgers
from quire_broker.managed_ledger.patience import Backoff
from quire_broker.managed_ledger.segment_deletion import SegmentDeletions
from quire_broker.managed_ledger.settings import ManagedLedgerSettings
from quire_broker.managed_ledger.stored_node import StoredNode
from quire_broker.offload.tier import Tier


@dataclass(frozen=True, slots=True)
class Room:
    """The surroundings of one managed ledger."""

    name: str
    client: Ledgers
    store: MetadataStore
    maker: LedgerMaker
    availability: Availability
    deletions: Deletions
    segments: SegmentDeletions
    tier: Tier
    background: Background
    clock: WallClock
    chance: Chance
    settings: ManagedLedgerSettings
    memory: ConnectionMemory
    """Of the process's connections: reads count in it while they are under way."""

    def backoff(self) -> Backoff:
        """Fresh pauses."""
        return Backoff(self.settings.retry_backoff_s, self.chance)

    def node(self, key: str) -> StoredNode:
        """A node of the metadata store that this owner writes."""
        return StoredNode(self.store, key, self.backoff())
