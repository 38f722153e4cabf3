"""Every configured key reaches the settings of the bookie's parts; an unused key would be a broken promise."""

import dataclasses
import socket
from typing import Any

import pytest
from pydantic import ValidationError

from quire_bookie import limits
from quire_bookie.cli.bookie_settings import bookie_settings, default_host, local_host, storage_settings
from quire_bookie.cli.metadata_settings import metadata_settings, shared_metadata_url
from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.http_server import HttpServerConfig
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.recovery import AutoRecoveryConfig
from quire_bookie.errors import ConfigError
from tests.support.setting_values import STORAGE

OTHER: dict[str, Any] = STORAGE | {
    "data": "/somewhere",
    "port": 3333,
    "listen": "127.0.0.9",
    "advertise": "bookie.example",
    "journal_directories": "/journal",
    "ledger_directories": "/ledgers",
    "index_directories": "/index",
    "allow_storage_expansion": True,
    "http_port": 8888,
    "force_read_only_bookie": True,
    "rack": "/zone/rack",
    "rack_annotations_file": "/podinfo/annotations",
    "rack_annotation": "example.com/zone",
    "rack_wait_s": 7,
    "bookie_id": "a-bookie",
    "machine": "machine-7",
    "bookie_id_scheme": "storage",
    "use_host_name_as_bookie_id": False,
}
ELSEWHERE = {
    "journal_submit": "the disk",
    "metadata": "the metadata store",
    "auto_recovery": "the process, which also starts auto-recovery",
    "acknowledge_data_loss_risk": "the check of the configuration",
    "journal_group_wait_ms": "unused: a group never waits, so any limit is satisfied",
}
"""Fields that no settings class contains: the process that starts a bookie passes them to these parts."""


def bookie(**values: Any) -> BookieConfig:
    """Return a checked configuration of a bookie."""
    return BookieConfig.model_validate({"acknowledge_data_loss_risk": True} | values)


def test_every_field_is_listed_here() -> None:
    elsewhere = set(BookieSecurityConfig.model_fields) | set(AutoRecoveryConfig.model_fields)
    elsewhere |= set(LedgerClientConfig.model_fields) | set(MetadataAccessConfig.model_fields)
    elsewhere |= set(HttpServerConfig.model_fields)
    assert set(BookieConfig.model_fields) - elsewhere == set(OTHER) | set(ELSEWHERE)


@pytest.mark.parametrize("field", sorted(OTHER))
def test_a_field_changes_the_settings(field: str) -> None:
    assert bookie_settings(bookie()) != bookie_settings(bookie(**{field: OTHER[field]}))


def test_values_arrive_in_the_units_of_the_settings() -> None:
    settings = bookie_settings(bookie(**OTHER))
    assert settings.journal.file_bytes == 128 << 20
    assert settings.storage.write_cache_bytes == 100 << 20
    assert settings.storage.read_cache_bytes == 7 << 20
    assert settings.storage.entry_log_bytes_max == 100 << 20
    assert settings.storage.flush_interval_s == 1.234
    assert settings.index_cache_bytes == 9 << 20
    assert settings.garbage_collection.interval_s == 4.321
    disks = settings.disks
    assert (disks.threshold, disks.writable_below) == (0.91, 0.5)
    assert (disks.almost_full_above, disks.high_priority_bytes_min) == (0.85, 5 << 20)
    assert settings.force_read_only and disks.on_any_full and not disks.read_only_enabled
    assert disks.interval_s == settings.storage.disk_full_retry_s == 0.777
    # BookKeeper counts the length field as part of the frame.
    assert (settings.service.frame_bytes_max, settings.service.batch_read_bytes_max) == ((1 << 20) - 4, 1 << 19)
    assert settings.metadata.session_timeout_s == 12.0
    assert (settings.journal_paths, settings.ledger_paths) == (("/journal",), ("/ledgers",))
    assert (settings.advertise, settings.listen, settings.port) == ("bookie.example", "127.0.0.9", 3333)


def test_a_lower_threshold_lowers_the_defaults_and_explicit_higher_values_are_refused() -> None:
    disks = bookie_settings(bookie(disk_usage_threshold=0.7)).disks
    assert (disks.almost_full_above, disks.writable_below) == (0.7, 0.7)
    for key in ("diskUsageWarnThreshold", "diskUsageLwmThreshold"):
        with pytest.raises(ValidationError, match=key):
            bookie(**{"diskUsageThreshold": 0.7, key: 0.8})


def test_recovery_adds_need_space_for_an_entry_log_unless_configured_otherwise() -> None:
    assert bookie_settings(bookie(entry_log_size_bytes=100 << 20)).disk_rules.high_priority_bytes_min == 100 << 20
    asked = bookie_settings(bookie(min_usable_size_for_high_priority_writes=0))
    assert asked.disk_rules.high_priority_bytes_min == 0


def test_several_ledger_folders_keep_their_order_and_are_distinct() -> None:
    assert bookie_settings(bookie(ledger_directories="/l1, /l0")).ledger_paths == ("/l1", "/l0")
    with pytest.raises(ValidationError, match="/l0 twice"):
        bookie(ledger_directories="/l0,/l0")


def test_defaults_are_those_of_the_settings_classes() -> None:
    plain = storage_settings(bookie())
    for field in dataclasses.fields(plain):
        if field.default_factory is not dataclasses.MISSING:
            assert getattr(plain, field.name) == field.default_factory(), field.name
        elif field.default is not dataclasses.MISSING:
            assert getattr(plain, field.name) == field.default, field.name


def test_folders_below_the_data_folder_are_absolute() -> None:
    settings = bookie_settings(bookie(data="relative"))
    (folder,) = settings.journal_paths
    assert folder.startswith("/") and folder.endswith("/relative/journal")


def test_several_journal_folders_keep_their_order() -> None:
    settings = bookie_settings(bookie(journal_directories="/j1,/j0"))
    assert settings.journal_paths == ("/j1", "/j0")
    with pytest.raises(ValidationError, match="/j0 twice"):
        bookie(journal_directories="/j0,/j0")


@pytest.mark.parametrize("key", ["journalSyncData", "journalWriteData"])
def test_a_mode_that_can_lose_entries_needs_the_risk_acknowledged(key: str) -> None:
    with pytest.raises(ValidationError, match=f"{key}=false loses .* acknowledgeDataLossRisk=true"):
        BookieConfig.model_validate({key: False})
    settings = bookie_settings(BookieConfig.model_validate({key: False, "acknowledgeDataLossRisk": True}))
    assert (settings.journal.sync_data, settings.journal.write_data) == (
        key != "journalSyncData",
        key != "journalWriteData",
    )


def test_bounds_of_a_journal_group_are_upper_bounds_and_none_by_default() -> None:
    plain = bookie_settings(bookie()).journal
    assert (plain.group_bytes_max, plain.group_entries_max) == (
        limits.JOURNAL_GROUP_BYTES_MAX,
        limits.JOURNAL_GROUP_ENTRIES_MAX,
    )
    java = bookie(journalMaxGroupWaitMSec=2, journalBufferedWritesThreshold=524288, journalBufferedEntriesThreshold=10)
    journal = bookie_settings(java).journal
    assert (journal.group_bytes_max, journal.group_entries_max) == (524288, 10)
    assert bookie_settings(bookie(journalBufferedWritesThreshold=1 << 30)).journal == plain


def test_the_index_takes_one_folder() -> None:
    assert bookie_settings(bookie(ledger_directories="/l0,/l1")).index_path == "/l0/index"
    assert bookie_settings(bookie(indexDirectories="/fast")).index_path == "/fast/index"
    with pytest.raises(ValidationError, match="contains 2 folders"):
        bookie(indexDirectories="/a,/b")


def test_a_bookie_is_reached_by_its_host_name_unless_it_listens_on_one_address() -> None:
    assert default_host("0.0.0.0") == socket.gethostname()
    assert default_host("10.0.0.5") == local_host("10.0.0.5") == "10.0.0.5"
    assert local_host("0.0.0.0") == "localhost"


def test_processes_that_share_metadata_need_etcd() -> None:
    assert shared_metadata_url("etcd://h:1", "key") == "etcd://h:1"
    with pytest.raises(ConfigError, match="metadataServiceUri"):
        shared_metadata_url("", "metadataServiceUri")
    with pytest.raises(ConfigError, match="embedded"):
        shared_metadata_url("local:/x", "key")


def test_a_lease_that_etcd_cannot_give_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 s or more"):
        metadata_settings(10)


def test_access_to_etcd_reaches_the_settings_of_the_store() -> None:
    given = {
        "metadataTlsTrustCertsFilePath": "/etc/ca.crt",
        "metadataTlsCertificateFilePath": "/etc/tls.crt",
        "metadataTlsKeyFilePath": "/etc/tls.key",
        "metadataTlsCertFilesRefreshDurationSeconds": 7,
        "metadataUsername": "quire",
        "metadataPassword": "file:///etc/password",
    }
    config = BookieConfig.model_validate(given)
    found = bookie_settings(config).metadata
    assert (found.ca_path, found.cert_path, found.key_path) == ("/etc/ca.crt", "/etc/tls.crt", "/etc/tls.key")
    assert (found.username, found.password, found.tls_refresh_s) == ("quire", "file:///etc/password", 7.0)
    assert metadata_settings(4000).session_timeout_s == 4.0


@pytest.mark.parametrize("key", ["metadataTlsCertificateFilePath", "metadataTlsKeyFilePath", "metadataUsername"])
def test_half_of_the_credentials_for_etcd_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="both or neither"):
        BookieConfig.model_validate({key: "x"})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"advertise": "b1.example", "port": 3181}, "b1.example:3181"),
        ({"advertise": "b1.example", "port": 3181, "bookie_id": "mine"}, "mine"),
        ({"advertise": "b1.example", "port": 3181, "bookie_id_scheme": "storage"}, None),
        ({"advertise": "b1.example", "port": 0}, None),
        ({"advertise": "::1", "port": 3181}, None),
        ({"advertise": "127.0.0.1", "port": 3181, "use_host_name_as_bookie_id": False}, "127.0.0.1:3181"),
        ({"advertise": "localhost", "port": 3181, "use_host_name_as_bookie_id": False}, "127.0.0.1:3181"),
        ({"listen": "127.0.0.1", "port": 3182}, "127.0.0.1:3182"),
        ({"port": 3181}, f"{socket.gethostname()}:3181"),
    ],
)
def test_the_id_of_a_new_bookie_is_its_address_unless_that_changes(
    values: dict[str, Any], expected: str | None
) -> None:
    assert bookie_settings(bookie(**values)).bookie_id == expected


def test_the_error_names_a_host_without_an_ipv4_address() -> None:
    with pytest.raises(ConfigError, match=r"useHostNameAsBookieID=false, but no\.such\.host\.invalid has no IPv4"):
        bookie_settings(bookie(advertise="no.such.host.invalid", port=3181, use_host_name_as_bookie_id=False))


@pytest.mark.parametrize("value", ["a b", "a/b", "readonly", "..", "x" * 256, "b\u00fccher"])
def test_an_id_that_stock_clients_would_refuse_is_refused(value: str) -> None:
    with pytest.raises(ValidationError, match=r"is not an id|is reserved"):
        bookie(bookie_id=value)


def test_bookie_and_http_need_different_ports() -> None:
    with pytest.raises(ValidationError, match="bookiePort and httpServerPort are both 3181"):
        bookie(http_port=3181)
