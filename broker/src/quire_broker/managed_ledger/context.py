"""The dependencies that the parts of one managed ledger share. Values only; the code that opens it owns them."""

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.backoff import Backoff
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.metadata.store import MetadataStore
from quire_broker.managed_ledger.appending.ledger_maker import Availability, LedgerMaker
from quire_broker.managed_ledger.deletion import Deletions
from quire_broker.managed_ledger.ledger_port import Ledgers
from quire_broker.managed_ledger.nodes.stored_node import StoredNode
from quire_broker.managed_ledger.reading.catch_up_turns import CatchUpTurns
from quire_broker.managed_ledger.segment_deletion import SegmentDeletions
from quire_broker.offload.tier import Tier
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.traced_entries import Traces


@dataclass(slots=True)
class ManagedLedgerContext:
    """Shared dependencies of one managed ledger. Only `ManagedLedger.use` changes one: the settings."""

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
    """Memory budget of the process's connections. Running reads count in it."""
    slow: SlowLog
    turns: CatchUpTurns
    """Turns of the broker's reads far behind the tail."""
    traces: Traces | None = None
    """None: nothing is traced."""

    def backoff(self) -> Backoff:
        """Return a new back-off."""
        return Backoff(self.settings.retry_backoff_s, self.chance)

    def node(self, key: str) -> StoredNode:
        """Return a node of the metadata store that this owner writes."""
        return StoredNode(self.store, key, self.backoff())
