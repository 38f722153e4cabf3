"""The settings of a broker and of `quire standalone`, under Pulsar's key names where they exist."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from quire_bookie.config.bookie import BookieConfig, Fraction, Port, StorageConfig
from quire_bookie.config.client_security import ClientSecurityConfig
from quire_bookie.config.connections import ConnectionMemoryConfig
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.recovery import AutoRecoveryConfig
from quire_bookie.config.slow_operations import SlowOperationsConfig
from quire_bookie.config.sources import SECRET, ProcessConfig
from quire_bookie.config.traces import TracesConfig
from quire_bookie.limits import FRAME_LENGTH_BYTES
from quire_bookie.settings.service import ServiceSettings
from quire_broker.config.access import OptionalPort
from quire_broker.config.offload import OffloadConfig
from quire_broker.config.security import BrokerSecurityConfig
from quire_broker.config.without_effect import BROKER_REASONS
from quire_broker.limits import (
    BACKLOG_QUOTA_CHECK_S,
    FRAME_PADDING_BYTES,
    MOVE_CLOSE_S,
    SESSION_TIMEOUT_S,
    STANDALONE_DISK_USAGE_THRESHOLD,
    STANDALONE_GC_QUARANTINE_S,
    STOP_S,
)
from quire_broker.ownership.listeners import parse_bindings, parse_listeners
from quire_broker.policies.backlog_quota import QuotaPolicy
from quire_broker.settings.balancing import BalancingSettings
from quire_broker.settings.clients import ClientLimits, SessionSettings
from quire_broker.settings.compaction import CompactionSettings
from quire_broker.settings.console import ConsoleSettings
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.settings.entry_metadata import parse_interceptors
from quire_broker.settings.managed_ledger import ManagedLedgerSettings, MarkedLedgerSettings
from quire_broker.settings.metrics import MetricsSettings
from quire_broker.settings.policies import DefaultPolicies
from quire_broker.settings.rates import RateSettings
from quire_broker.settings.schemas import SchemaBounds
from quire_broker.settings.topics import InactivitySettings, LoadSettings, UnusedTopicSettings
from quire_broker.settings.websocket import WebSocketSettings

LOOPBACK = "127.0.0.1"
_OLD_LIMIT = "backlogQuotaDefaultLimitGB"
Count = Annotated[int, Field(ge=0)]


def _limit(value: int) -> int:
    if value == 0 or value < -1:
        raise ValueError("a limit is a number above 0, or -1 for none")
    return value


Limit = Annotated[int, AfterValidator(_limit)]


def _listeners(text: str) -> str:
    """Validate the text and return it unchanged."""
    parse_listeners(text)
    return text


def _interceptors(text: str) -> str:
    """Validate the text and return it unchanged."""
    parse_interceptors(text)
    return text


class ManagedLedgerConfig(ProcessConfig):
    """Settings of topics as ledgers: quorums, rollover, cursors, cache."""

    SETTINGS: ClassVar[tuple[type, ...]] = (ManagedLedgerSettings,)

    ensemble_size: int = Field(
        0,
        alias="managedLedgerDefaultEnsembleSize",
        ge=0,
        le=64,
        description="E; 0 means 3, or the number of bookies of a smaller standalone",
    )
    write_quorum: int = Field(0, alias="managedLedgerDefaultWriteQuorum", ge=0, le=64, description="Qw; 0 means E")
    ack_quorum: int = Field(
        0, alias="managedLedgerDefaultAckQuorum", ge=0, le=64, description="Qa; 0 means 2 of 3, else Qw"
    )
    digest_type: Literal["CRC32C", "CRC32", "MAC", "DUMMY"] = Field(
        "CRC32C", alias="managedLedgerDigestType", description="digest that protects entries end to end"
    )
    managed_ledger_password: str = Field(
        "",
        alias="managedLedgerPassword",
        description="password of the ledgers that brokers create, or file:///path of a file with it",
        json_schema_extra=SECRET,
    )

    @model_validator(mode="after")
    def _quorums_are_ordered(self) -> "ManagedLedgerConfig":
        e, w, a = self.ensemble_size, self.write_quorum, self.ack_quorum
        if (e and w and w > e) or (w and a and a > w):
            raise ValueError(f"quorums must satisfy E >= Qw >= Qa; got {e}, {w}, {a}")
        return self


class BacklogQuotaConfig(ProcessConfig):
    """Backlog quotas for namespaces without their own."""

    backlog_quota_check_enabled: bool = Field(
        True, alias="backlogQuotaCheckEnabled", description="false: backlog quotas are not enforced, for any namespace"
    )
    backlog_quota_check_interval_s: int = Field(
        int(BACKLOG_QUOTA_CHECK_S),
        alias="backlogQuotaCheckIntervalInSeconds",
        ge=1,
        description="pause between two checks of the backlogs, in s",
    )
    backlog_quota_default_limit_bytes: Limit = Field(
        -1, alias="backlogQuotaDefaultLimitBytes", description="bytes behind the slowest subscription; -1: no limit"
    )
    backlog_quota_default_limit_s: Limit = Field(
        -1,
        alias="backlogQuotaDefaultLimitSecond",
        description="age of the oldest message that a subscription has not acknowledged, in s; -1: no limit",
    )
    backlog_quota_default_policy: QuotaPolicy = Field(
        QuotaPolicy.HOLD,
        alias="backlogQuotaDefaultRetentionPolicy",
        description="policy above it: producer_request_hold, producer_exception or consumer_backlog_eviction",
    )


class ServingConfig(
    OffloadConfig, BacklogQuotaConfig, ManagedLedgerConfig, ConnectionMemoryConfig, SlowOperationsConfig, TracesConfig
):
    """Settings of the services of a broker."""

    SETTINGS: ClassVar[tuple[type, ...]] = (
        SessionSettings,
        ClientLimits,
        DispatchSettings,
        SchemaBounds,
        LoadSettings,
        UnusedTopicSettings,
        MarkedLedgerSettings,
        InactivitySettings,
        RateSettings,
        DefaultPolicies,
        BalancingSettings,
        CompactionSettings,
        MetricsSettings,
        ConsoleSettings,
        WebSocketSettings,
    )

    @classmethod
    def from_java_file(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Map `backlogQuotaDefaultLimitGB`, which files of older stock brokers hold, to the limit in bytes."""
        keys = dict(super().from_java_file(found))
        gigabytes = str(keys.get(_OLD_LIMIT, "")).strip()
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", gigabytes) and float(gigabytes) > 0:
            del keys[_OLD_LIMIT]
            keys.setdefault(cls.key_of("backlog_quota_default_limit_bytes"), int(float(gigabytes) * 2**30))
        return keys

    @classmethod
    def without_effect(cls, keys: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return a line for each reason why keys of stock brokers have no effect, and the keys that are unknown."""
        return BROKER_REASONS.reports(keys)

    cluster: str = Field("standalone", alias="clusterName", min_length=1, description="name of the Pulsar cluster")
    broker_port: OptionalPort = Field(
        6650, alias="brokerServicePort", description="port of the Pulsar protocol; empty: none; 0: a free one"
    )
    http_port: OptionalPort = Field(
        8080, alias="webServicePort", description="port of REST, health and metrics; empty: none; 0: a free one"
    )
    listen: str = Field("0.0.0.0", alias="bindAddress", description="address to listen on; 0.0.0.0: all")
    advertise: str = Field(
        "",
        alias="advertisedAddress",
        description="host name or address that the broker gives to clients; default: bindAddress, else the host name",
    )
    advertised_listeners: Annotated[str, AfterValidator(_listeners)] = Field(
        "",
        alias="advertisedListeners",
        description="further addresses for clients that name them: name:pulsar://host:port, also pulsar+ssl; by comma",
    )
    shutdown_timeout_ms: int = Field(
        int(STOP_S * 1000),
        alias="brokerShutdownTimeoutMs",
        ge=1000,
        description="how long a broker that is stopped hands its bundles over, half of it, and closes topics, in ms",
    )
    move_close_ms: int = Field(
        int(MOVE_CLOSE_S * 1000),
        alias="brokerMoveCloseTimeoutMs",
        ge=100,
        description="how long the topics of a bundle may take to close when it moves, in ms; then it moves anyway, and "
        "its next owner recovers their ledgers",
    )
    deduplication: bool = Field(
        False, alias="brokerDeduplicationEnabled", description="drop repeated sends of a producer by sequence id"
    )
    entry_metadata_interceptors: Annotated[str, AfterValidator(_interceptors)] = Field(
        "",
        alias="brokerEntryMetadataInterceptors",
        description="what the broker adds to each entry that it stores, by comma: "
        "AppendBrokerTimestampMetadataInterceptor (its time) and AppendIndexMetadataInterceptor (the index of the "
        "message), also with Pulsar's package before it",
    )
    entry_filters: str = Field(
        "",
        alias="entryFilterNames",
        description="entry filters of topics without a policy for them, by comma: properties, or entry points "
        "quire.entry_filters",
    )
    allow_auto_topic_creation: bool = Field(
        True, alias="allowAutoTopicCreation", description="a client's first use creates a topic"
    )
    non_persistent_topics: bool = Field(
        True, alias="enableNonPersistentTopics", description="serve topics whose messages are not stored"
    )


class BrokerConfig(BrokerSecurityConfig, MetadataAccessConfig, ClientSecurityConfig, LedgerClientConfig, ServingConfig):
    """Settings of `quire broker start`."""

    metadata: str = Field(
        "", alias="metadataStoreUrl", description="etcd://host:port,host:port: the cluster's metadata"
    )
    advertised_listeners_file: str = Field(
        "",
        alias="advertisedListenersFile",
        description="file with more listeners in the format of advertisedListeners, read at the start; $(NAME) in it "
        "is an environment variable",
    )
    bind_addresses: Annotated[str, AfterValidator(_listeners)] = Field(
        "",
        alias="bindAddresses",
        description="further ports, each of a listener: name:pulsar://0.0.0.0:port, also pulsar+ssl; by comma. Clients "
        "of such a port need not name the listener, and close commands name the new owner to them",
    )
    metadata_session_timeout_ms: int = Field(
        int(SESSION_TIMEOUT_S * 1000),
        alias="metadataStoreSessionTimeoutMillis",
        ge=2000,
        description="lease of the broker's registration and bundles in the metadata store, in ms: after a crash other "
        "brokers take its bundles when it ends",
    )

    @property
    def serves_tls(self) -> bool:
        """Whether there is a port with TLS."""
        return super().serves_tls or any(one.tls for one in parse_bindings(self.bind_addresses))

    @model_validator(mode="after")
    def _clients_reach_it(self) -> "BrokerConfig":
        require_ports(self)
        others = {self.broker_port, self.broker_port_tls, self.http_port, self.http_port_tls}
        bound = [one.port for one in parse_bindings(self.bind_addresses) if one.port]
        for port in bound:
            if port in others or bound.count(port) > 1:
                raise ValueError(f"bindAddresses has the port {port}, which another service has too; choose another")
        return self


def require_ports(config: "BrokerConfig | StandaloneConfig") -> None:
    """Raise ValueError if clients could not reach the broker at all, or two services have one port."""
    if config.broker_port is None and config.broker_port_tls is None:
        raise ValueError("brokerServicePort and brokerServicePortTls are both empty: give one of them")
    used: dict[int, str] = {}
    for key, port in (
        ("brokerServicePort", config.broker_port),
        ("brokerServicePortTls", config.broker_port_tls),
        ("webServicePort", config.http_port),
        ("webServicePortTls", config.http_port_tls),
    ):
        if port and port in used:
            raise ValueError(f"{used[port]} and {key} are both {port}; give each its own port, or 0 for a free one")
        if port:
            used[port] = key


class StandaloneConfig(
    BrokerSecurityConfig, MetadataAccessConfig, ServingConfig, LedgerClientConfig, AutoRecoveryConfig, StorageConfig
):
    """Settings of `quire standalone`: bookies, broker and metadata in one process."""

    data: str = Field("./quire-data", description="folder for all data")
    bookies: int = Field(1, ge=1, le=64, description="number of bookies; stored with the data, may grow")
    listen: str = Field(
        LOOPBACK, alias="bindAddress", description="address that broker and HTTP listen on; 0.0.0.0: all"
    )
    bookie_host: str = Field(
        LOOPBACK,
        alias="bookieBindAddress",
        description="address that the bookies listen on; 0.0.0.0: all",
    )
    bookie_port: Port = Field(
        3181, alias="bookiePort", description="port of the first bookie, the next ones follow; 0: free ones"
    )
    metadata: str = Field(
        "local", alias="metadataStoreUrl", description="local, or etcd://host:port,host:port of a cluster"
    )

    auto_recovery: bool = Field(
        True,
        alias="autoRecoveryDaemonEnabled",
        description="auditor and replication workers run in this process, too",
    )

    web_socket_service: bool = Field(
        True,
        alias="webSocketServiceEnabled",
        description="serve WebSocket producers, consumers and readers under /ws/ of the HTTP ports; a separate broker "
        "does not by default",
    )
    disk_usage_threshold: Fraction = Field(
        STANDALONE_DISK_USAGE_THRESHOLD,
        alias="diskUsageThreshold",
        description="above this share of the disk no entries are accepted; a separate bookie stops at 0.95",
    )
    gc_quarantine_s: float = Field(
        STANDALONE_GC_QUARANTINE_S,
        alias="gcQuarantineSeconds",
        ge=0,
        description="time to keep a ledger that the metadata no longer names before it is deleted, in s; 0: "
        "it is deleted at once; a separate bookie keeps it for 86400",
    )

    @classmethod
    def missed(cls, keys: Iterable[str]) -> list[str]:
        """Return the keys of bookies among these: the bookies of a standalone do not have them."""
        return [key for key in keys if BookieConfig.field_of(key) is not None]

    @model_validator(mode="after")
    def _clients_reach_it(self) -> "StandaloneConfig":
        require_ports(self)
        return self

    @model_validator(mode="after")
    def _parts_fit_each_other(self) -> "StandaloneConfig":
        message_bytes = self.part(SessionSettings).message_bytes_max
        needed = message_bytes + FRAME_PADDING_BYTES
        frame_bytes = self.part(ServiceSettings).frame_bytes_max + FRAME_LENGTH_BYTES
        if needed > frame_bytes:
            raise ValueError(
                f"nettyMaxFrameSizeBytes {frame_bytes} cannot carry a message of maxMessageSize "
                f"{message_bytes}; it needs {needed}"
            )
        if self.metadata == "local" and self.ensemble_size > self.bookies:
            raise ValueError(
                f"managedLedgerDefaultEnsembleSize {self.ensemble_size} needs {self.ensemble_size} bookies, "
                f"but --bookies is {self.bookies}"
            )
        return self
