"""Maps the configuration to the settings of the broker's packages. Pure: starts nothing, reads nothing."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from quire_bookie.cli.bookie_settings import default_host, local_host, storage_settings
from quire_bookie.cli.connection_memory import memory_settings
from quire_bookie.cli.own_address import ANY_ADDRESS
from quire_bookie.env.machine import machine_memory_bytes
from quire_bookie.errors import ConfigError
from quire_bookie.limits import BATCH_READ_BYTES_MAX, FRAME_BYTES_MAX, KIB
from quire_bookie.metadata.url import EtcdLocation, parse_metadata_url
from quire_bookie.model import DigestType
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from quire_bookie.settings.slow import SlowSettings
from quire_bookie.settings.traces import TraceSettings
from quire_broker.cli.access_settings import access_settings
from quire_broker.cli.offload_settings import offload_settings
from quire_broker.config.broker import (
    LOOPBACK,
    BacklogQuotaConfig,
    BrokerConfig,
    ManagedLedgerConfig,
    ServingConfig,
    StandaloneConfig,
)
from quire_broker.offload.settings import TierSettings
from quire_broker.ownership.listeners import parse_bindings, parse_listeners
from quire_broker.policies.backlog_quota import BacklogQuota, BacklogQuotas
from quire_broker.server.broker import BrokerSettings
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
from quire_broker.standalone import StandaloneSettings, quorums
from quire_broker.topic.backlog_quota_check import BacklogQuotaSettings
from quire_broker.topic.deduplication import DeduplicationSettings
from quire_broker.topic.non_persistent_topics import NonPersistentSettings
from quire_broker.topic.topic import TopicSettings
from quire_broker.topic.topics import TopicsSettings

_DIGESTS = {
    "CRC32C": DigestType.CRC32C,
    "CRC32": DigestType.CRC32,
    "MAC": DigestType.HMAC,
    "DUMMY": DigestType.DUMMY,
}
LOCAL = "local"
LOCALHOST = "localhost"
_STATE_HEADROOM_BYTES = 64 * KIB  # the managed ledger's default leaves the same below its frame


def chosen_quorums(config: ManagedLedgerConfig, bookies: int) -> tuple[int, int, int]:
    """Return E, Qw and Qa as configured; for 0, values that suit `bookies`. ConfigError if they contradict."""
    ensemble = config.ensemble_size or quorums(bookies)[0]
    write = config.write_quorum or ensemble
    ack = config.ack_quorum or (2 if write == 3 else write)
    if not ensemble >= write >= ack:
        raise ConfigError(
            f"quorums must satisfy E >= Qw >= Qa; the settings and {bookies} bookies give {ensemble}, {write}, {ack}"
        )
    return ensemble, write, ack


def ledger_settings(
    config: ServingConfig, *, bookies: int, password: bytes, frame_bytes: int = FRAME_BYTES_MAX
) -> ManagedLedgerSettings:
    """Return the settings of managed ledgers."""
    ensemble, write, ack = chosen_quorums(config, bookies)
    return config.part(
        ManagedLedgerSettings,
        ensemble_size=ensemble,
        write_quorum=write,
        ack_quorum=ack,
        digest_type=_DIGESTS[config.digest_type],
        password=password,
        cursor_state_bytes_max=frame_bytes - _STATE_HEADROOM_BYTES,
        offload=offload_settings(config),
        open_s=config.part(LoadSettings).timeout_s,
    )


def serving_settings(
    config: BrokerConfig | StandaloneConfig, ledger: ManagedLedgerSettings, advertise: str
) -> BrokerSettings:
    """Return the settings of a broker."""
    listeners = parse_listeners(config.advertised_listeners)
    own_names = [advertise, *(urlsplit(one.native or one.native_tls).hostname or "" for one in listeners)]
    return BrokerSettings(
        cluster=config.cluster,
        metadata_url=metadata_url(config) if isinstance(config, StandaloneConfig) else config.metadata,
        listen=config.listen,
        port=config.broker_port,
        http_port=config.http_port,
        port_tls=config.broker_port_tls,
        http_port_tls=config.http_port_tls,
        access=access_settings(config, own_names),
        advertise=advertise,
        listeners=listeners,
        stop_s=config.shutdown_timeout_ms / 1000,
        move_close_s=config.move_close_ms / 1000,
        session=config.part(SessionSettings),
        clients=config.part(ClientLimits),
        balancing=config.part(BalancingSettings),
        topics=TopicsSettings(
            auto_create=config.allow_auto_topic_creation,
            defaults=config.part(DefaultPolicies),
            non_persistent=NonPersistentSettings(
                enabled=config.non_persistent_topics, close_after_s=config.part(UnusedTopicSettings).close_after_s
            ),
            topic=TopicSettings(
                deduplication=config.deduplication,
                deduplication_snapshots=DeduplicationSettings(
                    interval_s=float(config.part(DefaultPolicies).snapshot_interval_s)
                ),
                subscriptions=config.part(DispatchSettings),
                entry_metadata=parse_interceptors(config.entry_metadata_interceptors),
            ),
            ledger=ledger,
            rates=config.part(RateSettings),
            inactivity=config.part(InactivitySettings),
            compaction=config.part(CompactionSettings),
            loads=config.part(LoadSettings),
            filters=config.entry_filters,
        ),
        unused_topics=config.part(UnusedTopicSettings),
        marked_ledgers=config.part(MarkedLedgerSettings),
        backlog_quotas=backlog_quota_settings(config),
        tier=config.part(TierSettings),
        schemas=config.part(SchemaBounds),
        metrics=config.part(MetricsSettings),
        console=config.part(ConsoleSettings),
        slow=config.part(SlowSettings),
        traces=config.part(TraceSettings),
        websocket=config.part(WebSocketSettings),
        memory=memory_settings(config, machine_memory_bytes()),
    )


def backlog_quota_settings(config: BacklogQuotaConfig) -> BacklogQuotaSettings:
    """Return the backlog quotas for namespaces without their own."""

    def quota(limit: int) -> BacklogQuota | None:
        return BacklogQuota(limit, config.backlog_quota_default_policy) if limit > 0 else None

    return BacklogQuotaSettings(
        enabled=config.backlog_quota_check_enabled,
        check_interval_s=float(config.backlog_quota_check_interval_s),
        default=BacklogQuotas(
            quota(config.backlog_quota_default_limit_bytes), quota(config.backlog_quota_default_limit_s)
        ),
    )


def broker_settings(config: BrokerConfig, password: bytes = b"") -> BrokerSettings:
    """Return the settings of `quire broker start`; its ledgers have `password`.

    Quorums do not depend on the number of bookies that are up: 3/3/2 unless set.
    """
    ledger = ledger_settings(config, bookies=3, password=password)
    found = serving_settings(config, ledger, config.advertise or default_host(config.listen))
    bindings = parse_bindings(config.bind_addresses)
    for one in bindings:
        if one.listener not in {each.name for each in found.listeners}:
            raise ConfigError(
                f"{BrokerConfig.key_of('bind_addresses')} names the listener {one.listener!r}, which "
                f"{BrokerConfig.key_of('advertised_listeners')} does not have: add its address there"
            )
    return replace(found, bindings=bindings)


def standalone_settings(config: StandaloneConfig, password: bytes = b"") -> StandaloneSettings:
    """Return the settings of `quire standalone`, with absolute folders; its ledgers have `password`."""
    bookie = storage_settings(config)
    frame_bytes = bookie.service.frame_bytes_max
    ledger = ledger_settings(config, bookies=config.bookies, password=password, frame_bytes=frame_bytes)
    advertise = config.advertise or (LOCALHOST if config.listen == LOOPBACK else default_host(config.listen))
    return StandaloneSettings(
        data=str(Path(config.data).absolute()),
        bookies=config.bookies,
        bookie_port=config.bookie_port,
        bookie=replace(bookie, fit_disk=True, listen=config.bookie_host, advertise=_bookie_address(config)),
        broker=serving_settings(config, ledger, advertise),
        client=replace(
            config.part(ClientSettings),
            frame_bytes_max=frame_bytes,
            # A response has a header besides its entries: leave it the same space as the defaults do.
            batch_read_bytes_max=min(BATCH_READ_BYTES_MAX, frame_bytes - (FRAME_BYTES_MAX - BATCH_READ_BYTES_MAX)),
        ),
        recovery=config.part(RecoverySettings) if config.auto_recovery else None,
    )


def _bookie_address(config: StandaloneConfig) -> str:
    """Return the address of the bookies in the metadata: one they listen on, even if the broker advertises another."""
    # If no other process shares the metadata, the bookies need no address that others can reach.
    if not shares_metadata(config) or config.bookie_host not in ANY_ADDRESS:
        return local_host(config.bookie_host)
    return config.advertise or default_host(config.bookie_host)


def shares_metadata(config: StandaloneConfig) -> bool:
    """Return whether other processes find the bookies in the metadata."""
    return isinstance(parse_metadata_url(metadata_url(config)), EtcdLocation)


def metadata_url(config: StandaloneConfig) -> str:
    """Return the URL of the metadata: beside the data, or the configured cluster."""
    return f"local:{Path(config.data).absolute()}/metadata" if config.metadata == LOCAL else config.metadata
