"""Errors of a spec that CEL rules cannot detect."""

from typing import Any

import pytest

from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.sources import ProcessConfig
from quire_broker.config.broker import BrokerConfig
from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.generated.known_settings import BOOKIE_KEYS, BROKER_KEYS
from quire_operator.plan.spec_checks import (
    bookie_faults,
    managed_ledger_faults,
    not_served_by_bookies,
    not_served_by_brokers,
)
from tests.support.kube_resources import bookie, managed_ledger

POOL = Bookie.model_validate(bookie())


@pytest.mark.parametrize(("model", "keys"), [(BookieConfig, BOOKIE_KEYS), (BrokerConfig, BROKER_KEYS)])
def test_the_known_keys_match_the_processes(model: type[ProcessConfig], keys: frozenset[str]) -> None:
    there = {model.key_of(name) for name in model.model_fields}
    assert keys == there, "run `make settings`"


def test_a_misspelt_setting_is_reported_with_a_suggestion() -> None:
    found = bookie_faults(Bookie.model_validate(bookie(engine={"settings": {"gcWaittime": "1", "longPollsMax": "1"}})))
    assert found == ["engine.settings: gcWaittime is not a known setting; did you mean gcWaitTime?"]


def test_a_setting_with_its_own_field_is_refused() -> None:
    found = bookie_faults(Bookie.model_validate(bookie(engine={"settings": {"dbStorage_writeCacheMaxSizeMb": "16"}})))
    assert found == ["engine.settings: dbStorage_writeCacheMaxSizeMb is set by another field of the spec: remove it"]


@pytest.mark.parametrize(
    ("spec", "pool", "bookies", "fragment"),
    [
        ({}, POOL, 3, None),
        ({}, POOL, None, None),
        ({}, None, None, "Bookie pool not found"),
        ({"replication": {"ensemble": 4}}, POOL, 3, "replication.ensemble is 4, but the cluster has 3 bookies"),
        ({"brokers": {"settings": {"nonsense": "1"}}}, POOL, 3, "nonsense is not a known setting"),
        (
            {"brokers": {"settings": {"managedLedgerCacheSizeMB": "1"}}},
            *(POOL, 3, "managedLedgerCacheSizeMB is set by another field"),
        ),
    ],
)
def test_a_managed_ledger_is_checked_against_its_pool_and_the_cluster(
    spec: dict[str, Any], pool: Bookie | None, bookies: int | None, fragment: str | None
) -> None:
    found = managed_ledger_faults(ManagedLedger.model_validate(managed_ledger(**spec)), pool, bookies)
    assert len(found) == (fragment is not None)
    assert fragment is None or fragment in found[0]


def test_fields_without_effect_are_reported() -> None:
    spec = {
        "backlogQuota": {"size": "1Gi"},
        "access": [{"role": "r", "actions": ["Admin"]}],
        "offload": {"target": "s3://cold"},
    }
    assert not_served_by_brokers(ManagedLedger.model_validate(managed_ledger())) == []
    found = not_served_by_brokers(ManagedLedger.model_validate(managed_ledger(**spec)))
    assert found == ["spec.access"]
    assert not_served_by_bookies(POOL) == []
    wide = Bookie.model_validate(bookie(autoscale={"min": 3, "max": 5}))
    assert not_served_by_bookies(wide) == []


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ({}, ["spec.access"]),
        ({"authentication": {"tokenKeySecret": "keys"}}, []),
        ({"settings": {"authenticationEnabled": "true", "authorizationEnabled": "true"}}, []),
        (
            {"authentication": {"tokenKeySecret": "keys"}, "settings": {"authorizationEnabled": "false"}},
            ["spec.access"],
        ),
    ],
)
def test_access_has_effect_if_brokers_authorize_clients(brokers: dict[str, Any], expected: list[str]) -> None:
    spec = {"brokers": brokers, "access": [{"role": "r", "actions": ["Produce"]}]}
    assert not_served_by_brokers(ManagedLedger.model_validate(managed_ledger(**spec))) == expected


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ({"secretName": "own"}, []),
        ({"clientAuthentication": True}, ["spec.brokers.tls.clientAuthentication"]),
        (
            {"clientAuthentication": True, "authorizedRoles": ["shop"]},
            ["spec.brokers.tls.clientAuthentication", "spec.brokers.tls.authorizedRoles"],
        ),
    ],
)
def test_client_certificates_that_brokers_do_not_require_are_reported(tls: dict[str, Any], expected: list[str]) -> None:
    ledger = ManagedLedger.model_validate(managed_ledger(brokers={"tls": tls}))
    assert not_served_by_brokers(ledger) == expected


def test_missing_tokens_in_a_secret_are_a_fault_with_their_names() -> None:
    resource = Bookie.model_validate(bookie(authentication={"tokenKeySecret": "tokens"}))
    assert bookie_faults(resource) == []
    (fault,) = bookie_faults(resource, frozenset({"operator.token", "broker.token"}))
    assert "Secret tokens lacks broker.token, operator.token" in fault
    assert bookie_faults(Bookie.model_validate(bookie()), frozenset({"token.key"})) == []


def test_the_allowed_hosts_of_an_http_port_may_be_set_by_settings() -> None:
    settings = {"httpServerAllowedHosts": "*"}
    assert bookie_faults(Bookie.model_validate(bookie(engine={"settings": settings}))) == []
    assert bookie_faults(Bookie.model_validate(bookie(engine={"settings": {"httpServerAdminRemote": "false"}}))) != []
