"""Every key of auto-recovery reaches its room, in the room's units."""

from typing import Any

import pytest
from pydantic import ValidationError

from quire_bookie.cli.recovery_settings import recovery_settings
from quire_bookie.config.recovery import AutoRecoveryConfig

OTHER: dict[str, Any] = {
    "recovery_workers": 3,
    "recovery_audits": False,
    "lost_bookie_delay_s": 7,
    "replication_rate_bytes": 12345,
    "auditor_operations_per_second": 5.5,
    "auditor_check_interval_s": 61,
    "auditor_bookie_check_interval_s": 62,
    "auditor_verification_percentage": 25,
    "open_ledger_grace_ms": 1500,
    "recovery_retry_ms": 2500,
}


def test_every_field_is_listed_here() -> None:
    assert set(AutoRecoveryConfig.model_fields) == set(OTHER)


@pytest.mark.parametrize("field", sorted(OTHER))
def test_a_field_changes_the_settings(field: str) -> None:
    assert recovery_settings(AutoRecoveryConfig.model_validate({})) != recovery_settings(
        AutoRecoveryConfig.model_validate({field: OTHER[field]})
    )


def test_values_arrive_in_the_units_of_the_room() -> None:
    settings = recovery_settings(AutoRecoveryConfig.model_validate(OTHER))
    assert (settings.workers, settings.audits, settings.lost_bookie_delay_s) == (3, False, 7)
    assert (settings.open_ledger_grace_s, settings.retry_s[0], settings.verified_share) == (1.5, 2.5, 0.25)
    assert recovery_settings(AutoRecoveryConfig.model_validate({"replication_rate_bytes": -1})).rate_bytes_s == 0


def test_a_first_wait_above_the_longest_is_refused() -> None:
    with pytest.raises(ValidationError, match="take 3600000 or less"):
        AutoRecoveryConfig.model_validate({"recovery_retry_ms": 3_600_001})
