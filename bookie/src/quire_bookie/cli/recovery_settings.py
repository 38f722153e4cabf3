"""Maps the configuration of auto-recovery to its settings. Pure."""

from quire_bookie import limits
from quire_bookie.config.recovery import AutoRecoveryConfig
from quire_bookie.recovery.settings import RecoverySettings


def recovery_settings(config: AutoRecoveryConfig) -> RecoverySettings:
    """Map the settings of the auditor and the workers."""
    return RecoverySettings(
        workers=config.recovery_workers,
        audits=config.recovery_audits,
        lost_bookie_delay_s=config.lost_bookie_delay_s,
        rate_bytes_s=max(0, config.replication_rate_bytes),
        operations_s=config.auditor_operations_per_second,
        check_interval_s=float(config.auditor_check_interval_s),
        audit_interval_s=float(config.auditor_bookie_check_interval_s),
        placement_check_interval_s=float(config.placement_check_interval_s),
        repair_placement=config.repair_placement,
        verified_share=config.auditor_verification_percentage / 100,
        open_ledger_grace_s=config.open_ledger_grace_ms / 1000,
        unmarked_write_quorum=config.unmarked_write_quorum,
        retry_s=(config.recovery_retry_ms / 1000, limits.REPLICATION_RETRY_S[1]),
    )
