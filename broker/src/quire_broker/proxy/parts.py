"""Values that all connections of a proxy share: settings, brokers, credentials, counters."""

from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_broker.proxy.broker_book import BrokerBook
from quire_broker.proxy.broker_link import BrokerConnector
from quire_broker.proxy.targets import Targets
from quire_broker.security.authentication import Authentication
from quire_broker.settings.proxy import ProxyLimits


@dataclass(slots=True)
class ProxyStats:
    """Counters since the proxy started."""

    connections_opened: int = 0
    connections_refused: int = 0
    """CONNECT that was refused: by its credentials, or by the broker that it names."""
    authentications_failed: int = 0
    piped: int = 0
    """Connections that were joined with a broker."""
    reads: int = 0
    bytes: int = 0
    """Moved in both directions."""
    pauses: int = 0
    """How often a side stopped reading, because the other one did not take its bytes."""
    lookups: int = 0
    lookups_rejected: int = 0
    partitions: int = 0
    partitions_rejected: int = 0
    topics: int = 0
    topics_rejected: int = 0
    schemas: int = 0
    schemas_rejected: int = 0
    lookups_running: int = 0
    http_requests: int = 0
    http_failures: int = 0
    websockets: int = 0
    """WebSockets that were joined with a broker."""


@dataclass(slots=True)
class ProxyParts:
    """The shared parts of one proxy."""

    limits: ProxyLimits
    book: BrokerBook
    targets: Targets
    connector: BrokerConnector
    memory: ConnectionMemory
    background: Background
    authentication: Authentication | None = None
    forwards_credentials: bool = False
    """Whether brokers get the tokens of clients too."""
    stats: ProxyStats = field(default_factory=ProxyStats)
