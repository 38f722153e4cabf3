"""Writes the bundle of the Operator Lifecycle Manager (OLM): `make bundle`, or `python -m scripts.olm_bundle --help`.

    manifests/           the ClusterServiceVersion (CSV) and the CRDs
    metadata/            the annotations of the bundle image
    tests/scorecard/     the configuration of `operator-sdk scorecard`
    bundle.Dockerfile

The bundle is not committed, so it cannot differ from its sources: the chart, which `helm template` renders, gives the
Deployment and the permissions, and the operator's models give the CRDs and descriptors. OLM installs only what an
operator needs, so the chart's etcd, NetworkPolicies and monitoring are left out.
"""

import argparse
import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from quire_operator.api import GROUP, VERSION
from quire_operator.api.crds import KINDS, Kind, crd, rendered

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "dist" / "olm"
CHART = ROOT / "charts" / "quire"
EXAMPLES = ROOT / "docs" / "kubernetes" / "examples"
PACKAGE = "quire-operator"
CHANNEL = "preview"
CAPABILITIES = "Deep Insights"
SCORECARD_IMAGE = "quay.io/operator-framework/scorecard-test:v1.42.0"
TARGET_NAMESPACES = "metadata.annotations['olm.targetNamespaces']"
"""Where OLM writes the namespaces of the OperatorGroup; empty for all."""
OPERATOR = "Deployment/quire-operator"
_HEAD = "# Written by scripts/olm_bundle.py (make bundle); do not edit.\n"
_ICON = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">'
    b'<rect x="8" y="10" width="48" height="12" rx="3" fill="#1f6f8b"/>'
    b'<rect x="8" y="26" width="48" height="12" rx="3" fill="#2f93b5"/>'
    b'<rect x="8" y="42" width="48" height="12" rx="3" fill="#99cfe0"/></svg>'
)
_NOT_OURS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
DESCRIPTION = """\
Quire stores logs: bookies keep every entry in several copies, and brokers serve topics to clients of Apache Pulsar.

The operator creates and maintains pools of bookies (`Bookie`) and namespaces of topics with their brokers
(`ManagedLedger`). It replaces lost bookies, drains a bookie before it removes it, rolls one pod at a time, issues and
renews certificates, and reports the state of every ledger.

An etcd of version 3.4 or newer, which this bundle does not install, holds the metadata: name it in
`spec.metadata.endpoints`.

Choose the namespaces of the OperatorGroup with care: with all namespaces the operator's account can read every Secret
and start pods with every ServiceAccount.
"""
CHILDREN = {
    "Bookie": (
        *("ConfigMap/v1", "Deployment/apps/v1", "PersistentVolumeClaim/v1", "Pod/v1", "PodDisruptionBudget/policy/v1"),
        *("PodMonitor/monitoring.coreos.com/v1", "Secret/v1", "Service/v1", "ServiceAccount/v1", "StatefulSet/apps/v1"),
    ),
    "ManagedLedger": (
        *("ConfigMap/v1", "Job/batch/v1", "Pod/v1", "PodDisruptionBudget/policy/v1"),
        *("PodMonitor/monitoring.coreos.com/v1", "Role/rbac.authorization.k8s.io/v1"),
        *(
            "RoleBinding/rbac.authorization.k8s.io/v1",
            "Secret/v1",
            "Service/v1",
            "ServiceAccount/v1",
            "StatefulSet/apps/v1",
        ),
    ),
    "ClientRole": (f"ManagedLedger/{GROUP}/{VERSION}", "Secret/v1"),
}
"""Objects that the operator makes for a resource of each kind, as `Kind/version`. OLM's console lists them."""
OBJECTS_OF_BROKERS = (f"ManagedLedger/{GROUP}/{VERSION}",)
"""The same for the other kinds: they declare objects of brokers, which a ManagedLedger runs."""

Manifest = dict[str, Any]


class BundleError(Exception):
    """The bundle cannot be written. The message says why."""


def chart_objects(registry: str = "") -> dict[str, Manifest]:
    """Return the objects that the chart renders for an operator without etcd, by `Kind/name`."""
    values = {"images": {"registry": registry}, "etcd": {"enabled": False}, "networkPolicies": {"enabled": False}}
    command = ["bash", "-c", '. scripts/k8s/env.sh && exec helm "$@"', "helm"]
    command += ["template", "quire", str(CHART), "--namespace", "quire", "--values", "-"]
    command += ["--kube-version", _chart()["kubeVersion"].strip(">=").removesuffix("-0")]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode == 127:
        raise BundleError("helm is missing: install it, or build it with `scripts/k8s/build.sh helm`")
    if done.returncode != 0:
        raise BundleError(f"helm template failed: {done.stderr.strip()}")
    found = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def files(registry: str = "") -> dict[str, str]:
    """Return the text of each generated file, by its path in the bundle."""
    objects = chart_objects(registry)
    annotations = {f"operators.operatorframework.io.bundle.{key}": value for key, value in _annotations().items()}
    tests = {
        "operators.operatorframework.io.test.mediatype.v1": "scorecard+v1",
        "operators.operatorframework.io.test.config.v1": "tests/scorecard/",
    }
    labels = "".join(f"LABEL {key}={value}\n" for key, value in (annotations | tests).items())
    copies = "COPY manifests /manifests/\nCOPY metadata /metadata/\nCOPY tests/scorecard /tests/scorecard/\n"
    found = {
        "manifests/quire-operator.clusterserviceversion.yaml": _text(csv(objects)),
        "metadata/annotations.yaml": _text({"annotations": annotations | tests}),
        "tests/scorecard/config.yaml": _text(scorecard()),
        "bundle.Dockerfile": f"{_HEAD}FROM scratch\n{labels}{copies}",
    }
    return found | {f"manifests/{kind.plural}.{GROUP}.yaml": rendered(kind) for kind in KINDS}


def csv(objects: dict[str, Manifest]) -> Manifest:
    """Return the ClusterServiceVersion."""
    version = str(_chart()["appVersion"])
    deployment = _deployment(objects[OPERATOR])
    images = _images(deployment)
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{version}",
            "namespace": "placeholder",
            "annotations": {
                "alm-examples": json.dumps([example(kind.kind) for kind in KINDS], indent=2),
                "capabilities": CAPABILITIES,
                "categories": "Streaming & Messaging,Storage",
                "containerImage": images["quire-operator"],
                "description": "A durable log store for clients of BookKeeper and Pulsar.",
                "olm.skipRange": f"<{version}",
            },
        },
        "spec": {
            "displayName": "Quire",
            "description": DESCRIPTION,
            "version": version,
            "maturity": "alpha",
            "minKubeVersion": _chart()["kubeVersion"].strip(">=").removesuffix("-0"),
            "keywords": _chart()["keywords"],
            "provider": {"name": "Quire"},
            "icon": [{"base64data": base64.b64encode(_ICON).decode(), "mediatype": "image/svg+xml"}],
            "installModes": [
                {"type": mode, "supported": mode != "MultiNamespace"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "customresourcedefinitions": {"owned": [owned(kind) for kind in KINDS]},
            "install": {
                "strategy": "deployment",
                "spec": {
                    "deployments": [deployment],
                    "clusterPermissions": [{"serviceAccountName": account, "rules": _rules(objects, "ClusterRole")}],
                    "permissions": [{"serviceAccountName": account, "rules": _rules(objects, "Role")}],
                },
            },
            "relatedImages": [{"name": name, "image": image} for name, image in images.items()],
        },
    }


def owned(kind: Kind) -> Manifest:
    """Return the description of a CRD, with a descriptor of each field directly below spec and status."""
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return {
        "name": f"{kind.plural}.{GROUP}",
        "kind": kind.kind,
        "version": VERSION,
        "displayName": _words(kind.kind),
        "description": schema["description"],
        "resources": [
            {"kind": name, "version": version}
            for name, _, version in (made.partition("/") for made in CHILDREN.get(kind.kind, OBJECTS_OF_BROKERS))
        ],
        "specDescriptors": _descriptors(schema["properties"]["spec"]),
        "statusDescriptors": _descriptors(schema["properties"]["status"]),
    }


def example(kind: str) -> Manifest:
    """Return the documented example of a kind; quickstart.yaml comes first. Raises BundleError if there is none."""
    for path in sorted(EXAMPLES.glob("*.yaml"), key=lambda path: (path.stem != "quickstart", path.name)):
        for each in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            if each and each.get("kind") == kind and each["apiVersion"] == f"{GROUP}/{VERSION}":
                return dict(each)
    raise BundleError(f"{kind}: no file in docs/kubernetes/examples has one")


def scorecard() -> Manifest:
    """Return the configuration of `operator-sdk scorecard`: its tests of bundles."""
    suites = {
        "basic": ["basic-check-spec"],
        "olm": [
            *("olm-bundle-validation", "olm-crds-have-validation", "olm-crds-have-resources"),
            *("olm-spec-descriptors", "olm-status-descriptors"),
        ],
    }
    tests = [
        {
            "entrypoint": ["scorecard-test", name],
            "image": SCORECARD_IMAGE,
            "labels": {"suite": suite, "test": f"{name}-test"},
        }
        for suite, names in suites.items()
        for name in names
    ]
    return {
        "apiVersion": "scorecard.operatorframework.io/v1alpha3",
        "kind": "Configuration",
        "metadata": {"name": "config"},
        "stages": [{"parallel": True, "tests": tests}],
    }


def _annotations() -> dict[str, str]:
    return {
        "mediatype.v1": "registry+v1",
        "manifests.v1": "manifests/",
        "metadata.v1": "metadata/",
        "package.v1": PACKAGE,
        "channels.v1": CHANNEL,
        "channel.default.v1": CHANNEL,
    }


def _deployment(rendered_one: Manifest) -> Manifest:
    """Return the chart's Deployment as OLM takes it: the namespace to watch comes from the OperatorGroup."""
    spec = json.loads(json.dumps(rendered_one["spec"]))
    (container,) = spec["template"]["spec"]["containers"]
    watched = [word for word in container["args"] if word.startswith("--watch-namespace=")]
    if len(watched) != 1:
        raise BundleError(f"the chart's Deployment has {len(watched)} arguments --watch-namespace=; one is expected")
    container["args"][container["args"].index(watched[0])] = "--watch-namespace=$(WATCH_NAMESPACE)"
    container["env"].append({"name": "WATCH_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": TARGET_NAMESPACES}}})
    labels = {key: value for key, value in rendered_one["metadata"]["labels"].items() if key not in _NOT_OURS}
    return {"name": rendered_one["metadata"]["name"], "label": labels, "spec": spec}


def _images(deployment: Manifest) -> dict[str, str]:
    """Return the images that a deployment names, by their names without registry and tag."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    named = [word.partition("=")[2] for word in container["args"] if re.match(r"--\w+-image=", word)]
    return {re.split("[:@]", image.rpartition("/")[2])[0]: image for image in [container["image"], *named]}


def _rules(objects: dict[str, Manifest], kind: str) -> list[Manifest]:
    """Return the rules of all roles of one kind that the chart binds to the operator's account."""
    bound = {
        each["roleRef"]["name"]
        for each in objects.values()
        if each["kind"] == f"{kind}Binding" and any(one["name"] == PACKAGE for one in each["subjects"])
    }
    return [rule for name in sorted(bound) for rule in objects[f"{kind}/{name}"]["rules"]]


def _descriptors(schema: Manifest) -> list[Manifest]:
    return [
        {"path": path, "displayName": _words(path), "description": _description(field)}
        for path, field in sorted(schema["properties"].items())
    ]


def _description(field: Manifest) -> str:
    """Return the description of a field; of a list without one, that of its elements."""
    return str(field.get("description") or field.get("items", {}).get("description") or "")


def _words(name: str) -> str:
    """Return a name in camel case as words: `minZones` is `Min Zones`."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    return " ".join(part[0].upper() + part[1:] for part in parts)


def _chart() -> Manifest:
    return dict(yaml.safe_load((CHART / "Chart.yaml").read_text()))


def _text(manifest: Manifest) -> str:
    return _HEAD + yaml.safe_dump(manifest, sort_keys=False, width=120, allow_unicode=True)


def write(folder: Path, registry: str) -> None:
    """Write the bundle, and remove manifests of an earlier one. Raises BundleError."""
    wanted = files(registry)
    for path in folder.glob("manifests/*.yaml"):
        path.unlink()
    for name, text in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(words: list[str] | None = None) -> int:
    """Write the bundle and print its folder; exit code 1 if it cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m scripts.olm_bundle", description="Write the OLM bundle.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="default: dist/olm")
    text = "registry of the images; default: their names have none"
    parser.add_argument("--registry", default="", metavar="REGISTRY/PROJECT", help=text)
    given = parser.parse_args(words)
    try:
        write(given.folder, given.registry)
    except BundleError as error:
        print(f"olm_bundle: {error}", file=sys.stderr)
        return 1
    print(given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
