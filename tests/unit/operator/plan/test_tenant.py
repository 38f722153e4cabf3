"""Plans of a Tenant."""

from typing import Any

import pytest

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.tenant import Tenant
from quire_operator.plan import actions as act
from quire_operator.plan.declared import Surroundings
from quire_operator.plan.ledger_observation import TenantState
from quire_operator.plan.tenant import TenantObservation, plan_tenant
from tests.support.kube_resources import changed, declared, managed_ledger

THERE = TenantState(True, ("ops",), ("quire",), 2)
LEDGER = ManagedLedger.model_validate(managed_ledger())


def observed(state: TenantState | None, changes: dict[str, Any] | None = None, **spec: Any) -> TenantObservation:
    manifest = changed(declared("Tenant", "shop", **spec), changes or {})
    return TenantObservation(Tenant.model_validate(manifest), Surroundings(1e9, LEDGER), state)


@pytest.mark.parametrize(
    ("state", "spec", "actions"),
    [
        (TenantState(False), {"adminRoles": ["ops"]}, (act.SetTenant("shop", ("ops",)),)),
        (TenantState(False), {"tenant": "other"}, (act.SetTenant("other", ()),)),
        (THERE, {"adminRoles": ["ops"]}, ()),
        (THERE, {}, ()),
        (THERE, {"adminRoles": ["ops", "dev"]}, (act.SetTenant("shop", ("ops", "dev"), ("quire",)),)),
        (THERE, {"adminRoles": ["dev"]}, (act.SetTenant("shop", ("dev",), ("quire",)),)),
        (None, {"adminRoles": ["dev"]}, ()),
    ],
)
def test_a_tenant_becomes_as_declared(
    state: TenantState | None, spec: dict[str, Any], actions: tuple[object, ...]
) -> None:
    decision, _ = plan_tenant(observed(state, **spec))
    assert decision.actions == actions


def test_roles_that_are_only_added_do_not_hinder_an_adoption() -> None:
    changes = {"status.managed": False}
    adopted, _ = plan_tenant(observed(THERE, changes, adminRoles=["ops", "dev"]))
    assert adopted.managed
    refused, _ = plan_tenant(observed(THERE, changes, adminRoles=["dev"]))
    assert refused.outcome.reason == "NotAdopted"
    assert "adminRoles are ops, declared are dev" in refused.outcome.message


def test_the_status_has_figures_only_while_they_are_known() -> None:
    _, status = plan_tenant(observed(THERE))
    assert (status.tenant, status.namespaces, status.admin_roles) == ("shop", 2, 1)
    for state in (None, TenantState(False)):
        _, status = plan_tenant(observed(state))
        assert (status.namespaces, status.admin_roles) == (None, None)


def test_a_tenant_with_namespaces_is_not_deleted() -> None:
    deleted = {"metadata.deletionTimestamp": "2026-01-02T00:00:00Z"}
    held, _ = plan_tenant(observed(THERE, deleted, deletionPolicy="Delete"))
    assert not held.actions and "still has namespaces (2)" in held.outcome.message
    empty, _ = plan_tenant(observed(TenantState(True, (), ("quire",), 0), deleted, deletionPolicy="Delete"))
    assert empty.actions == (act.DeleteTenant("shop"),)
