"""The bundle of the Operator Lifecycle Manager: equal to the chart and the CRDs, and valid by the rules of its tools.

`operator-verify` has the rules of the bundle format and of OperatorHub. `operator-sdk scorecard` needs a cluster, so
its rules for bundles are tested here on the bundle and on damaged copies.
"""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire_operator.api import crds
from quire_operator.builders.auto_recovery import recovery_children
from quire_operator.builders.bookie import BookieFacts, bookie_children
from quire_operator.builders.broker import BrokerFacts
from quire_operator.builders.job_access import job_access
from scripts import olm_bundle
from tests.support.broker_pods import declared_children
from tests.unit.charts.rendering import Manifest, objects, tool
from tests.unit.operator.certificates.test_keeping import bookie, managed_ledger

CSV = "manifests/quire-operator.clusterserviceversion.yaml"
REGISTRY = "registry.example/quire"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A written bundle."""
    tool("helm")
    folder = tmp_path_factory.mktemp("olm")
    olm_bundle.write(folder, REGISTRY)
    return folder


def load(path: Path) -> Manifest:
    return dict(yaml.load(path.read_text(), yaml.CSafeLoader))


def findings(csv: Manifest) -> list[str]:
    """What the scorecard would report of a CSV: its rules for examples, resources, descriptors and validation."""
    found = []
    examples = {each["kind"]: each for each in json.loads(csv["metadata"]["annotations"]["alm-examples"])}
    for owned in csv["spec"]["customresourcedefinitions"]["owned"]:
        kind = owned["kind"]
        (definition,) = [one for one in crds.KINDS if one.kind == kind]
        schema = crds.crd(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        if "spec" not in examples.get(kind, {}):
            found.append(f"{kind}: no example with a spec")
        if not owned["resources"]:
            found.append(f"{kind}: no resources")
        for part in ("spec", "status"):
            described = {each["path"] for each in owned[f"{part}Descriptors"]}
            found += [f"{kind}: {part}.{name}: no descriptor" for name in schema[part]["properties"].keys() - described]
            found += [
                f"{kind}: {part}.{name}: no validation"
                for name in examples.get(kind, {}).get(part, {}).keys() - schema[part]["properties"].keys()
            ]
    return found


def verify(folder: Path) -> str:
    """Return the errors and warnings of operator-verify."""
    command = [tool("operator-verify"), "manifests", "--operatorhub_validate", "--object_validate", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def test_the_tools_rules_find_nothing(bundle: Path) -> None:
    assert verify(bundle) == ""
    assert findings(load(bundle / CSV)) == []


def test_the_crds_are_those_of_the_operator(bundle: Path) -> None:
    wanted = {path.name: path.read_text() for path in crds.FOLDER.iterdir()}
    assert {path.name: path.read_text() for path in bundle.glob("manifests/*.quire.dev.yaml")} == wanted
    owned = load(bundle / CSV)["spec"]["customresourcedefinitions"]["owned"]
    assert {f"{each['name']}.yaml" for each in owned} == set(wanted)


def test_the_deployment_and_its_permissions_are_those_of_the_chart(bundle: Path) -> None:
    chart = objects({"images": {"registry": REGISTRY}, "etcd": {"enabled": False}})
    strategy = load(bundle / CSV)["spec"]["install"]["spec"]
    (deployment,) = strategy["deployments"]
    wanted = copy.deepcopy(chart[f"Deployment/{deployment['name']}"]["spec"])
    for spec in (wanted, deployment["spec"]):
        container = spec["template"]["spec"]["containers"][0]
        container["args"] = [word for word in container["args"] if not word.startswith("--watch-namespace=")]
        container["env"] = [each for each in container["env"] if each["name"] != "WATCH_NAMESPACE"]
    assert deployment["spec"] == wanted
    for kind, part in (("ClusterRole", "clusterPermissions"), ("Role", "permissions")):
        (granted,) = strategy[part]
        assert granted["serviceAccountName"] == wanted["template"]["spec"]["serviceAccountName"]
        roles = [each["rules"] for name, each in chart.items() if name.startswith(f"{kind}/") and "operator" in name]
        assert sorted(map(str, granted["rules"])) == sorted(str(rule) for rules in roles for rule in rules)


def test_the_operator_watches_the_namespaces_of_the_operator_group(bundle: Path) -> None:
    csv = load(bundle / CSV)
    pod = csv["spec"]["install"]["spec"]["deployments"][0]["spec"]["template"]["spec"]
    assert "--watch-namespace=$(WATCH_NAMESPACE)" in pod["containers"][0]["args"]
    variables = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in pod["containers"][0]["env"]}
    assert variables["WATCH_NAMESPACE"] == "metadata.annotations['olm.targetNamespaces']"
    modes = {each["type"]: each["supported"] for each in csv["spec"]["installModes"]}
    assert modes == {"OwnNamespace": True, "SingleNamespace": True, "MultiNamespace": False, "AllNamespaces": True}


def test_every_image_is_in_the_registry_and_listed(bundle: Path) -> None:
    csv = load(bundle / CSV)
    images = {each["name"]: each["image"] for each in csv["spec"]["relatedImages"]}
    assert set(images) == {"quire-operator", "quire-bookie", "quire-broker", "quire-jobs"}
    assert all(image.startswith(f"{REGISTRY}/{name}:") for name, image in images.items())
    text = json.dumps(csv["spec"]["install"])
    assert text.count(REGISTRY) == len(images)


def test_the_named_children_are_those_that_the_operator_makes() -> None:
    pool, ledger = bookie(), managed_ledger()
    made = {
        "Bookie": bookie_children(pool, BookieFacts(3, "image", pod_monitors=True))
        + recovery_children(pool, "image", True),
        "ManagedLedger": declared_children(ledger, BrokerFacts(pool, "image", pod_monitors=True))
        + job_access(ledger, cluster_mode=True),
    }
    for kind, children in made.items():
        applied = {f"{each['kind']}/{each['apiVersion']}" for each in children}
        assert applied <= set(olm_bundle.CHILDREN[kind]), kind


def test_the_image_has_the_annotations_as_labels(bundle: Path) -> None:
    annotations = load(bundle / "metadata" / "annotations.yaml")["annotations"]
    dockerfile = (bundle / "bundle.Dockerfile").read_text().splitlines()
    assert {line.removeprefix("LABEL ") for line in dockerfile if line.startswith("LABEL ")} == {
        f"{key}={value}" for key, value in annotations.items()
    }
    copied = [line.split()[1] for line in dockerfile if line.startswith("COPY ")]
    assert all((bundle / path).is_dir() for path in copied)


def _without_example(csv: Manifest) -> None:
    csv["metadata"]["annotations"]["alm-examples"] = "[]"


def _with_unknown_field(csv: Manifest) -> None:
    examples = json.loads(csv["metadata"]["annotations"]["alm-examples"])
    examples[0]["spec"]["replica"] = 3
    csv["metadata"]["annotations"]["alm-examples"] = json.dumps(examples)


def _without_resources(csv: Manifest) -> None:
    csv["spec"]["customresourcedefinitions"]["owned"][0]["resources"] = []


def _without_descriptor(csv: Manifest) -> None:
    csv["spec"]["customresourcedefinitions"]["owned"][0]["statusDescriptors"].pop()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_example, "no example"),
        (_with_unknown_field, "spec.replica: no validation"),
        (_without_resources, "no resources"),
        (_without_descriptor, "no descriptor"),
    ],
)
def test_the_scorecards_rules_find_damage(bundle: Path, damage: Any, message: str) -> None:
    csv = load(bundle / CSV)
    damage(csv)
    assert [each for each in findings(csv) if message in each]


def test_operator_verify_finds_a_missing_crd_and_a_missing_mode(bundle: Path, tmp_path: Path) -> None:
    csv = load(bundle / CSV)
    csv["spec"]["installModes"] = []
    (tmp_path / "manifests").mkdir()
    (tmp_path / CSV).write_text(yaml.safe_dump(csv))
    found = verify(tmp_path)
    assert "install modes not found" in found and "not found in bundle" in found


def test_a_second_writing_removes_manifests_of_the_first(tmp_path: Path) -> None:
    tool("helm")
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "former.quire.dev.yaml").write_text("kind: X\n")
    assert olm_bundle.main([str(tmp_path)]) == 0
    assert not (tmp_path / "manifests" / "former.quire.dev.yaml").exists()
    assert (tmp_path / CSV).exists()
