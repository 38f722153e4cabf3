"""Every key of auto-recovery reaches its settings, in the right units."""

import pytest
from pydantic import ValidationError

from quire_bookie.config.recovery import AutoRecoveryConfig
from quire_bookie.settings.recovery import RecoverySettings
from tests.support.setting_values import RECOVERY


def test_every_field_is_listed_here() -> None:
    assert set(AutoRecoveryConfig.model_fields) == set(RECOVERY)


@pytest.mark.parametrize("field", sorted(RECOVERY))
def test_a_field_changes_the_settings(field: str) -> None:
    changed = AutoRecoveryConfig.model_validate({field: RECOVERY[field]})
    assert changed.part(RecoverySettings) != AutoRecoveryConfig.model_validate({}).part(RecoverySettings)


def test_values_arrive_in_the_units_of_the_settings() -> None:
    settings = AutoRecoveryConfig.model_validate(RECOVERY).part(RecoverySettings)
    assert (settings.workers, settings.audits, settings.lost_bookie_delay_s) == (3, False, 7)
    assert (settings.open_ledger_grace_s, settings.retry_s[0], settings.verified_share) == (1.5, 2.5, 0.25)
    assert AutoRecoveryConfig.model_validate({"replication_rate_bytes": -1}).part(RecoverySettings).rate_bytes_s == 0


def test_a_first_wait_above_the_longest_is_refused() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 3600000"):
        AutoRecoveryConfig.model_validate({"recovery_retry_ms": 3_600_001})
