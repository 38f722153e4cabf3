"""Plans and status of proxies."""

from dataclasses import replace
from typing import Any

import pytest

from quire_operator.api.managed_ledger import LedgerState, ProxyStatus
from quire_operator.cluster.observing_proxy import observed_proxy
from quire_operator.plan import actions as act
from quire_operator.plan.ledger_observation import LedgerObservation, ObservedProxy
from quire_operator.plan.managed_ledger import LedgerPlan
from quire_operator.plan.observation import ObservedPod
from quire_operator.plan.operations import rfc3339
from tests.unit.operator.plan.test_managed_ledger import THERE, condition, plan, seen

READY = ObservedProxy(replicas=2, updated=2, ready=2)
PULLS = ("ImagePullBackOff", 'Back-off pulling image "quire:typo"')


def with_proxy(there: ObservedProxy | None = READY, **proxy: Any) -> LedgerObservation:
    return replace(seen(THERE, proxy=proxy), proxy=there)


def applied(found: LedgerPlan) -> set[str]:
    """Return the kinds of applied objects of proxies."""
    manifests = [action.manifest for action in found.actions if isinstance(action, act.Apply)]
    return {one["kind"] for one in manifests if one["metadata"]["name"] == "orders-proxy"}


def test_declared_proxies_are_applied_and_reported() -> None:
    found = plan(with_proxy())
    assert applied(found) == {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget"}
    assert found.status.proxy == ProxyStatus(service_url="pulsar://orders-proxy.ns.svc:6650", replicas=2, ready=2)
    assert condition(found, "ProxyReady").status == "True"
    assert found.status.state is LedgerState.OPEN


def test_without_proxies_there_is_no_condition_and_no_status() -> None:
    found = plan(seen())
    assert not applied(found)
    assert found.status.proxy is None
    assert "ProxyReady" not in {one.type for one in found.status.conditions}


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (None, "0 of 2 proxies are ready"),
        (replace(READY, ready=1), "1 of 2 proxies are ready"),
        (replace(READY, updated=1), "1 of 2 proxies are ready"),
        (replace(READY, current=False), "0 of 2 proxies are ready"),
        (replace(READY, ready=0, rejected_pod="exceeded quota: compute"), "0 of 2 proxies are ready: exceeded quota"),
        (
            replace(READY, ready=1, pods=(ObservedPod("orders-proxy-x", blocked=PULLS),)),
            "1 of 2 proxies are ready: orders-proxy-x: ImagePullBackOff",
        ),
    ],
)
def test_proxies_that_are_not_ready_are_waited_for(there: ObservedProxy | None, message: str) -> None:
    found = plan(with_proxy(there))
    for kind, expected in (("ProxyReady", "False"), ("Reconciling", "True"), ("Ready", "True")):
        assert condition(found, kind).status == expected, kind
    assert condition(found, "ProxyReady").message.startswith(message)
    assert condition(found, "Reconciling").reason == "ProxiesNotReady"


@pytest.mark.parametrize(("age_s", "degraded"), [(299, "False"), (301, "True")])
def test_proxies_that_stay_away_degrade_the_resource(age_s: float, degraded: str) -> None:
    since = rfc3339(seen().now_s - age_s)
    found = plan(with_proxy(replace(READY, ready=1, unavailable_since=since)))
    assert condition(found, "Degraded").status == degraded
    if degraded == "True":
        assert condition(found, "Degraded").reason == "ProxiesAway"
        assert condition(found, "Ready").status == "False"


def test_objects_of_former_proxies_are_deleted_and_reported_until_then() -> None:
    before = seen()
    row = ProxyStatus(service_url="pulsar://orders-proxy.ns.svc:6650", replicas=2, ready=2)
    status = before.resource.status.model_copy(update={"proxy": row})
    gone = replace(before, resource=before.resource.model_copy(update={"status": status}))
    deletion = act.DeleteChild("apps/v1", "Deployment", "orders-proxy", "u-3")
    found = plan(replace(gone, unwanted_of_proxy=(deletion,)))
    assert deletion in found.actions
    assert found.status.proxy == row
    assert plan(gone).status.proxy is None


def test_nothing_changes_while_the_token_of_the_proxies_is_missing() -> None:
    brokers = {"authentication": {"tokenKeySecret": "tokens"}}
    found = plan(replace(seen(THERE, proxy={}, brokers=brokers), lacks_proxy_token=True))
    assert not found.actions
    stalled = condition(found, "Stalled")
    assert (stalled.status, stalled.reason) == ("True", "InvalidSpec")
    assert "Secret tokens lacks proxy.token: add it (`quire tokens create --subject quire-proxy`)" in stalled.message


@pytest.mark.parametrize(
    ("proxy", "fault"),
    [
        ({"settings": {"proxyBufferByte": "1"}}, "did you mean proxyBufferBytes?"),
        ({"settings": {"tlsEnabledWithBroker": "true"}, "tls": {"secretName": "own"}}, ""),
        ({"settings": {"servicePortTls": "1"}, "tls": {"secretName": "own"}}, "set by another field"),
        ({"podTemplate": {"spec": {"hostNetwork": True}}}, "proxy.podTemplate: hostNetwork is not allowed"),
    ],
)
def test_errors_of_the_spec_are_found_before_anything_is_applied(proxy: dict[str, Any], fault: str) -> None:
    found = condition(plan(with_proxy(**proxy)), "Stalled")
    assert (found.status == "True") == bool(fault)
    assert fault in found.message


def test_client_certificates_are_not_required_yet() -> None:
    found = plan(with_proxy(tls={"secretName": "own", "clientAuthentication": True}))
    assert condition(found, "NotYetServed").message == "spec.proxy.tls.clientAuthentication"


def test_a_deployment_is_observed() -> None:
    at = "2030-01-01T00:00:00Z"
    status = {"replicas": 3, "updatedReplicas": 1, "readyReplicas": 2, "observedGeneration": 4}
    conditions = [
        {"type": "Available", "status": "False", "lastTransitionTime": at},
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
    ]
    given: dict[str, Any] = {"metadata": {"generation": 5}, "status": status | {"conditions": conditions}}
    assert observed_proxy(given) == ObservedProxy(3, 1, 2, False, at, "exceeded quota")
    for one in conditions:
        one["status"] = "True" if one["type"] == "Available" else "False"
    given["metadata"]["generation"] = 4
    assert observed_proxy(given) == ObservedProxy(3, 1, 2)
    assert observed_proxy({"metadata": {"generation": 1}}) == ObservedProxy(current=False)
