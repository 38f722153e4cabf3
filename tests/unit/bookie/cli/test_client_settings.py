"""Every key of the ledger client reaches it, in its units."""

import pytest
from pydantic import ValidationError

from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.tls import ClientSecuritySettings
from tests.support.setting_values import LEDGER_CLIENT


def test_every_field_is_listed_here() -> None:
    assert set(LedgerClientConfig.model_fields) == set(LEDGER_CLIENT)


def test_the_defaults_are_the_clients_own() -> None:
    assert LedgerClientConfig.model_validate({}).part(ClientSettings) == ClientSettings()


@pytest.mark.parametrize("field", sorted(LEDGER_CLIENT))
def test_a_field_changes_the_settings(field: str) -> None:
    changed = LedgerClientConfig.model_validate({field: LEDGER_CLIENT[field]})
    assert changed.part(ClientSettings) != ClientSettings()


def test_values_arrive_in_the_units_of_the_settings() -> None:
    settings = LedgerClientConfig.model_validate(LEDGER_CLIENT).part(ClientSettings)
    assert (settings.add_timeout_s, settings.read_timeout_s, settings.connect_timeout_s) == (12.5, 12.5, 1.5)
    assert (settings.writer_pending_bytes_max, settings.slow_replica_bytes_max) == (7 * 1024 * 1024, 3 * 1024 * 1024)
    assert (settings.speculative_read_first_s, settings.speculative_read_max_s) == (0.25, 3.0)
    assert (settings.explicit_lac_interval_s, settings.add_quorum_timeout_s) == (0.5, 9.0)
    assert LedgerClientConfig.model_validate({}).part(ClientSettings).add_quorum_timeout_s is None


def test_the_security_is_passed_on() -> None:
    security = ClientSecuritySettings(token="secret")
    assert LedgerClientConfig.model_validate({}).part(ClientSettings, security=security).security is security


def test_waits_that_do_not_grow_are_refused_with_both_values() -> None:
    with pytest.raises(ValidationError, match=r"maxSpeculativeReadTimeout 5000 is below .* 6000"):
        LedgerClientConfig.model_validate({"speculative_read_ms": 6000})
