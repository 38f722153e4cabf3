"""Values that all sessions of a broker share: settings, topics, lookup, budget, counters."""

from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.slow_log import SlowLog
from quire_broker.ownership.lookup import Lookups
from quire_broker.policies.store import PolicyStore
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.security.authentication import Authentication
from quire_broker.security.authorization import Authorization
from quire_broker.server.budget import PublishBudget
from quire_broker.server.topic_lists import TopicLists
from quire_broker.settings.clients import SessionSettings
from quire_broker.topic.backlog_quota_check import BacklogQuotaCheck
from quire_broker.topic.publish_limit import PublishLimit
from quire_broker.topic.topics import Topics
from quire_broker.traced_entries import Traces


@dataclass(slots=True)
class ServerStats:
    """Counters since the broker started."""

    connections_opened: int = 0
    connections_closed: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    requests: int = 0
    requests_failed: int = 0
    lookups: int = 0
    authentications: int = 0
    authentications_failed: int = 0


@dataclass(slots=True)
class ProducerNames:
    """Generates names for producers without one: `<cluster>-<instance>-<n>`, unique in a cluster."""

    cluster: str
    instance: int
    made: int = 0

    def next(self) -> str:
        """Return the next name."""
        name = f"{self.cluster}-{self.instance}-{self.made}"
        self.made += 1
        return name


@dataclass(slots=True)
class BrokerParts:
    """The shared parts of one broker."""

    settings: SessionSettings
    topics: Topics
    topic_lists: TopicLists
    lookups: Lookups
    policies: PolicyStore
    schemas: SchemaRegistry
    backlog_quotas: BacklogQuotaCheck
    names: ProducerNames
    budget: PublishBudget
    publish_limit: PublishLimit
    """Of all topics together."""
    memory: ConnectionMemory
    slow: SlowLog
    background: Background
    clock: WallClock
    chance: Chance
    authentication: Authentication | None = None
    authorization: Authorization | None = None
    traces: Traces | None = None
    stats: ServerStats = field(default_factory=ServerStats)
