"""What the chart makes of values."""

import json
from typing import Any

import pytest
import yaml

from quire_operator.api import crds
from tests.unit.charts.rendering import (
    CHART,
    CLEAR,
    EVERYTHING,
    NO_ETCD,
    ONE_NAMESPACE,
    ROOT,
    VALUES,
    Manifest,
    helm,
    objects,
    refusal,
)


def _pods(found: dict[str, Manifest]) -> dict[str, Manifest]:
    """Pod specs by the object that makes them."""
    pods = {}
    for name, each in found.items():
        match each["kind"]:
            case "Deployment" | "StatefulSet":
                pods[name] = each["spec"]["template"]["spec"]
            case "CronJob":
                pods[name] = each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            case "Pod":
                pods[name] = each["spec"]
    return pods


def _arguments(manifest: Manifest) -> list[str]:
    return list(manifest["spec"]["template"]["spec"]["containers"][0]["args"])


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_it_renders_and_every_object_has_our_labels(values: Manifest) -> None:
    for name, each in objects(values).items():
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "quire", name
        assert labels["app.kubernetes.io/managed-by"] == "Helm", name


def test_helm_lints_it_strictly() -> None:
    done = helm("lint", "--strict", "--kube-version", "v1.34.4", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_pod_runs_without_rights_and_on_a_read_only_root(values: Manifest) -> None:
    pods = _pods(objects(values))
    assert pods
    for name, pod in pods.items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"], name


def test_pod_templates_ask_for_no_rights_unless_the_installation_lets_them() -> None:
    assert "--pod-templates=restricted" in _arguments(objects()["Deployment/quire-operator"])
    loose = objects({"operator": {"podTemplates": "any"}})
    assert "--pod-templates=any" in _arguments(loose["Deployment/quire-operator"])
    assert "podTemplates" in refusal({"operator": {"podTemplates": "all"}})


def test_only_the_operator_has_a_token() -> None:
    with_token = {name for name, pod in _pods(objects(EVERYTHING)).items() if pod["automountServiceAccountToken"]}
    assert with_token == {"Deployment/quire-operator"}


def test_the_crds_are_those_of_the_operator_upgraded_and_kept() -> None:
    found = objects()
    for path in crds.files(crds.CHART_FOLDER):
        wanted = yaml.load(path.read_text(), yaml.CSafeLoader)
        rendered = found[f"CustomResourceDefinition/{wanted['metadata']['name']}"]
        assert rendered["spec"] == wanted["spec"]
        assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    without = objects({"crds": {"install": False}})
    assert not [name for name in without if name.startswith("CustomResourceDefinition/")]


def test_every_folder_of_the_charts_copy_is_written_by_the_same_command() -> None:
    assert {path.name for path in crds.CHART_FOLDER.iterdir()} == {path.name for path in crds.files(crds.FOLDER)}


def test_images_take_the_version_and_the_registry_unless_they_have_their_own() -> None:
    def images(values: Manifest) -> list[str]:
        found = objects(values)
        operator, etcd = found["Deployment/quire-operator"], found["StatefulSet/quire-etcd"]
        named = [word.partition("=")[2] for word in _arguments(operator) if "-image=" in word]
        return [each["spec"]["template"]["spec"]["containers"][0]["image"] for each in (operator, etcd)] + named

    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert images({"etcd": {"image": f"quire-etcd:{version}"}}) == [
        f"quire-operator:{version}",
        f"quire-etcd:{version}",
        f"quire-bookie:{version}",
        f"quire-broker:{version}",
        f"quire-jobs:{version}",
    ]
    own = {"registry": "mirror.example/x", "tag": "7", "bookie": "other.example:5000/b", "broker": "b@sha256:00"}
    assert images({"images": own, "etcd": {"image": "localhost/etcd:1"}}) == [
        "mirror.example/x/quire-operator:7",
        "localhost/etcd:1",
        "other.example:5000/b:7",
        "mirror.example/x/b@sha256:00",
        "mirror.example/x/quire-jobs:7",
    ]
    assert not [word for word in images({"images": {"jobs": ""}}) if "jobs" in word]


def test_etcd_asks_its_clients_and_its_members_for_certificates() -> None:
    words = _arguments(objects()["StatefulSet/quire-etcd"])
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(words)
    assert not [word for word in words if "http://" in word and not word.startswith("--listen-metrics-urls=")]
    assert "--max-txn-ops=1024" in words and "--quota-backend-bytes=8589934592" in words
    cluster = next(word for word in words if word.startswith("--initial-cluster="))
    assert cluster.count("https://") == 3
    assert "quire-etcd-2=https://quire-etcd-2.quire-etcd-members.quire.svc:2380" in cluster
    clear = _arguments(objects(CLEAR)["StatefulSet/quire-etcd"])
    assert not [word for word in clear if "https://" in word or "cert" in word]


def test_a_new_version_of_the_chart_alone_does_not_restart_etcd() -> None:
    template = objects()["StatefulSet/quire-etcd"]["spec"]["template"]
    assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(template["metadata"]["labels"])


def test_without_etcd_nothing_is_left_of_it() -> None:
    found = objects({**NO_ETCD, "monitoring": EVERYTHING["monitoring"]})
    assert not [name for name in found if "etcd" in name]
    assert not [word for word in _arguments(found["Deployment/quire-operator"]) if "etcd" in word]


def test_one_namespace_gives_rights_there_only() -> None:
    found = objects(ONE_NAMESPACE)
    role = found["Role/prod/quire-quire-operator-resources"]
    assert role["metadata"]["namespace"] == "prod"
    assert "ClusterRole/quire-quire-operator-resources" not in found
    everywhere = found["ClusterRole/quire-quire-operator"]["rules"]
    assert not [rule for rule in everywhere if "secrets" in rule["resources"] or "create" in rule["verbs"]]


def test_no_right_is_a_star_and_none_of_them_makes_more_rights() -> None:
    """The operator makes Roles for jobs: without `escalate` and `bind` of what it has itself, at most."""
    for name, each in objects(EVERYTHING).items():
        if each["kind"] in ("Role", "ClusterRole"):
            for rule in each["rules"]:
                assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"]), name
                assert not {"clusterroles", "clusterrolebindings", "pods/exec"} & set(rule["resources"]), name
                assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"]), name


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"etcds": {}}, "'etcds' not allowed"),
        ({"etcd": {"members": 2}}, "members"),
        ({"etcd": {"quotaBytes": 20 * 2**30}}, "quotaBytes"),
        ({"etcd": {"maxTxnOps": 128}}, "maxTxnOps"),
        ({"etcd": {"backup": {"enabled": True}}}, "/etcd/backup/to"),
        ({"operator": {"tls": "maybe"}}, "/operator/tls"),
        ({"operator": {"watchNamespace": "Prod"}}, "watchNamespace"),
        ({"images": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"networkPolicies": {"monitoring": [{"podselector": {}}]}}, "podselector"),
    ],
)
def test_wrong_values_are_refused_with_their_place(values: Manifest, complaint: str) -> None:
    assert complaint in refusal(values)


def test_the_schema_knows_every_default_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def unknown(node: dict[str, Any], given: Manifest, place: str) -> list[str]:
        properties = node.get("properties", {})
        missing = [f"{place}.{key}" for key in properties if key not in given and not (place == "" and key == "global")]
        found = [
            f"{place}.{key}" for key in given if node.get("additionalProperties") is False and key not in properties
        ]
        for key, value in given.items():
            if (
                isinstance(value, dict)
                and properties.get(key, {}).get("properties")
                and "claims" not in str(properties[key])
            ):
                found += unknown(properties[key], value, f"{place}.{key}")
        return found + missing

    assert unknown(schema, values, "") == []


@pytest.mark.parametrize("name", ["values-production.yaml", "values-try.yaml"])
def test_the_values_of_the_examples_render(name: str) -> None:
    values = yaml.safe_load((ROOT / "docs" / "kubernetes" / "examples" / name).read_text())
    found = objects(values)
    assert found["StatefulSet/quire-etcd"]["spec"]["replicas"] == values["etcd"].get("members", 3)
    assert ("CronJob/quire-etcd-backup" in found) == ("backup" in values["etcd"])


def test_priority_classes_are_created_only_on_request_and_outlive_the_release() -> None:
    def classes(**values: Any) -> dict[str, Manifest]:
        found = objects({"priorityClasses": values} if values else {})
        return {each["metadata"]["name"]: each for each in found.values() if each["kind"] == "PriorityClass"}

    assert classes() == {}
    found = classes(create=True)
    assert {name: each["value"] for name, each in found.items()} == {
        "quire-storage": 1_000_000,
        "quire-broker": 900_000,
    }
    for each in found.values():
        assert (each["preemptionPolicy"], each["globalDefault"]) == ("Never", False)
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    other = classes(create=True, preemptionPolicy="PreemptLowerPriority", storage={"name": "disks", "value": 5})
    assert other["disks"]["value"] == 5 and other["disks"]["preemptionPolicy"] == "PreemptLowerPriority"


@pytest.mark.parametrize("value", [{"preemptionPolicy": "Always"}, {"storage": {"value": 2_000_000_000}}])
def test_a_priority_that_kubernetes_reserves_is_refused(value: Manifest) -> None:
    assert next(iter(value)) in refusal({"priorityClasses": {"create": True} | value})
