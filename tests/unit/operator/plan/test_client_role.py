"""Plans of a ClientRole: permissions that become as declared, and who else may declare them."""

from dataclasses import replace
from typing import Any

import pytest

from quire_operator.api.client_role import ClientRole
from quire_operator.api.conditions import Truth
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.broker import service_url
from quire_operator.plan import actions as act
from quire_operator.plan.client_role import ClientRoleObservation, namespaces_of, plan_client_role, tenants_of
from quire_operator.plan.declared import Surroundings
from quire_operator.plan.ledger_observation import NamespaceState, TenantState
from quire_operator.plan.namespace import isolation
from quire_operator.plan.role_token import ObservedToken
from tests.support.kube_resources import changed, declared, managed_ledger

NOW_S = 1_900_000_000.0
NAME = "shop/orders"
TOPIC = "persistent://shop/orders/placed"
SERVED = isolation(NAME, r"orders\-broker-[0-9]+\.orders\-brokers\.ns\.svc")
SECURED = {"authentication": {"tokenKeySecret": "keys", "superUserRoles": ["root"]}}
DELETED = {"metadata.deletionTimestamp": "2026-01-02T00:00:00Z"}
IN_NAMESPACE = {"namespace": NAME, "actions": ["Produce", "Consume"]}
IN_TOPIC = {"topic": f"{NAME}/placed", "actions": ["Consume"]}
IN_TENANT = {"tenant": "shop", "actions": ["Admin"]}
BOTH = ("consume", "produce")


def ledger(**spec: Any) -> ManagedLedger:
    manifest = changed(managed_ledger(**({"brokers": SECURED} | spec)), {"metadata.namespace": "ns"})
    return ManagedLedger.model_validate(manifest)


VALID = ObservedToken(None, True, True, "billing", NOW_S + 20 * 86_400, service_url(ledger()))


def role(changes: dict[str, Any] | None = None, *permissions: dict[str, Any], **spec: Any) -> ClientRole:
    manifest = declared("ClientRole", "billing", permissions=list(permissions), **spec)
    return ClientRole.model_validate(changed(manifest, changes or {}))


def there(
    grants: dict[str, tuple[str, ...]] | None = None,
    admins: tuple[str, ...] = (),
    topics: dict[str, tuple[str, ...]] | None = None,
) -> NamespaceState:
    return NamespaceState(
        True, grants=grants or {}, admins=admins, topic_grants={TOPIC: topics or {}}, isolation=SERVED
    )


def observed(
    resource: ClientRole, state: NamespaceState | None, tenant: TenantState | None = None, **fields: Any
) -> ClientRoleObservation:
    return ClientRoleObservation(
        resource,
        Surroundings(NOW_S, ledger()),
        None if state is None else {NAME: state},
        {"shop": tenant or TenantState(True, ("ops",), ("quire",))},
        **({"token": VALID} | fields),
    )


@pytest.mark.parametrize(
    ("permission", "state", "actions"),
    [
        (IN_NAMESPACE, there(), (act.Grant(NAME, "billing", BOTH),)),
        (IN_NAMESPACE, there({"billing": BOTH, "other": ("consume",)}), ()),
        (IN_NAMESPACE, there({"billing": ("consume",)}), (act.Grant(NAME, "billing", BOTH),)),
        (
            {"namespace": NAME, "actions": ["Consume"]},
            there({"billing": BOTH}),
            (act.Grant(NAME, "billing", ("consume",)),),
        ),
        (
            {"namespace": NAME, "actions": ["Admin"]},
            there(admins=("keeper",)),
            (act.SetAdmins(NAME, ("keeper", "billing")),),
        ),
        (
            {"namespace": NAME, "actions": ["Consume"]},
            there({"billing": ("consume",)}, ("billing", "keeper")),
            (act.SetAdmins(NAME, ("keeper",)),),
        ),
        (IN_TOPIC, there(), (act.GrantTopic(NAME, "placed", "billing", ("consume",)),)),
        (IN_TOPIC, there(topics={"billing": ("consume",)}), ()),
        (IN_TENANT, there(), (act.SetTenant("shop", ("ops", "billing"), ("quire",)),)),
    ],
)
def test_a_role_gets_exactly_what_is_declared(
    permission: dict[str, Any], state: NamespaceState, actions: tuple[object, ...]
) -> None:
    decision, status = plan_client_role(observed(role(None, permission), state))
    assert decision.actions == actions
    assert status.permissions == (0 if actions else 1)
    assert len(status.granted) == 1, "written together with the claim, before the grant"


@pytest.mark.parametrize(
    ("scope", "state", "actions"),
    [
        (f"namespace {NAME}", there({"billing": BOTH}), (act.Grant(NAME, "billing", ()),)),
        (f"namespace {NAME}", there(), ()),
        (
            f"topic {NAME}/placed",
            there(topics={"billing": ("consume",)}),
            (act.GrantTopic(NAME, "placed", "billing", ()),),
        ),
        (f"namespace {NAME}", NamespaceState(False), ()),
    ],
)
def test_a_permission_that_is_not_declared_any_more_is_revoked(
    scope: str, state: NamespaceState, actions: tuple[object, ...]
) -> None:
    decision, status = plan_client_role(observed(role({"status.granted": [scope]}), state))
    assert decision.actions == actions
    assert status.granted == ((scope,) if actions else ())


def test_grants_by_hand_elsewhere_are_left_alone() -> None:
    decision, _ = plan_client_role(observed(role(), there({"billing": BOTH}, ("billing",))))
    assert decision.actions == ()


def test_a_role_that_has_other_permissions_is_not_adopted() -> None:
    state = there({"billing": BOTH})
    less = {"namespace": NAME, "actions": ["Consume"]}
    decision, _ = plan_client_role(observed(role({"status.managed": False}, less), state))
    assert decision.outcome.reason == "NotAdopted"
    assert f"namespace {NAME}: granted are consume, produce, declared are consume" in decision.outcome.message
    adds, _ = plan_client_role(
        observed(role({"status.managed": False}, IN_NAMESPACE), there({"billing": ("consume",)}))
    )
    assert adds.managed


@pytest.mark.parametrize(
    ("resource", "fields", "reason"),
    [
        (role(None, role="quire-operator"), {}, "ReservedRole"),
        (role(None, role="root"), {}, "ReservedRole"),
        (role(None, IN_NAMESPACE, IN_NAMESPACE), {}, "InvalidSpec"),
        (role(None, IN_TENANT), {"exact_admins": {"shop": ("ops",)}}, "AccessDeclared"),
        (role(None, IN_NAMESPACE), {"token": ObservedToken("Secret keys has no key token.key")}, "NoSigningKey"),
        (role(None, IN_NAMESPACE), {"token": ObservedToken(exists=True)}, "SecretNotOurs"),
    ],
)
def test_what_a_user_must_fix_changes_nothing(resource: ClientRole, fields: dict[str, Any], reason: str) -> None:
    decision, _ = plan_client_role(observed(resource, there(), **fields))
    assert (decision.outcome.reason, decision.actions) == (reason, ())


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"brokers": {}}, "NoAuthentication"),
        ({"access": [{"role": "x", "actions": ["Admin"]}]}, "AccessDeclared"),
    ],
)
def test_the_managed_ledger_must_ask_for_tokens_and_must_not_declare_all_roles(
    spec: dict[str, Any], reason: str
) -> None:
    seen = replace(observed(role(None, IN_NAMESPACE), there()), around=Surroundings(NOW_S, ledger(**spec)))
    decision, _ = plan_client_role(seen)
    assert (decision.outcome.reason, decision.actions) == (reason, ())


def test_a_namespace_of_other_brokers_is_not_changed() -> None:
    elsewhere = replace(there(), isolation=isolation(NAME, "others-broker-0"))
    decision, _ = plan_client_role(observed(role(None, IN_NAMESPACE), elsewhere))
    assert (decision.outcome.reason, decision.actions) == ("NotServed", ())


def test_a_role_waits_for_tenants_and_namespaces() -> None:
    decision, _ = plan_client_role(observed(role(None, IN_NAMESPACE), NamespaceState(False)))
    assert decision.outcome.reason == "NoNamespace"
    decision, _ = plan_client_role(observed(role(None, IN_TENANT), there(), TenantState(False)))
    assert decision.outcome.reason == "NoTenant"


def test_permissions_of_a_silent_broker_are_unknown() -> None:
    decision, status = plan_client_role(observed(role(None, IN_NAMESPACE), None))
    assert decision.outcome.ready is Truth.UNKNOWN and not decision.actions and status.permissions is None


def test_a_missing_token_is_issued_and_one_that_expires_soon_is_replaced_while_in_sync() -> None:
    resource, state = role(None, IN_NAMESPACE), there({"billing": BOTH})
    wanted = act.IssueToken("billing-token", "billing", int(NOW_S) + 720 * 3600, service_url(ledger()))
    missing, status = plan_client_role(observed(resource, state, token=ObservedToken()))
    assert missing.actions == (wanted,) and missing.outcome.reason == "Applying"
    assert (status.token_secret, status.token_expires_at) == (None, None)
    old = replace(VALID, expires_s=NOW_S + 3600)
    renewed, status = plan_client_role(observed(resource, state, token=old))
    assert renewed.actions == (wanted,) and renewed.outcome.reason == "InSync"
    assert (status.token_secret, status.token_expires_at) == ("billing-token", "2030-03-17T18:46:40Z")


def test_the_permissions_are_revoked_with_the_resource_unless_they_are_to_stay() -> None:
    granted = {"status.granted": [f"topic {NAME}/old"]}
    state = replace(there({"billing": BOTH}), topic_grants={f"persistent://{NAME}/old": {"billing": ("produce",)}})
    gone, _ = plan_client_role(observed(role(DELETED | granted, IN_NAMESPACE), state))
    assert set(gone.actions) == {act.Grant(NAME, "billing", ()), act.GrantTopic(NAME, "old", "billing", ())}
    free, _ = plan_client_role(observed(role(DELETED | granted, IN_NAMESPACE), there()))
    assert free.actions == (act.SetFinalizer(False),)
    kept, _ = plan_client_role(observed(role(DELETED, IN_NAMESPACE, deletionPolicy="Retain"), state))
    assert kept.actions == (act.SetFinalizer(False),)


def test_a_role_is_read_where_it_has_or_had_permissions() -> None:
    former = {"status.granted": ["tenant old", "namespace a/b", "topic c/d/t"]}
    resource = role(former, IN_TOPIC, IN_TENANT)
    assert namespaces_of(resource) == {"a/b", "c/d", NAME}
    assert tenants_of(resource) == {"old", "shop"}
