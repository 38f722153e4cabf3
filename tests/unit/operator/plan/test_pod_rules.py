"""Pod templates that request more privileges than their author may have."""

from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.auto_recovery import recovery_children
from quire_operator.builders.bookie import BookieFacts, bookie_children
from quire_operator.builders.broker import BrokerFacts
from quire_operator.plan import actions as act
from quire_operator.plan.bookie import plan_bookie
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.managed_ledger import plan_managed_ledger
from quire_operator.plan.observation import PoolObservation
from quire_operator.plan.pod_rules import bookie_template_faults, managed_ledger_template_faults
from tests.support.broker_pods import declared_children
from tests.support.kube_resources import bookie, managed_ledger


def of_container(name: str = "quire", **fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": name, **fields}]}


def secured(name: str = "quire", **fields: Any) -> dict[str, Any]:
    return of_container(name, securityContext=fields)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"serviceAccountName": "quire-operator"}, "serviceAccountName quire-operator (the pod's own is pool-bookie)"),
    ({"serviceAccount": "quire-operator"}, "serviceAccount quire-operator"),
    ({"hostPID": True}, "hostPID"),
    ({"hostIPC": True}, "hostIPC"),
    ({"hostNetwork": True}, "hostNetwork"),
    ({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "a hostPath (volume root)"),
    ({"volumes": [{"hostPath": {"path": "/"}}]}, "a hostPath (volume None)"),
    ({"securityContext": {"runAsUser": 0}}, "runAsUser 0"),
    ({"securityContext": {"runAsGroup": 0}}, "runAsGroup 0"),
    ({"securityContext": {"runAsNonRoot": False}}, "containers quire: a user 0 (runAsNonRoot is not true)"),
    ({"securityContext": {"runAsNonRoot": None}}, "containers quire: a user 0"),
    ({"securityContext": None}, "containers quire: a user 0"),
    ({"securityContext": {"$patch": "replace", "fsGroup": 1}}, "containers quire: a user 0"),
    ({"$patch": "replace", "containers": [{"name": "quire"}]}, "containers quire: a user 0"),
    ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "sysctls"),
    ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "seccompProfile Unconfined"),
    ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "seLinuxOptions"),
    ({"securityContext": {"windowsOptions": {"hostProcess": True}}}, "windowsOptions.hostProcess"),
    (secured(privileged=True), "containers quire: privileged"),
    (secured("beside", privileged=True), "containers beside: privileged"),
    (secured(runAsUser=0), "containers quire: runAsUser 0"),
    (secured(runAsNonRoot=False), "containers quire: a user 0"),
    (secured(allowPrivilegeEscalation=True), "containers quire: allowPrivilegeEscalation"),
    (secured(capabilities={"add": ["SYS_ADMIN"]}), "containers quire: capabilities.add ['SYS_ADMIN']"),
    (secured(procMount="Unmasked"), "containers quire: procMount Unmasked"),
    (secured(appArmorProfile={"type": "Unconfined"}), "containers quire: appArmorProfile Unconfined"),
    (of_container(ports=[{"containerPort": 1, "hostPort": 2}]), "containers quire: hostPort 2"),
    ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, "initContainers i: privileged"),
    (
        {"ephemeralContainers": [{"name": "e", "securityContext": {"runAsUser": 0}}]},
        "ephemeralContainers e: runAsUser 0",
    ),
]
ALLOWED: list[dict[str, Any]] = [
    {},
    {"serviceAccountName": "pool-bookie"},
    {"volumes": [{"name": "root", "hostPath": None}]},
    {"hostPID": False, "hostNetwork": None},
    {"tolerations": [{"operator": "Exists"}], "priorityClassName": "system-cluster-critical"},
    {"securityContext": {"runAsUser": 20000, "fsGroup": 20000}},
    {"volumes": [{"name": "more", "emptyDir": {}}], "imagePullSecrets": [{"name": "registry"}]},
    {"initContainers": [{"name": "first", "image": "x", "securityContext": {"capabilities": {"drop": ["ALL"]}}}]},
    of_container("beside", image="x", ports=[{"containerPort": 9000}]),
    of_container(env=[{"name": "A", "value": "b"}]),
]


def pool(template: dict[str, Any]) -> Bookie:
    return Bookie.model_validate(bookie(podTemplate={"spec": template}))


@pytest.mark.parametrize(("template", "fragment"), REFUSED)
def test_a_template_that_requests_privileges_is_refused(template: dict[str, Any], fragment: str) -> None:
    found = bookie_template_faults(pool(template))
    assert any(one.startswith(f"podTemplate: {fragment}") for one in found), found
    assert all("--pod-templates any" in one for one in found)


@pytest.mark.parametrize("template", ALLOWED)
def test_a_template_without_privileges_is_accepted(template: dict[str, Any]) -> None:
    assert bookie_template_faults(pool(template)) == []


def test_an_annotation_that_disables_apparmor_is_refused() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/quire"
    template = {"metadata": {"annotations": {key: "unconfined"}}}
    (fault,) = bookie_template_faults(Bookie.model_validate(bookie(podTemplate=template)))
    assert key in fault


def test_templates_of_brokers_and_jobs_and_spark_settings_have_the_same_rules() -> None:
    spec = {
        "brokers": {"podTemplate": {"spec": {"hostPID": True}}},
        "spark": {
            "podTemplate": {"spec": {"serviceAccountName": "quire-operator"}},
            "conf": {
                "spark.kubernetes.executor.volumes.hostPath.root.mount.path": "/host",
                "spark.kubernetes.authenticate.executor.serviceAccountName": "quire-operator",
                "spark.sql.shuffle.partitions": "8",
            },
        },
    }
    found = managed_ledger_template_faults(ManagedLedger.model_validate(managed_ledger(**spec)))
    assert [one.split(" ")[:2] for one in found] == [
        ["brokers.podTemplate:", "hostPID"],
        ["spark.podTemplate:", "serviceAccountName"],
        ["spark.conf:", "spark.kubernetes.authenticate.executor.serviceAccountName"],
        ["spark.conf:", "spark.kubernetes.executor.volumes.hostPath.root.mount.path"],
    ]


def generated() -> dict[str, dict[str, Any]]:
    """Return pods of every kind, generated from minimal resources, with zones for the init container."""
    resource = Bookie.model_validate(bookie(placement={"topologyKeys": ["topology.kubernetes.io/zone"]}))
    ledger = ManagedLedger.model_validate(managed_ledger())
    children = [
        *bookie_children(resource, BookieFacts(replicas=3, default_image="quire:1")),
        *recovery_children(resource, "quire:1", pod_monitors=False),
        *declared_children(ledger, BrokerFacts(resource, "quire:1")),
    ]
    return {
        f"{child['kind']} {child['metadata']['name']}": child["spec"]["template"]["spec"]
        for child in children
        if child["kind"] in ("StatefulSet", "Deployment")
    }


def test_generated_pods_satisfy_the_pod_security_level_restricted() -> None:
    pods = generated()
    assert len(pods) == 3
    for name, pod in pods.items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "secret", "emptyDir", "downwardAPI", "projected", "persistentVolumeClaim"}, name
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name


def test_a_refused_template_changes_nothing_and_is_in_the_status() -> None:
    seen = PoolObservation(pool({"hostNetwork": True}), 0.0)
    found = plan_bookie(seen, "quire:1")
    assert found.actions == ()
    (reported,) = [one for one in found.status.conditions if one.type == "Ready"]
    assert "hostNetwork" in reported.message
    assert reported.reason == "InvalidSpec"
    allowed = plan_bookie(seen, "quire:1", any_template=True)
    assert any(isinstance(one, act.Apply) for one in allowed.actions)


def test_a_refused_template_of_brokers_changes_nothing() -> None:
    ledger = ManagedLedger.model_validate(managed_ledger(brokers={"podTemplate": {"spec": {"hostIPC": True}}}))
    seen = LedgerObservation(ledger, 0.0, pool({}))
    found = plan_managed_ledger(seen, "quire:1")
    assert found.actions == ()
    assert any("hostIPC" in one.message for one in found.status.conditions)
    assert plan_managed_ledger(seen, "quire:1", any_template=True).actions
