"""Maps the configuration of the ledger client to its settings. Pure."""

from quire_bookie.client.security import ClientSecuritySettings
from quire_bookie.client.settings import ClientSettings
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.limits import MIB


def client_settings(config: LedgerClientConfig, security: ClientSecuritySettings | None = None) -> ClientSettings:
    """Map the settings of the process's ledger client."""
    return ClientSettings(
        connect_timeout_s=config.client_connect_timeout_ms / 1000,
        add_timeout_s=config.client_timeout_s,
        read_timeout_s=config.client_timeout_s,
        writer_pending_bytes_max=config.client_pending_mb * MIB,
        add_quorum_timeout_s=config.add_quorum_timeout_s or None,
        delay_ensemble_change=config.delay_ensemble_change,
        ensemble_changes_max=config.ensemble_changes_max,
        slow_replica_s=config.slow_replica_s,
        slow_replica_bytes_max=config.slow_replica_mb * MIB,
        slow_replica_grace_s=config.slow_replica_grace_s,
        quarantine_errors=config.quarantine_errors,
        quarantine_interval_s=config.quarantine_interval_s,
        quarantine_s=config.quarantine_s,
        speculative_read_first_s=config.speculative_read_ms / 1000,
        speculative_read_growth=config.speculative_read_growth,
        speculative_read_max_s=config.speculative_read_max_ms / 1000,
        explicit_lac_interval_s=config.explicit_lac_ms / 1000,
        placement_racks_min=config.racks_min,
        placement_zones_min=config.zones_min,
        placement_enforced=config.placement_enforced,
        placement_by_free_space=config.placement_by_free_space,
        security=security or ClientSecuritySettings(),
    )
