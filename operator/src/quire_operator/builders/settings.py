"""From a spec to the settings of the processes, under their own keys (docs/configuration.md). Pure.

The operator may not import the bookie or the broker; a unit test gives what is made here to their own loaders.
"""

from collections.abc import Mapping

from quire_operator.api.bookie_spec import BookieAuthentication, BookieSpec, JournalMode
from quire_operator.api.managed_ledger_spec import Brokers, ManagedLedgerSpec
from quire_operator.api.quantities import duration_ms, duration_s, quantity_bytes, quantity_mib
from quire_operator.api.shared import MetadataStore, Tls, TlsMode, TokenKeyType
from quire_operator.builders.naming import ZONE_ANNOTATION
from quire_operator.builders.toml import Value

BOOKIE_PORT, BOOKIE_HTTP_PORT = 3181, 8000
BROKER_PORT, BROKER_HTTP_PORT = 6650, 8080
BROKER_TLS_PORT, BROKER_HTTPS_PORT = 6651, 8443
RECOVERY_HTTP_PORT = 8000
DATA_ROOT = "/var/lib/quire"
TLS_FOLDER = "/etc/quire/tls"
BROKER_TLS_FOLDER = "/etc/quire/broker-tls"
BROKER_TOKEN_FOLDER = "/etc/quire/broker-token"
PODINFO_FOLDER = "/etc/quire/podinfo"
METADATA_TLS_FOLDER = "/etc/quire/metadata-tls"
METADATA_AUTH_FOLDER = "/etc/quire/metadata-auth"
LEDGER_PASSWORD_FOLDER, LEDGER_PASSWORD_KEY = "/etc/quire/ledger-password", "password"
CLUSTER_NAME = "quire"
OPERATOR_ROLE = "quire-operator"
"""The role of the token by which the operator asks brokers and bookies."""
BOOKIE_ROLE, BROKER_ROLE = "quire-bookie", "quire-broker"
"""The roles of a pool's other tokens: of bookies and auto-recovery, and of brokers and jobs."""
TOKEN_KEY, OPERATOR_TOKEN = "token.key", "operator.token"
BOOKIE_TOKEN, BROKER_TOKEN = "bookie.token", "broker.token"
POOL_SECRET_KEYS = (TOKEN_KEY, OPERATOR_TOKEN, BOOKIE_TOKEN, BROKER_TOKEN)
"""Keys of a Secret with the key and the tokens of a pool."""
POOL_TOKEN_FOLDER = "/etc/quire/token"

OPEN_TO_PODS: Mapping[str, Value] = {
    "httpServerAdminRemote": True,
    "httpServerAllowedHosts": ["*.svc", "*.cluster.local"],
}
"""Without authentication: the operator and jobs ask from other pods, by address or by the names of Services."""

_TLS_FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
_TOKEN_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
_ROLES_FACTORY = "org.apache.bookkeeper.tls.BookieAuthZFactory"

Settings = dict[str, Value]


def metadata_url(store: MetadataStore) -> str:
    """`etcd://host:port,...`, with https in front of each member where it has TLS."""
    scheme = "https://" if store.tls is not None else ""
    return "etcd://" + ",".join(f"{scheme}{endpoint}" for endpoint in store.endpoints)


def metadata_access(store: MetadataStore) -> Settings:
    """As whom a process comes to etcd; the files are of mounted Secrets, which are followed."""
    found: Settings = {}
    if store.tls is not None:
        found["metadataTlsTrustCertsFilePath"] = f"{METADATA_TLS_FOLDER}/ca.crt"
        if store.tls.client_certificate:
            found["metadataTlsCertificateFilePath"] = f"{METADATA_TLS_FOLDER}/tls.crt"
            found["metadataTlsKeyFilePath"] = f"{METADATA_TLS_FOLDER}/tls.key"
    if store.auth is not None:
        found["metadataUsername"] = f"file://{METADATA_AUTH_FOLDER}/username"
        found["metadataPassword"] = f"file://{METADATA_AUTH_FOLDER}/password"
    return found


def is_https_only(tls: Tls | None) -> bool:
    """The HTTP port of bookies and auto-recovery cannot offer both: in clear unless TLS is required."""
    return tls is not None and tls.secret_name is not None and tls.mode is TlsMode.REQUIRED


def _http_tls(tls: Tls | None) -> Settings:
    """The HTTP port of a bookie or of auto-recovery behind TLS; probes have no certificate, so none is asked for."""
    if not is_https_only(tls):
        return {}
    return {
        "httpServerTlsEnable": True,
        "httpServerKeystorePath": f"{TLS_FOLDER}/tls.crt",
        "httpServerKeyPath": f"{TLS_FOLDER}/tls.key",
    }


def broker_ports(brokers: Brokers) -> dict[str, int]:
    """Ports of a broker by their names: in clear, over TLS, or both."""
    tls = brokers.tls
    found: dict[str, int] = {}
    if not is_https_only(tls):
        found |= {"pulsar": BROKER_PORT, "http": BROKER_HTTP_PORT}
    if tls is not None and tls.secret_name is not None and tls.mode is not TlsMode.DISABLED:
        found |= {"pulsar-tls": BROKER_TLS_PORT, "https": BROKER_HTTPS_PORT}
    return found


def _broker_security(brokers: Brokers) -> Settings:
    """The brokers' own TLS and authentication."""
    ports = broker_ports(brokers)
    found: Settings = {}
    found["brokerServicePort"] = ports.get("pulsar", "")
    found["webServicePort"] = ports.get("http", "")
    if brokers.tls is not None and "https" in ports:
        found |= {
            "brokerServicePortTls": BROKER_TLS_PORT,
            "webServicePortTls": BROKER_HTTPS_PORT,
            "tlsCertificateFilePath": f"{BROKER_TLS_FOLDER}/tls.crt",
            "tlsKeyFilePath": f"{BROKER_TLS_FOLDER}/tls.key",
            "tlsTrustCertsFilePath": f"{BROKER_TLS_FOLDER}/ca.crt",
        }
    wanted = brokers.authentication
    if wanted is not None:
        key = "tokenSecretKey" if wanted.key_type is TokenKeyType.SECRET else "tokenPublicKey"
        found |= {
            "authenticationEnabled": True,
            "authenticationProviders": [_TOKEN_PROVIDER],
            key: f"file://{BROKER_TOKEN_FOLDER}/token.key",
            "tokenPublicAlg": wanted.algorithm,
            "authorizationEnabled": True,
            "superUserRoles": list(dict.fromkeys([OPERATOR_ROLE, *wanted.super_user_roles])),
        }
    else:
        found |= OPEN_TO_PODS
    return found


def folders(kind: str, volumes: int, per_volume: int) -> list[str]:
    """Folders on the volumes of a kind, volume by volume: a new volume's come behind all that were there.

    Below the mount, never the mount itself: a file system may have a `lost+found` there, and a bookie takes only empty
    folders. A volume that is not mounted shows as a lost folder, which the bookie refuses.
    """
    return [f"{DATA_ROOT}/{kind}{volume}/{place}" for volume in range(volumes) for place in range(per_volume)]


def bookie_settings(spec: BookieSpec) -> Settings:
    """Everything that a bookie is told in its file; its own host name is an argument of the process."""
    return bookie_settings_of_fields(spec) | spec.engine.settings


def bookie_settings_of_fields(spec: BookieSpec) -> Settings:
    """What follows from the fields of the spec; `engine.settings` may say none of it."""
    storage, engine = spec.storage, spec.engine
    found: Settings = {
        "metadataServiceUri": metadata_url(spec.metadata),
        "bookiePort": BOOKIE_PORT,
        # A pod keeps its name when its volumes are replaced by empty ones: an id must not.
        "bookieIdScheme": "storage",
        "httpServerPort": BOOKIE_HTTP_PORT,
        "journalDirectories": folders("journal", storage.journal.volumes, storage.journal.dirs_per_volume),
        "ledgerDirectories": folders("ledgers", storage.ledgers.volumes, storage.ledgers.dirs_per_volume),
        # Only empty folders behind the known ones are taken; one that lost its files is refused all the same.
        "allowStorageExpansion": True,
        "journalWriteData": spec.durability.journal is not JournalMode.DISABLED,
        "journalSyncData": spec.durability.journal is JournalMode.SYNC,
        "journalMaxSizeMB": quantity_mib(engine.journal_file_size),
        "dbStorage_writeCacheMaxSizeMb": quantity_mib(engine.write_cache),
        "dbStorage_readAheadCacheMaxSizeMb": quantity_mib(engine.read_cache),
        "dbStorage_rocksDB_blockCacheSize": quantity_bytes(engine.index_cache),
        "logSizeLimit": quantity_bytes(engine.entry_log_size),
        "flushInterval": duration_ms(engine.flush_interval),
        "gcWaitTime": duration_ms(engine.gc_interval),
        "diskUsageWarnThreshold": engine.watermarks.warn / 100,
        "diskUsageThreshold": engine.watermarks.full / 100,
        "diskUsageLwmThreshold": engine.watermarks.low / 100,
        "minorCompactionThreshold": engine.compaction.minor_threshold / 100,
        "minorCompactionInterval": duration_s(engine.compaction.minor_interval),
        "majorCompactionThreshold": engine.compaction.major_threshold / 100,
        "majorCompactionInterval": duration_s(engine.compaction.major_interval),
        "compactionRateByBytes": quantity_bytes(engine.compaction.bytes_per_second),
        "scrubIntervalSeconds": duration_s(spec.scrub.interval),
        "scrubBytesPerSecond": quantity_bytes(spec.scrub.bytes_per_second),
    }
    if spec.placement.topology_keys:
        # A bookie says where it stands before it registers; the operator annotates its pod once that has a node.
        found["bookieRackAnnotationsFile"] = f"{PODINFO_FOLDER}/annotations"
        found["bookieRackAnnotation"] = ZONE_ANNOTATION
    if storage.index is not None:
        found["indexDirectories"] = folders("index", 1, 1)
    if spec.durability.journal is not JournalMode.SYNC:
        found["acknowledgeDataLossRisk"] = spec.durability.acknowledge_data_loss_risk
    if spec.tls is not None:
        found |= _bookie_tls(spec.tls) | _http_tls(spec.tls)
    if spec.authentication is not None:
        # Of the client inside the bookie, which reads ledgers of other bookies for the admin paths.
        found["clientAuthProviderFactoryClass"] = "token"
        found["clientAuthParameters"] = f"file://{POOL_TOKEN_FOLDER}/{BOOKIE_TOKEN}"
    return found | http_roles(spec.authentication) | metadata_access(spec.metadata)


def http_roles(wanted: BookieAuthentication | None) -> Settings:
    """Whom bookies and auto-recovery answer: operator, auto-recovery and jobs ask from other pods."""
    if wanted is None:
        return dict(OPEN_TO_PODS)
    key = "tokenSecretKey" if wanted.key_type is TokenKeyType.SECRET else "tokenPublicKey"
    admins = [OPERATOR_ROLE, BOOKIE_ROLE, *wanted.admin_roles]
    return {
        "bookieAuthProviderFactoryClass": "token",
        key: f"file://{POOL_TOKEN_FOLDER}/{TOKEN_KEY}",
        "tokenPublicAlg": wanted.algorithm,
        "authorizedRoles": list(dict.fromkeys([*admins, BROKER_ROLE, *wanted.roles])),
        "httpServerAdminRoles": list(dict.fromkeys(admins)),
    }


def _bookie_tls(tls: Tls) -> Settings:
    """The BookKeeper port behind TLS."""
    found: Settings = {
        "tlsProviderFactoryClass": _TLS_FACTORY,
        "tlsCertificatePath": f"{TLS_FOLDER}/tls.crt",
        "tlsKeyStore": f"{TLS_FOLDER}/tls.key",
        "tlsTrustStore": f"{TLS_FOLDER}/ca.crt",
        "tlsRequired": tls.mode is TlsMode.REQUIRED,
        "tlsClientAuthentication": tls.client_authentication,
    }
    if tls.authorized_roles:
        found["bookieAuthProviderFactoryClass"] = _ROLES_FACTORY
        found["authorizedRoles"] = list(tls.authorized_roles)
    return found


def client_access(pool: BookieSpec, token: str = BROKER_TOKEN) -> Settings:
    """As whom a client of the bookies comes (auto-recovery, broker, jobs). `token`: key in the pool's Secret."""
    found = _client_tls(pool.tls)
    if pool.authentication is not None:
        found["bookkeeperClientAuthenticationPlugin"] = "token"
        found["bookkeeperClientAuthenticationParameters"] = f"file://{POOL_TOKEN_FOLDER}/{token}"
    return found


def _client_tls(tls: Tls | None) -> Settings:
    """With the same Secret as the bookies."""
    if tls is None:
        return {}
    return {
        "bookkeeperTLSTrustCertsFilePath": f"{TLS_FOLDER}/ca.crt",
        "bookkeeperTLSClientAuthentication": tls.client_authentication,
        "bookkeeperTLSCertificateFilePath": f"{TLS_FOLDER}/tls.crt",
        "bookkeeperTLSKeyFilePath": f"{TLS_FOLDER}/tls.key",
    }


def recovery_settings(spec: BookieSpec) -> Settings:
    """Of `quire autorecovery`."""
    found: Settings = {
        "metadataServiceUri": metadata_url(spec.metadata),
        "httpServerPort": RECOVERY_HTTP_PORT,
        "lostBookieRecoveryDelay": round(duration_s(spec.auto_recovery.lost_bookie_delay)),
        "replicationRateByBytes": quantity_bytes(spec.auto_recovery.bytes_per_second),
    }
    found |= metadata_access(spec.metadata) | client_access(spec, BOOKIE_TOKEN)
    return found | _http_tls(spec.tls) | http_roles(spec.authentication)


def broker_settings(spec: ManagedLedgerSpec, pool: BookieSpec) -> Settings:
    """Of the brokers of a namespace, on the cluster of a pool."""
    return broker_settings_of_fields(spec, pool) | spec.brokers.settings


def broker_settings_of_fields(spec: ManagedLedgerSpec, pool: BookieSpec) -> Settings:
    """What follows from the fields of both specs; `brokers.settings` may say none of it but whether roles count."""
    found: Settings = {
        "metadataStoreUrl": metadata_url(pool.metadata),
        "clusterName": CLUSTER_NAME,
        "managedLedgerDefaultEnsembleSize": spec.replication.ensemble,
        "managedLedgerDefaultWriteQuorum": spec.replication.write_quorum,
        "managedLedgerDefaultAckQuorum": spec.replication.ack_quorum,
        "managedLedgerMaxEntriesPerLedger": spec.rollover.max_entries,
        "managedLedgerMaxSizePerLedgerMbytes": quantity_mib(spec.rollover.max_size),
        "managedLedgerMinLedgerRolloverTimeMinutes": _minutes(spec.rollover.min_time),
        "managedLedgerMaxLedgerRolloverTimeMinutes": max(1, _minutes(spec.rollover.max_time)),
        "managedLedgerCacheSizeMB": quantity_mib(spec.brokers.cache),
    }
    if spec.brokers.ledger_password_secret is not None:
        found["managedLedgerPassword"] = f"file://{LEDGER_PASSWORD_FOLDER}/{LEDGER_PASSWORD_KEY}"
    if spec.brokers.advertised_listeners:
        scheme = "pulsar" if "pulsar" in broker_ports(spec.brokers) else "pulsar+ssl"
        listeners = [f"{one.name}:{scheme}://{one.host}:{one.port}" for one in spec.brokers.advertised_listeners]
        found["advertisedListeners"] = ",".join(listeners)
    return found | _broker_security(spec.brokers) | metadata_access(pool.metadata) | client_access(pool)


def _minutes(duration: str) -> int:
    """Whole minutes, rounded down: never later than was asked for."""
    return duration_ms(duration) // 60_000
