"""Declares the limits of clients: of one connection, and of all together."""

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import MIB
from quire_bookie.settings.declared import MEBIBYTES, setting
from quire_broker import limits


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Limits of a connection."""

    message_bytes_max: int = setting(
        limits.MESSAGE_BYTES_MAX,
        "maxMessageSize",
        "largest message, in bytes",
        short="max_message_size_bytes",
        ge=1024,
        le=limits.MESSAGE_BYTES_MAX,
    )
    keep_alive_s: float = setting(
        limits.KEEP_ALIVE_INTERVAL_S,
        "keepAliveIntervalSeconds",
        "PING after this time without traffic, in s",
        short="keep_alive_interval_s",
        kind=int,
        ge=1,
    )
    pending_publishes_max: int = setting(
        limits.PENDING_PUBLISHES_MAX,
        "maxPendingPublishRequestsPerConnection",
        "reading pauses above it",
        short="max_pending_publishes_per_connection",
        ge=1,
    )
    request_s: float = setting(
        limits.CLIENT_REQUEST_S,
        "brokerClientRequestTimeoutSeconds",
        "a request of a client that takes longer gets an error, in s; stock clients wait for 30 s",
        short="client_request_timeout_s",
        kind=int,
        ge=1,
        le=3600,
    )
    requests_max: int = limits.REQUESTS_IN_FLIGHT_MAX
    name_characters_max: int = setting(
        limits.NAME_CHARACTERS_MAX,
        "nameMaxCharacters",
        "longest name of a subscription, a producer or a consumer",
        ge=64,
        le=8192,
    )
    patterns_evaluated: bool = setting(
        True,
        "enableBrokerSideSubscriptionPatternEvaluation",
        "whether the broker tells clients that subscribe by a pattern about new and deleted topics",
    )
    pattern_characters_max: int = setting(
        limits.SUBSCRIPTION_PATTERN_CHARACTERS_MAX,
        "subscriptionPatternMaxLength",
        "longest pattern that the broker evaluates; clients with a longer one list the topics periodically",
        ge=1,
        le=1000,
    )
    topic_watchers_max: int = setting(
        limits.TOPIC_WATCHERS_MAX,
        "maxTopicListWatchersPerConnection",
        "lists of topics that one connection watches",
        ge=0,
        le=10_000,
    )
    entry_metadata_sent: bool = setting(
        False,
        "exposingBrokerEntryMetadataToClientEnabled",
        "send what brokerEntryMetadataInterceptors add to those clients that declare that they understand it",
    )
    server_version: str = "Quire"

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame of an admitted client."""
        return self.message_bytes_max + limits.FRAME_PADDING_BYTES


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of all connections together. 0: no limit of connections."""

    connections_max: int = setting(
        limits.CONNECTIONS_MAX,
        "brokerMaxConnections",
        "concurrent connections of the Pulsar protocol; 0: no limit",
        short="max_connections",
        ge=0,
    )
    connections_per_address_max: int = setting(
        limits.CONNECTIONS_PER_ADDRESS_MAX,
        "brokerMaxConnectionsPerIp",
        "the same of one client address; 0: no limit",
        short="max_connections_per_address",
        ge=0,
    )
    publish_bytes_max: int = setting(
        limits.PUBLISH_BYTES_MAX,
        "maxMessagePublishBufferSizeInMB",
        "unstored messages of all connections, in MiB",
        short="publish_buffer_mb",
        unit=MEBIBYTES,
        ge=limits.CONNECTION_PUBLISH_BYTES_MAX // MIB,
    )
