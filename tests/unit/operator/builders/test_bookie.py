"""Children of a Bookie."""

from typing import Any

import pytest

from quire_bookie.config.bookie import BookieConfig
from quire_operator.api.bookie import Bookie
from quire_operator.builders.auto_recovery import recovery_children
from quire_operator.builders.bookie import MACHINE, BookieFacts, bookie_children
from tests.support.kube_resources import bookie

FACTS = BookieFacts(replicas=3, default_image="quire/bookie:1")


def resource(**spec: Any) -> Bookie:
    manifest = bookie(**spec)
    manifest["metadata"] |= {"namespace": "ns", "uid": "u-1"}
    return Bookie.model_validate(manifest)


def children(facts: BookieFacts = FACTS, **spec: Any) -> dict[str, dict[str, Any]]:
    return {child["kind"]: child for child in bookie_children(resource(**spec), facts)}


def pod(facts: BookieFacts = FACTS, **spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = children(facts, **spec)["StatefulSet"]["spec"]["template"]
    return found


def main(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(**spec)["spec"]["containers"][0]
    return found


def test_every_child_has_the_resource_as_owner_and_in_its_name() -> None:
    for child in [*bookie_children(resource(), FACTS), *recovery_children(resource(), "image", pod_monitors=False)]:
        metadata = child["metadata"]
        assert metadata["namespace"] == "ns"
        assert metadata["name"].startswith("pool-")
        assert metadata["ownerReferences"][0]["uid"] == "u-1"
        assert metadata["ownerReferences"][0]["controller"]


def test_equal_resources_give_equal_children() -> None:
    assert bookie_children(resource(), FACTS) == bookie_children(resource(), FACTS)


def test_the_plan_and_not_the_spec_decides_the_number_of_pods() -> None:
    facts = BookieFacts(replicas=5, default_image="i")
    assert children(facts, replicas=3)["StatefulSet"]["spec"]["replicas"] == 5


def test_kubernetes_never_replaces_removes_or_orders_bookies_by_itself() -> None:
    spec = children()["StatefulSet"]["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_the_names_of_pods_resolve_before_they_are_ready() -> None:
    service = children()["Service"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"]
    assert main()["args"][:4] == ["bookie", "start", "--advertise", "$(POD_NAME).pool-bookie.ns.svc"]


def test_every_configured_folder_is_on_a_mounted_claim() -> None:
    storage = {
        "journal": {"size": "1Gi", "volumes": 2, "storageClassName": "nvme"},
        "ledgers": {"size": "2Gi", "volumes": 3, "dirsPerVolume": 2},
        "index": {"size": "1Gi"},
    }
    found = children(storage=storage)
    claims = [claim["metadata"]["name"] for claim in found["StatefulSet"]["spec"]["volumeClaimTemplates"]]
    assert claims == ["journal0", "journal1", "ledgers0", "ledgers1", "ledgers2", "index0"]
    mounts = {mount["mountPath"] for mount in main(storage=storage)["volumeMounts"]}
    text = found["ConfigMap"]["data"]["quire.toml"]
    for claim in claims:
        assert f"/var/lib/quire/{claim}" in mounts
        assert f'"/var/lib/quire/{claim}/0"' in text
    templates = found["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert templates[0]["spec"]["storageClassName"] == "nvme"
    assert "storageClassName" not in templates[2]["spec"]


def test_expanded_claims_are_not_shrunk() -> None:
    facts = BookieFacts(replicas=3, default_image="i", ledger_size="150Gi")
    templates = children(facts)["StatefulSet"]["spec"]["volumeClaimTemplates"]
    sizes = {claim["metadata"]["name"]: claim["spec"]["resources"]["requests"]["storage"] for claim in templates}
    assert sizes == {"journal0": "10Gi", "ledgers0": "150Gi"}


def test_pods_are_unprivileged_and_write_only_to_mounts() -> None:
    spec = pod()["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert not spec["automountServiceAccountToken"]
    inside = main()["securityContext"]
    assert inside["readOnlyRootFilesystem"]
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert not inside["allowPrivilegeEscalation"]


def test_probes_use_paths_that_the_bookie_serves() -> None:
    container = main()
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600, "a long replay is not restarted"


@pytest.mark.parametrize("may_disrupt", [False, True])
def test_evictions_wait_until_all_ledgers_are_known_to_be_fully_replicated(may_disrupt: bool) -> None:
    budget = children(BookieFacts(3, "i", may_disrupt))["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == int(may_disrupt)


def test_a_changed_setting_changes_the_pods_and_an_unchanged_one_does_not() -> None:
    same, other = pod(), pod(engine={"writeCache": "256Mi"})
    assert pod() == same
    assert other["metadata"]["annotations"] != same["metadata"]["annotations"]


def test_the_spread_over_nodes_and_zones_is_preferred_or_enforced() -> None:
    wish = pod()["spec"]
    assert "preferredDuringSchedulingIgnoredDuringExecution" in wish["affinity"]["podAntiAffinity"]
    assert wish["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "ScheduleAnyway"
    must = pod(placement={"enforce": True, "minZones": 3, "topologyKeys": ["zone", "rack"]})["spec"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" in must["affinity"]["podAntiAffinity"]
    zone, rack = must["topologySpreadConstraints"]
    assert (zone["whenUnsatisfiable"], zone["minDomains"]) == ("DoNotSchedule", 3)
    assert "minDomains" not in rack


def test_a_users_pod_template_is_kept_with_unknown_fields() -> None:
    template = {
        "metadata": {"labels": {"team": "a", "app.kubernetes.io/name": "mine"}, "annotations": {"x": "y"}},
        "spec": {
            "hostFutureField": {"a": [1]},
            "containers": [{"name": "quire", "env": [{"name": "TZ", "value": "UTC"}]}],
        },
    }
    found = pod(podTemplate=template)
    assert found["spec"]["hostFutureField"] == {"a": [1]}
    assert found["metadata"]["labels"]["team"] == "a"
    assert found["metadata"]["labels"]["app.kubernetes.io/name"] == "quire-bookie", "the selector must match them"
    names = [variable["name"] for variable in found["spec"]["containers"][0]["env"]]
    assert names == ["POD_NAME", "NODE_NAME", MACHINE, "TZ"]


def test_a_bookie_gets_the_node_as_its_machine() -> None:
    assert {"name": MACHINE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in main()["env"]
    assert "QUIRE_" + BookieConfig.key_of("machine") == MACHINE


def test_the_selector_matches_only_pods_of_this_pool() -> None:
    found = children()["StatefulSet"]["spec"]
    assert found["selector"]["matchLabels"].items() <= found["template"]["metadata"]["labels"].items()
    assert found["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "pool"


def test_certificates_are_mounted_at_the_configured_paths() -> None:
    metadata = {"endpoints": ["e:2379"], "tls": {"secretName": "etcd-ca"}, "auth": {"secretName": "etcd-user"}}
    found = pod(metadata=metadata, tls={"secretName": "certs"})["spec"]
    secrets = {v["name"]: v["secret"]["secretName"] for v in found["volumes"] if "secret" in v}
    assert secrets == {"tls": "certs", "metadata-tls": "etcd-ca", "metadata-auth": "etcd-user"}
    mounts = {m["name"]: m["mountPath"] for m in found["containers"][0]["volumeMounts"]}
    assert (mounts["tls"], mounts["metadata-tls"]) == ("/etc/quire/tls", "/etc/quire/metadata-tls")
    assert mounts["metadata-auth"] == "/etc/quire/metadata-auth"


def test_pod_monitors_are_created_only_if_installed_and_enabled() -> None:
    known = BookieFacts(3, "i", pod_monitors=True)
    assert "PodMonitor" not in children()
    assert "PodMonitor" not in children(known, monitoring={"enabled": False})
    monitor = children(known, monitoring={"interval": "10s", "labels": {"release": "p"}})["PodMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "p"
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "http", "path": "/metrics", "interval": "10s"}]


def test_the_auto_recovery_deployment_exists_with_no_replicas() -> None:
    found = {c["kind"]: c for c in recovery_children(resource(autoRecovery={"replicas": 0}), "i", pod_monitors=True)}
    assert set(found) == {"ConfigMap", "Deployment", "PodMonitor"}
    assert found["Deployment"]["spec"]["replicas"] == 0
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][:3] == ["autorecovery", "--name", "$(POD_NAME)"]


def test_auto_recovery_gets_scheduling_but_no_containers_of_the_pod_template() -> None:
    template = {"spec": {"tolerations": [{"key": "k"}], "containers": [{"name": "sidecar", "image": "s"}]}}
    found = {c["kind"]: c for c in recovery_children(resource(podTemplate=template), "i", pod_monitors=False)}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"key": "k"}]
    assert [container["name"] for container in spec["containers"]] == ["quire"]


def test_probes_and_scrapes_use_tls_if_it_is_required() -> None:
    found = pod(tls={"secretName": "certs"})["spec"]["containers"][0]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert found[name]["httpGet"]["scheme"] == "HTTPS"
    offered = pod(tls={"secretName": "certs", "mode": "Offered"})["spec"]["containers"][0]
    assert "scheme" not in offered["readinessProbe"]["httpGet"]
    monitor = children(BookieFacts(3, "i", pod_monitors=True), tls={"secretName": "certs"})["PodMonitor"]
    endpoint = monitor["spec"]["podMetricsEndpoints"][0]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "certs", "key": "ca.crt"}


def test_a_pod_mounts_the_immutable_file_of_its_configuration() -> None:
    found = children()
    name = found["ConfigMap"]["metadata"]["name"]
    template = found["StatefulSet"]["spec"]["template"]
    assert {"name": "config", "configMap": {"name": name}} in template["spec"]["volumes"]
    assert found["ConfigMap"]["immutable"] is True
    assert children(engine={"flushInterval": "30s"})["ConfigMap"]["metadata"]["name"] != name
    assert children(image="quire:2")["ConfigMap"]["metadata"]["name"] == name
