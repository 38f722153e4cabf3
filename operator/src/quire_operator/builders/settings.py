"""Converts a spec to the settings of the processes, by their keys in docs/configuration.md. Pure.

The operator may not import the bookie or the broker; a unit test passes the results to their own loaders.
"""

from collections.abc import Mapping

from quire_operator.api.bookie_spec import BookieAuthentication, BookieSpec, JournalMode
from quire_operator.api.managed_ledger_spec import Authentication, Brokers, ManagedLedgerSpec
from quire_operator.api.quantities import duration_ms, duration_s, quantity_bytes, quantity_mib
from quire_operator.api.shared import MetadataStore, Tls, TlsMode, TokenKeyType
from quire_operator.builders import tuning
from quire_operator.builders.naming import ZONE_ANNOTATION
from quire_operator.builders.toml import Value

BOOKIE_PORT, BOOKIE_HTTP_PORT = 3181, 8000
BROKER_PORT, BROKER_HTTP_PORT = 6650, 8080
BROKER_TLS_PORT, BROKER_HTTPS_PORT = 6651, 8443
RECOVERY_HTTP_PORT = 8000
BROKER_STOP_S = 50
"""How long a broker that ends may hand its bundles over and close its topics."""
DATA_ROOT = "/var/lib/quire"
TLS_FOLDER = "/etc/quire/tls"
BROKER_TLS_FOLDER = "/etc/quire/broker-tls"
BROKER_TOKEN_FOLDER = "/etc/quire/broker-token"
PROXY_TLS_FOLDER = "/etc/quire/proxy-tls"
PODINFO_FOLDER = "/etc/quire/podinfo"
METADATA_TLS_FOLDER = "/etc/quire/metadata-tls"
METADATA_AUTH_FOLDER = "/etc/quire/metadata-auth"
LEDGER_PASSWORD_FOLDER, LEDGER_PASSWORD_KEY = "/etc/quire/ledger-password", "password"
CLUSTER_NAME = "quire"
OPERATOR_ROLE = "quire-operator"
"""The role of the token with which the operator authenticates to brokers and bookies."""
BOOKIE_ROLE, BROKER_ROLE = "quire-bookie", "quire-broker"
"""The roles of a pool's other tokens: for bookies and auto-recovery, and for brokers and jobs."""
PROXY_ROLE, PROXY_TOKEN = "quire-proxy", "proxy.token"
"""The role with which proxies connect to brokers, and the key of its token in the Secret of the brokers."""
TOKEN_KEY, OPERATOR_TOKEN = "token.key", "operator.token"
BOOKIE_TOKEN, BROKER_TOKEN = "bookie.token", "broker.token"
POOL_SECRET_KEYS = (TOKEN_KEY, OPERATOR_TOKEN, BOOKIE_TOKEN, BROKER_TOKEN)
"""Keys of the Secret with the key and the tokens of a pool."""
POOL_TOKEN_FOLDER = "/etc/quire/token"

OPEN_TO_PODS: Mapping[str, Value] = {
    "httpServerAdminRemote": True,
    "httpServerAllowedHosts": ["*.svc", "*.cluster.local"],
}
"""Settings without authentication. The operator and jobs connect from other pods, by address or by Service name."""

_TLS_FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
_TOKEN_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
_ROLES_FACTORY = "org.apache.bookkeeper.tls.BookieAuthZFactory"

Settings = dict[str, Value]


def metadata_url(store: MetadataStore) -> str:
    """Return `etcd://host:port,...`, with https:// before each member if TLS is set."""
    scheme = "https://" if store.tls is not None else ""
    return "etcd://" + ",".join(f"{scheme}{endpoint}" for endpoint in store.endpoints)


def metadata_access(store: MetadataStore) -> Settings:
    """Return the credentials of a process for etcd; the files are in mounted Secrets, whose updates are followed."""
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
    """Return whether HTTP ports of bookies and auto-recovery use TLS: only if required, as they cannot offer both."""
    return tls is not None and tls.secret_name is not None and tls.mode is TlsMode.REQUIRED


def _http_tls(tls: Tls | None) -> Settings:
    """Return the TLS settings of the HTTP port of bookies and auto-recovery. Probes have no client certificate."""
    if not is_https_only(tls):
        return {}
    return {
        "httpServerTlsEnable": True,
        "httpServerKeystorePath": f"{TLS_FOLDER}/tls.crt",
        "httpServerKeyPath": f"{TLS_FOLDER}/tls.key",
    }


def broker_ports(brokers: Brokers) -> dict[str, int]:
    """Return the ports of a broker by name: plaintext, TLS, or both."""
    return client_ports(brokers.tls)


def client_ports(tls: Tls | None) -> dict[str, int]:
    """Return the ports of a broker or a proxy by name: plaintext, TLS, or both."""
    found: dict[str, int] = {}
    if not is_https_only(tls):
        found |= {"pulsar": BROKER_PORT, "http": BROKER_HTTP_PORT}
    if tls is not None and tls.secret_name is not None and tls.mode is not TlsMode.DISABLED:
        found |= {"pulsar-tls": BROKER_TLS_PORT, "https": BROKER_HTTPS_PORT}
    return found


def token_checks(wanted: Authentication) -> Settings:
    """Return the settings with which brokers and proxies check the tokens of clients."""
    key = "tokenSecretKey" if wanted.key_type is TokenKeyType.SECRET else "tokenPublicKey"
    return {
        "authenticationEnabled": True,
        "authenticationProviders": [_TOKEN_PROVIDER],
        key: f"file://{BROKER_TOKEN_FOLDER}/{TOKEN_KEY}",
        "tokenPublicAlg": wanted.algorithm,
    }


def _broker_security(brokers: Brokers, *, proxied: bool) -> Settings:
    """Return the settings for TLS and authentication of the brokers' ports. `proxied`: they have proxies."""
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
        proxies = [PROXY_ROLE] if proxied else []
        found |= token_checks(wanted) | {
            "authorizationEnabled": True,
            "superUserRoles": list(dict.fromkeys([OPERATOR_ROLE, *proxies, *wanted.super_user_roles])),
        }
        if proxied:
            # Both the proxy and its client must have a right. Brokers check the client's token, too, so that a proxy
            # cannot name a client that it does not have.
            found |= {"proxyRoles": proxies, "authenticateOriginalAuthData": True}
    else:
        found |= OPEN_TO_PODS
    return found


def folders(kind: str, volumes: int, per_volume: int) -> list[str]:
    """Return the folders on the volumes of a kind, volume by volume, so that those of a new volume are the last.

    They are below the mount: a file system may have a `lost+found` in its root, and a bookie accepts only empty
    folders. A volume that is not mounted appears as a lost folder, which the bookie refuses.
    """
    return [f"{DATA_ROOT}/{kind}{volume}/{place}" for volume in range(volumes) for place in range(per_volume)]


def bookie_settings(spec: BookieSpec) -> Settings:
    """Return all settings in a bookie's file. Its host name is an argument of the process."""
    return bookie_settings_of_fields(spec) | tuning.bookie_tuning(spec) | spec.engine.settings


def bookie_settings_of_fields(spec: BookieSpec) -> Settings:
    """Return the settings that are set by fields of the spec; `engine.settings` may not contain them."""
    storage, engine, caches = spec.storage, spec.engine, tuning.bookie_caches(spec)
    found: Settings = {
        "metadataServiceUri": metadata_url(spec.metadata),
        "bookiePort": BOOKIE_PORT,
        # A pod keeps its name when its volumes are replaced by empty ones, but a bookie id must not stay the same.
        "bookieIdScheme": "storage",
        "httpServerPort": BOOKIE_HTTP_PORT,
        "journalDirectories": folders("journal", storage.journal.volumes, storage.journal.dirs_per_volume),
        "ledgerDirectories": folders("ledgers", storage.ledgers.volumes, storage.ledgers.dirs_per_volume),
        # Only empty folders after the known ones are accepted; a known folder that lost its files is still refused.
        "allowStorageExpansion": True,
        "journalWriteData": spec.durability.journal is not JournalMode.DISABLED,
        "journalSyncData": spec.durability.journal is JournalMode.SYNC,
        "journalMaxSizeMB": quantity_mib(engine.journal_file_size),
        "dbStorage_writeCacheMaxSizeMb": caches.write_mib,
        "dbStorage_readAheadCacheMaxSizeMb": caches.read_mib,
        "dbStorage_rocksDB_blockCacheSize": caches.index_mib * tuning.MIB
        if engine.index_cache is None
        else quantity_bytes(engine.index_cache),
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
        # A bookie publishes its rack before it registers; the operator annotates its pod after scheduling.
        found["bookieRackAnnotationsFile"] = f"{PODINFO_FOLDER}/annotations"
        found["bookieRackAnnotation"] = ZONE_ANNOTATION
    if storage.index is not None:
        found["indexDirectories"] = folders("index", 1, 1)
    if spec.durability.journal is not JournalMode.SYNC:
        found["acknowledgeDataLossRisk"] = spec.durability.acknowledge_data_loss_risk
    if spec.tls is not None:
        found |= _bookie_tls(spec.tls) | _http_tls(spec.tls)
    if spec.authentication is not None:
        # For the client within the bookie, which reads ledgers of other bookies for the admin paths.
        found["clientAuthProviderFactoryClass"] = "token"
        found["clientAuthParameters"] = f"file://{POOL_TOKEN_FOLDER}/{BOOKIE_TOKEN}"
    return found | http_roles(spec.authentication) | metadata_access(spec.metadata)


def http_roles(wanted: BookieAuthentication | None) -> Settings:
    """Return the settings for access to bookies and auto-recovery: operator, auto-recovery and jobs use other pods."""
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
    """Return the TLS settings of the BookKeeper port."""
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
    """Return the credentials of a client of the bookies (auto-recovery, broker, jobs). `token`: key in the Secret."""
    found = _client_tls(pool.tls)
    if pool.authentication is not None:
        found["bookkeeperClientAuthenticationPlugin"] = "token"
        found["bookkeeperClientAuthenticationParameters"] = f"file://{POOL_TOKEN_FOLDER}/{token}"
    return found


def _client_tls(tls: Tls | None) -> Settings:
    """Return the TLS settings of a client, which uses the same Secret as the bookies."""
    if tls is None:
        return {}
    return {
        "bookkeeperTLSTrustCertsFilePath": f"{TLS_FOLDER}/ca.crt",
        "bookkeeperTLSClientAuthentication": tls.client_authentication,
        "bookkeeperTLSCertificateFilePath": f"{TLS_FOLDER}/tls.crt",
        "bookkeeperTLSKeyFilePath": f"{TLS_FOLDER}/tls.key",
    }


def recovery_settings(spec: BookieSpec) -> Settings:
    """Return the settings of `quire autorecovery`."""
    found: Settings = {
        "metadataServiceUri": metadata_url(spec.metadata),
        "httpServerPort": RECOVERY_HTTP_PORT,
        "lostBookieRecoveryDelay": round(duration_s(spec.auto_recovery.lost_bookie_delay)),
        "replicationRateByBytes": quantity_bytes(spec.auto_recovery.bytes_per_second),
    }
    workers = tuning.recovery_workers(spec)
    if workers is not None:
        found["replicationWorkers"] = workers
    found |= metadata_access(spec.metadata) | client_access(spec, BOOKIE_TOKEN)
    return found | _http_tls(spec.tls) | http_roles(spec.authentication)


def broker_settings(spec: ManagedLedgerSpec, pool: BookieSpec) -> Settings:
    """Return the settings of the brokers of a namespace, on the cluster of a pool."""
    return broker_settings_of_fields(spec, pool) | tuning.broker_tuning(spec) | spec.brokers.settings


def broker_settings_of_fields(spec: ManagedLedgerSpec, pool: BookieSpec) -> Settings:
    """Return the settings that are set by fields of both specs; `brokers.settings` may override only a few of them."""
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
        **tuning.broker_cache_shares(spec),
        "brokerShutdownTimeoutMs": 1000 * BROKER_STOP_S,
    }
    if spec.brokers.ledger_password_secret is not None:
        found["managedLedgerPassword"] = f"file://{LEDGER_PASSWORD_FOLDER}/{LEDGER_PASSWORD_KEY}"
    if spec.brokers.advertised_listeners:
        scheme = "pulsar" if "pulsar" in broker_ports(spec.brokers) else "pulsar+ssl"
        listeners = [f"{one.name}:{scheme}://{one.host}:{one.port}" for one in spec.brokers.advertised_listeners]
        found["advertisedListeners"] = ",".join(listeners)
    return (
        found
        | _broker_security(spec.brokers, proxied=spec.proxy is not None)
        | metadata_access(pool.metadata)
        | client_access(pool)
    )


def _minutes(duration: str) -> int:
    """Return whole minutes, rounded down: never later than requested."""
    return duration_ms(duration) // 60_000
