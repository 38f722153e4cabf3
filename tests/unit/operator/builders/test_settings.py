"""The settings that result from a spec, checked with the loaders of the processes themselves."""

from pathlib import Path
from typing import Any

import pytest

from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.sources import ProcessConfig, load
from quire_bookie.errors import ConfigError
from quire_bookie.metadata.url import EtcdLocation, parse_metadata_url
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.recovery import RecoverySettings
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.storage import StorageSettings
from quire_broker.config.broker import BrokerConfig
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_operator.api.bookie import Bookie
from quire_operator.api.bookie_spec import ENGINE_LEAST, ENGINE_LEAST_TIMES, ENTRY_LOG_MOST, SCRUB_LEAST
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import Tls, TlsMode, effective_tls
from quire_operator.builders import auto_recovery
from quire_operator.builders import bookie as bookie_builder
from quire_operator.builders import broker as broker_builder
from quire_operator.builders.settings import folders, metadata_url
from tests.support.kube_resources import bookie, managed_ledger

STORAGE = {
    "journal": {"size": "10Gi", "volumes": 2},
    "ledgers": {"size": "1Ti", "volumes": 2, "dirsPerVolume": 2},
    "index": {"size": "5Gi"},
}
MODES = ("Required", "Offered")
TLS = {"secretName": "certs", "clientAuthentication": True, "authorizedRoles": ["broker", "bookie"]}


def loaded(tmp_path: Path, model: type[ProcessConfig], text: str) -> Any:
    """Parse settings like the process reads its file."""
    file = tmp_path / "quire.toml"
    file.write_text(text)
    return load(model, flags={}, environment={}, file=file).config


def bookie_config(tmp_path: Path, **spec: Any) -> BookieConfig:
    resource = Bookie.model_validate(bookie(**spec))
    found = loaded(tmp_path, BookieConfig, bookie_builder.config_text(resource))
    assert isinstance(found, BookieConfig)
    return found


def broker_config(tmp_path: Path, pool: dict[str, Any], **spec: Any) -> BrokerConfig:
    resource = ManagedLedger.model_validate(managed_ledger(**spec))
    facts = broker_builder.BrokerFacts(Bookie.model_validate(pool), "image")
    found = loaded(tmp_path, BrokerConfig, broker_builder.config_text(resource, facts))
    assert isinstance(found, BrokerConfig)
    return found


def test_a_bookie_accepts_the_default_settings(tmp_path: Path) -> None:
    found = bookie_config(tmp_path)
    assert found.metadata == "etcd://etcd-0.etcd:2379,etcd-1.etcd:2379"
    journal = found.part(JournalSettings)
    assert journal.sync_data and journal.write_data
    assert not found.acknowledge_data_loss_risk
    assert found.journal_directories == ["/var/lib/quire/journal0/0"]
    assert found.ledger_directories == ["/var/lib/quire/ledgers0/0"]
    assert found.index_directories == []
    assert not found.accept_lost_volumes


def test_a_bookie_accepts_all_settings(tmp_path: Path) -> None:
    engine = {
        "writeCache": "1Gi",
        "readCache": "512Mi",
        "indexCache": "256Mi",
        "journalFileSize": "2Gi",
        "entryLogSize": "512Mi",
        "flushInterval": "30s",
        "gcInterval": "5m",
        "watermarks": {"warn": 80, "full": 90, "low": 85},
        "compaction": {"minorThreshold": 30, "minorInterval": "2h", "bytesPerSecond": "8Mi"},
        "settings": {"longPollsMax": "500", "readOnlyModeEnabled": "false"},
    }
    found = bookie_config(tmp_path, storage=STORAGE, engine=engine, scrub={"interval": "0s"}, tls=TLS)
    storage, disks, compaction = found.part(StorageSettings), found.part(DiskRules), found.part(CompactionSettings)
    assert (storage.write_cache_bytes, storage.read_cache_bytes) == (2**30, 512 * 2**20)
    assert found.index_cache_bytes == 256 * 2**20
    assert found.part(JournalSettings).file_bytes == 2 * 2**30
    assert storage.flush_interval_s == 30
    assert (disks.threshold, disks.low_watermark, disks.read_only_enabled) == (0.9, 0.85, False)
    assert (compaction.minor_threshold, compaction.minor_interval_s) == (0.3, 7200)
    assert found.part(ScrubbingSettings).interval_s == 0
    assert found.part(ServiceSettings).long_polls_max == 500
    assert found.index_directories == ["/var/lib/quire/index0/0"]
    assert found.tls_required
    assert found.tls_client_authentication
    assert list(found.authorized_roles) == ["broker", "bookie"]


@pytest.mark.parametrize(("mode", "writes", "syncs"), [("NoSync", True, False), ("Disabled", False, False)])
def test_risky_modes_reach_the_bookie_with_their_acknowledgement(
    tmp_path: Path, mode: str, writes: bool, syncs: bool
) -> None:
    found = bookie_config(tmp_path, durability={"journal": mode, "acknowledgeDataLossRisk": True})
    journal = found.part(JournalSettings)
    assert (journal.write_data, journal.sync_data) == (writes, syncs)
    assert found.acknowledge_data_loss_risk


def test_folders_of_a_new_volume_come_last() -> None:
    before, after = folders("ledgers", 2, 2), folders("ledgers", 3, 2)
    assert after[: len(before)] == before
    assert len(set(after)) == 6


def test_auto_recovery_accepts_its_settings(tmp_path: Path) -> None:
    spec = {"lostBookieDelay": "90s", "bytesPerSecond": "10Mi"}
    resource = Bookie.model_validate(bookie(autoRecovery=spec, tls=TLS))
    found = loaded(tmp_path, AutoRecoveryProcessConfig, auto_recovery.config_text(resource))
    assert isinstance(found, AutoRecoveryProcessConfig)
    recovery = found.part(RecoverySettings)
    assert (recovery.lost_bookie_delay_s, recovery.rate_bytes_s) == (90, 10 * 2**20)
    assert found.bookkeeper_tls_trust_certs_file_path == "/etc/quire/tls/ca.crt"


def test_a_broker_accepts_its_settings(tmp_path: Path) -> None:
    found = broker_config(
        tmp_path,
        bookie(tls=TLS),
        replication={"ensemble": 5, "writeQuorum": 3, "ackQuorum": 2},
        rollover={"maxEntries": 1000, "maxSize": "100Mi", "minTime": "30s", "maxTime": "90m"},
        brokers={"cache": "128Mi", "settings": {"brokerDeduplicationEnabled": "true"}},
    )
    assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == (5, 3, 2)
    ledger = found.part(ManagedLedgerSettings)
    assert (ledger.ledger_entries_max, ledger.ledger_bytes_max, ledger.cache_bytes) == (1000, 100 << 20, 96 << 20)
    assert (ledger.rollover_age_min_s, ledger.rollover_age_max_s) == (0, 90 * 60)
    assert found.deduplication
    assert found.bookkeeper_tls_client_authentication


@pytest.mark.parametrize("tls", [False, True])
def test_the_metadata_url_is_valid_for_the_processes(tls: bool) -> None:
    metadata: dict[str, Any] = {"endpoints": ["a:2379", "b:2380"]} | ({"tls": {"secretName": "s"}} if tls else {})
    url = metadata_url(Bookie.model_validate(bookie(metadata=metadata)).spec.metadata)
    assert parse_metadata_url(url) == EtcdLocation(("a:2379", "b:2380"), tls)


def test_every_process_uses_the_mounted_secrets_for_etcd(tmp_path: Path) -> None:
    metadata = {"endpoints": ["a:2379"], "tls": {"secretName": "s"}, "auth": {"secretName": "u"}}
    resource = Bookie.model_validate(bookie(metadata=metadata))
    recovery = loaded(tmp_path, AutoRecoveryProcessConfig, auto_recovery.config_text(resource))
    assert isinstance(recovery, AutoRecoveryProcessConfig)
    for found in (
        bookie_config(tmp_path, metadata=metadata),
        recovery,
        broker_config(tmp_path, bookie(metadata=metadata)),
    ):
        assert found.metadata_tls_trust_path == "/etc/quire/metadata-tls/ca.crt"
        assert found.metadata_tls_certificate_path == "/etc/quire/metadata-tls/tls.crt"
        assert found.metadata_tls_key_path == "/etc/quire/metadata-tls/tls.key"
        assert found.metadata_username == "file:///etc/quire/metadata-auth/username"
        assert found.metadata_password == "file:///etc/quire/metadata-auth/password"


def test_no_client_certificate_is_configured_for_an_etcd_that_requires_none(tmp_path: Path) -> None:
    tls = {"secretName": "s", "clientCertificate": False}
    found = bookie_config(tmp_path, metadata={"endpoints": ["a:2379"], "tls": tls})
    assert found.metadata_tls_trust_path
    assert not found.metadata_tls_certificate_path


PLACES = [
    *(("engine", name, least) for name, least in (ENGINE_LEAST | ENGINE_LEAST_TIMES).items()),
    *(("scrub", name, least) for name, least in SCRUB_LEAST.items()),
    ("engine", "entryLogSize", ENTRY_LOG_MOST),
]


@pytest.mark.parametrize(("section", "name", "bound"), PLACES)
def test_a_bookie_accepts_values_at_the_bounds_of_the_resource(
    tmp_path: Path, section: str, name: str, bound: str
) -> None:
    bookie_config(tmp_path, **{section: {name: bound}})


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        *(("engine", "writeCache", "23Mi"), ("engine", "indexCache", "1M"), ("engine", "journalFileSize", "31Mi")),
        *(("engine", "entryLogSize", "10Mi"), ("engine", "entryLogSize", "1025Mi"), ("engine", "gcInterval", "99ms")),
        *(("engine", "flushInterval", "9ms"), ("scrub", "bytesPerSecond", "1023")),
    ],
)
def test_a_bookie_refuses_values_beyond_the_bounds_of_the_resource(
    tmp_path: Path, section: str, name: str, value: str
) -> None:
    with pytest.raises(ConfigError):
        bookie_config(tmp_path, **{section: {name: value}})


@pytest.mark.parametrize(
    ("wanted", "generated", "secret"),
    [
        (None, None, None),
        (None, "made", "made"),
        ({"mode": "Disabled"}, "made", None),
        ({"mode": "Disabled", "secretName": "own"}, "made", None),
        ({"mode": "Offered"}, "made", "made"),
        ({"secretName": "own"}, "made", "own"),
        ({"secretName": "own"}, None, "own"),
    ],
)
def test_the_named_secret_takes_precedence_over_the_generated_one(
    wanted: dict[str, Any] | None, generated: str | None, secret: str | None
) -> None:
    found = effective_tls(None if wanted is None else Tls.model_validate(wanted), generated)
    assert (None if found is None else found.secret_name) == secret
    assert found is None or found.mode is (TlsMode.OFFERED if wanted == {"mode": "Offered"} else TlsMode.REQUIRED)


def test_the_http_port_uses_tls_only_if_it_is_required(tmp_path: Path) -> None:
    required, offered = (bookie_config(tmp_path, tls={"secretName": "s", "mode": mode}) for mode in MODES)
    assert required.http_tls
    assert (required.http_certificate_path, required.http_key_path) == (
        "/etc/quire/tls/tls.crt",
        "/etc/quire/tls/tls.key",
    )
    assert offered.tls_provider_factory_class
    assert not offered.http_tls


def test_brokers_serve_only_tls_if_required_and_both_if_offered(
    tmp_path: Path,
) -> None:
    required, offered, plain = (
        broker_config(tmp_path, bookie(), brokers={} if mode is None else {"tls": {"secretName": "s", "mode": mode}})
        for mode in (*MODES, None)
    )
    assert (required.broker_port, required.http_port) == (None, None)
    assert (required.broker_port_tls, required.http_port_tls) == (6651, 8443)
    assert (offered.broker_port, offered.broker_port_tls) == (6650, 6651)
    assert (plain.broker_port, plain.http_port, plain.broker_port_tls) == (6650, 8080, None)
    assert required.tls_certificate_file_path == "/etc/quire/broker-tls/tls.crt"


@pytest.mark.parametrize(("kind", "secret"), [("Secret", True), ("Public", False)])
def test_brokers_with_authentication_accept_tokens_and_the_operators_role(
    tmp_path: Path, kind: str, secret: bool
) -> None:
    wanted = {"tokenKeySecret": "tokens", "keyType": kind, "superUserRoles": ["boss"]}
    found = broker_config(tmp_path, bookie(), brokers={"authentication": wanted})
    assert found.authentication_enabled and found.authorization_enabled and found.takes_tokens
    assert bool(found.token_secret_key) is secret
    assert (found.token_secret_key or found.token_public_key) == "file:///etc/quire/broker-token/token.key"
    assert found.super_user_roles == ["quire-operator", "boss"]


AUTHENTICATION = {"tokenKeySecret": "tokens", "roles": ["reader"], "adminRoles": ["keeper", "quire-operator"]}


def test_with_authentication_bookies_and_auto_recovery_require_tokens(tmp_path: Path) -> None:
    resource = Bookie.model_validate(bookie(authentication=AUTHENTICATION, tls={"secretName": "certs"}))
    for model, text in (
        (BookieConfig, bookie_builder.config_text(resource)),
        (AutoRecoveryProcessConfig, auto_recovery.config_text(resource)),
    ):
        found = loaded(tmp_path, model, text)
        assert not found.http_admin_remote
        assert found.auth_provider == "token"
        assert found.token_secret_key == "file:///etc/quire/token/token.key"
        assert found.authorized_roles == ["quire-operator", "quire-bookie", "keeper", "quire-broker", "reader"]
        assert found.http_admin_roles == ["quire-operator", "quire-bookie", "keeper"]
    bookie_found = loaded(tmp_path, BookieConfig, bookie_builder.config_text(resource))
    assert bookie_found.own_auth_parameters == "file:///etc/quire/token/bookie.token"
    recovery = loaded(tmp_path, AutoRecoveryProcessConfig, auto_recovery.config_text(resource))
    assert recovery.bookkeeper_auth_parameters == "file:///etc/quire/token/bookie.token"


def test_without_authentication_the_pods_of_a_pool_accept_remote_requests(tmp_path: Path) -> None:
    resource = Bookie.model_validate(bookie())
    assert loaded(tmp_path, BookieConfig, bookie_builder.config_text(resource)).http_admin_remote
    assert loaded(tmp_path, AutoRecoveryProcessConfig, auto_recovery.config_text(resource)).http_admin_remote


def test_a_public_key_verifies_the_tokens_of_a_pool(tmp_path: Path) -> None:
    found = bookie_config(
        tmp_path, authentication={"tokenKeySecret": "tokens", "keyType": "Public", "algorithm": "ES256"}
    )
    assert (found.token_secret_key, found.token_public_key) == ("", "file:///etc/quire/token/token.key")
    assert found.token_public_alg == "ES256"


def test_brokers_authenticate_to_bookies_with_their_own_token(tmp_path: Path) -> None:
    found = broker_config(tmp_path, bookie(authentication=AUTHENTICATION))
    assert found.bookkeeper_auth_plugin == "token"
    assert found.bookkeeper_auth_parameters == "file:///etc/quire/token/broker.token"


def keys_of(template: dict[str, Any]) -> list[str]:
    """Return the keys of the pool's Secret that a pod mounts."""
    (volume,) = (one for one in template["spec"]["volumes"] if one["name"] == "token")
    assert volume["secret"]["secretName"] == "tokens"
    return [item["key"] for item in volume["secret"]["items"]]


def test_a_pod_mounts_only_the_keys_of_the_pools_secret_that_it_needs() -> None:
    resource = Bookie.model_validate(bookie(authentication=AUTHENTICATION))
    bookies = bookie_builder.stateful_set(resource, bookie_builder.BookieFacts(1, "image"))["spec"]["template"]
    assert keys_of(bookies) == ["token.key", "bookie.token"]
    assert keys_of(auto_recovery.deployment(resource, "image")["spec"]["template"]) == ["token.key", "bookie.token"]
    ledger = ManagedLedger.model_validate(managed_ledger())
    brokers = broker_builder.revision_of(ledger, broker_builder.BrokerFacts(resource, "image")).template
    assert keys_of(brokers) == ["broker.token"]


def test_the_processes_accept_what_follows_from_the_limits(tmp_path: Path) -> None:
    for memory, cpu in (("384Mi", "100m"), ("512Mi", "2"), ("64Gi", "32")):
        given = {"limits": {"memory": memory, "cpu": cpu}}
        broker_config(tmp_path, bookie(), brokers={"resources": given})
        resource = Bookie.model_validate(bookie(resources=given, autoRecovery={"resources": given}))
        found = loaded(tmp_path, BookieConfig, bookie_builder.config_text(resource))
        assert found.reads_at_once_max >= 32
        recovery = loaded(tmp_path, AutoRecoveryProcessConfig, auto_recovery.config_text(resource))
        assert recovery.recovery_workers in range(1, 9)
