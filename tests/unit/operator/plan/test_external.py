"""Each broker gets an address outside the cluster before its pod starts, and keeps it."""

from dataclasses import replace
from typing import Any

import pytest

from quire_broker.ownership.listeners import Binding, parse_bindings
from quire_operator.api.managed_ledger import ExternalRow, ManagedLedger, RolloutStep
from quire_operator.api.managed_ledger_spec import ExternalType
from quire_operator.plan import actions as act
from quire_operator.plan.ledger_observation import LedgerObservation, ObservedService
from quire_operator.plan.managed_ledger import LedgerPlan, plan_managed_ledger
from quire_operator.plan.observation import ObservedPod, ObservedStatefulSet
from tests.unit.operator.plan.test_managed_ledger import seen

PORTS = {"pulsar": 6650, "pulsar-tls": 6651}
BALANCER = {"type": "LoadBalancer"}


def service(ordinal: int, host: str | None = None, ports: dict[str, int] | None = None) -> ObservedService:
    ports = {"pulsar": 6650} if ports is None else ports
    return ObservedService(f"orders-broker-{ordinal}", f"s{ordinal}", host, ports)


def world(
    replicas: int, there: int, *services: ObservedService, external: dict[str, Any] | None = BALANCER
) -> LedgerObservation:
    wanted = {"replicas": replicas} | ({} if external is None else {"external": external})
    pods = tuple(
        ObservedPod(f"orders-broker-{one}", f"u{one}", ready=True, node_address=f"192.0.2.{one}")
        for one in range(there)
    )
    stateful_set = ObservedStatefulSet("orders-broker", "u", there) if there else None
    return replace(seen(brokers=wanted), pods=pods, stateful_set=stateful_set, services=services)


def plan(what: LedgerObservation) -> LedgerPlan:
    return plan_managed_ledger(what, "quire:1")


def after(what: LedgerObservation) -> LedgerObservation:
    """Return the same with the status of its plan."""
    resource = ManagedLedger.model_validate(what.resource.plain() | {"status": plan(what).status.plain()})
    return replace(what, resource=resource)


def applied(found: LedgerPlan, kind: str) -> dict[str, dict[str, Any]]:
    made = [one.manifest for one in found.actions if isinstance(one, act.Apply)]
    return {one["metadata"]["name"]: one for one in made if one["kind"] == kind}


def brokers(found: LedgerPlan) -> tuple[int, bool]:
    """Return the replicas of the StatefulSet, and whether its pods read their listeners."""
    spec = applied(found, "StatefulSet")["orders-broker"]["spec"]
    main = spec["template"]["spec"]["containers"][0]
    return spec["replicas"], "advertisedListenersFile=/etc/quire/external/$(POD_NAME)" in main["args"]


def listeners(found: LedgerPlan) -> dict[str, str]:
    data: dict[str, str] = applied(found, "ConfigMap")["orders-external"]["data"]
    return data


def test_each_broker_has_a_service_of_its_own() -> None:
    found = applied(plan(world(2, 0, external={"type": "LoadBalancer", "annotations": {"lb": "outside"}})), "Service")
    one = found["orders-broker-1"]
    assert one["spec"]["type"] == "LoadBalancer" and one["metadata"]["annotations"] == {"lb": "outside"}
    assert one["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "orders-broker-1"
    assert one["spec"]["ports"] == [{"name": "pulsar", "port": 6650, "targetPort": "ext-pulsar"}]
    assert one["metadata"]["labels"]["app.kubernetes.io/name"] == "quire-external", "no Service of all brokers"


def test_brokers_start_without_addresses_and_get_them_by_a_change_of_their_pods() -> None:
    first = plan(world(2, 0))
    assert brokers(first) == (2, False) and listeners(first) == {}
    waiting = plan(world(2, 2, service(0, "a.example"), service(1)))
    assert brokers(waiting) == (2, False)
    said = next(one for one in waiting.status.conditions if one.type == "Reconciling")
    assert (said.reason, said.message) == ("ExternalAddress", "Service orders-broker-1 has no address yet")
    known = plan(world(2, 2, service(0, "a.example"), service(1, "2001:db8::7")))
    assert brokers(known) == (2, True)
    assert listeners(known) == {
        "orders-broker-0": "external:pulsar://a.example:6650",
        "orders-broker-1": "external:pulsar://[2001:db8::7]:6650",
    }
    assert [row.host for row in known.status.external] == ["a.example", "2001:db8::7"]


def test_clients_outside_have_ports_of_their_own_from_the_next_start_of_a_broker_on() -> None:
    before = world(2, 2, service(0, "a.example"), service(1, "b.example"))
    main = applied(plan(before), "StatefulSet")["orders-broker"]["spec"]["template"]["spec"]["containers"][0]
    (bound,) = [one.partition("=")[2] for one in main["args"] if one.startswith("bindAddresses=")]
    assert parse_bindings(bound) == (Binding("external", "0.0.0.0", 6660, tls=False),)
    ports = {one["name"]: one["containerPort"] for one in main["ports"]}
    assert ports["ext-pulsar"] == 6660
    older, newer = (
        replace(pod, ports=names)
        for pod, names in zip(before.pods, (frozenset({"pulsar"}), frozenset(ports)), strict=True)
    )
    for pods, expected in (
        ((older, newer), ["pulsar", "ext-pulsar"]),
        ((replace(older, deleting=True), newer), ["ext-pulsar", "ext-pulsar"]),
        ((newer,), ["ext-pulsar", "ext-pulsar"]),
    ):
        found = applied(plan(replace(before, pods=pods)), "Service")
        targets = [found[f"orders-broker-{one}"]["spec"]["ports"][0]["targetPort"] for one in range(2)]
        assert targets == expected
        assert [one["name"] for one in found["orders-broker"]["spec"]["ports"]] == ["pulsar", "http"]


def test_a_further_broker_is_created_once_it_has_an_address() -> None:
    there = [service(0, "a.example")]
    assert brokers(plan(world(3, 1, *there, service(1), service(2, "c.example")))) == (1, True)
    assert brokers(plan(world(3, 1, *there, service(1, "b.example"), service(2)))) == (2, True)
    assert brokers(plan(world(3, 2, *there, service(1, "b.example"), service(2, "c.example")))) == (3, True)


def test_a_change_is_tried_on_a_broker_that_exists_while_a_further_one_waits() -> None:
    known = [service(0, "a.example"), service(1, "b.example"), service(2)]
    first = after(world(3, 2, *known))
    record = first.resource.status.rollout
    assert record is not None
    done = record.model_copy(update={"step": RolloutStep.DONE, "good": record.revision})
    status = first.resource.status.model_copy(update={"rollout": done})
    brokers_spec = first.resource.spec.brokers.model_copy(update={"image": "quire:2"})
    spec = first.resource.spec.model_copy(update={"brokers": brokers_spec})
    found = plan(replace(first, resource=first.resource.model_copy(update={"status": status, "spec": spec})))
    stateful_set = applied(found, "StatefulSet")["orders-broker"]["spec"]
    assert (stateful_set["replicas"], stateful_set["updateStrategy"]["rollingUpdate"]["partition"]) == (2, 1)
    (started,) = [one for one in found.actions if isinstance(one, act.Emit) and one.reason == "RolloutStarted"]
    assert started.message.endswith("orders-broker-1 gets it first")


def test_an_address_that_is_not_reported_for_a_moment_stays_known() -> None:
    before = after(world(1, 1, service(0, "a.example")))
    found = plan(replace(before, services=(service(0),)))
    assert brokers(found) == (1, True) and listeners(found) == {"orders-broker-0": "external:pulsar://a.example:6650"}
    assert brokers(plan(replace(before, services=()))) == (1, True), "the Service is applied again"


def test_a_node_port_is_on_the_node_that_the_pod_has_when_it_starts() -> None:
    external = {"type": "NodePort", "listenerName": "outside"}
    assert brokers(plan(world(1, 1, service(0, ports={}), external=external))) == (1, False)
    found = plan(world(1, 1, service(0, ports={"pulsar": 31650}), external=external))
    assert listeners(found) == {"orders-broker-0": "outside:pulsar://$(NODE_IP):31650"}
    assert found.status.external == (
        ExternalRow(pod="orders-broker-0", type=ExternalType.NODE_PORT, host="192.0.2.0", pulsar=31650),
    )
    main = applied(found, "StatefulSet")["orders-broker"]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}} in main["env"]


def test_another_type_does_not_use_the_address_of_the_former_one() -> None:
    before = after(world(1, 1, service(0, ports={"pulsar": 31650}), external={"type": "NodePort"}))
    other = world(1, 1, service(0))
    resource = other.resource.model_copy(update={"status": before.resource.status})
    assert brokers(plan(replace(other, resource=resource))) == (1, False)


def test_both_ports_are_published_if_there_are_both() -> None:
    tls = {"mode": "Offered", "secretName": "broker-tls"}
    seen_world = world(1, 1, service(0, "a.example", PORTS))
    spec = seen_world.resource.plain()["spec"]
    spec["brokers"] |= {"tls": tls}
    resource = ManagedLedger.model_validate(seen_world.resource.plain() | {"spec": spec})
    assert listeners(plan(replace(seen_world, resource=resource))) == {
        "orders-broker-0": "external:pulsar://a.example:6650,external:pulsar+ssl://a.example:6651"
    }


def test_services_of_brokers_that_left_are_deleted() -> None:
    kept = [service(0, "a.example"), service(1, "b.example")]
    found = plan(world(1, 1, *kept))
    assert [one for one in found.actions if isinstance(one, act.DeleteChild)] == [
        act.DeleteChild("v1", "Service", "orders-broker-1", "s1")
    ]
    drains = plan(world(1, 2, *kept))
    assert not [one for one in drains.actions if isinstance(one, act.DeleteChild)], "it still serves"


def test_without_the_field_all_of_them_are_deleted() -> None:
    before = after(world(1, 1, service(0, "a.example")))
    none = world(1, 1, service(0, "a.example"), external=None)
    gone = replace(none, resource=none.resource.model_copy(update={"status": before.resource.status}))
    found = plan(gone)
    assert act.DeleteChild("v1", "Service", "orders-broker-0", "s0") in found.actions
    assert brokers(found) == (1, False) and found.status.external, "until they are gone"
    assert plan(replace(gone, services=())).status.external == ()


@pytest.mark.parametrize(("name", "fault"), [("external", True), ("other", False)])
def test_a_listener_name_that_is_used_twice_is_refused(name: str, fault: bool) -> None:
    given = seen(brokers={"external": BALANCER, "advertisedListeners": [{"name": name, "host": "a.example"}]})
    stalled = next(one for one in plan(given).status.conditions if one.type == "Stalled")
    assert ("brokers.external.listenerName is external" in stalled.message) is fault
