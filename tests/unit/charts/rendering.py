"""The chart as `helm template` renders it. Skips where there is no Helm: `scripts/k8s/build.sh helm` makes it once."""

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "quire"
KUBE_VERSION = "v1.34.4"
"""A Helm that was built without flags takes an ancient Kubernetes for granted."""

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Path of a tool of Kubernetes; skips the test where it is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quire" / "k8s"
    built = Path(os.environ.get("QUIRE_K8S_CACHE", cache)) / "bin" / name
    found = str(built) if os.access(built, os.X_OK) else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing: put it into PATH, or build it once with scripts/k8s/build.sh {name}")
    return found


def helm(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run it, whatever comes of it."""
    return subprocess.run([tool("helm"), *words], capture_output=True, text=True, timeout=60, check=False)


def template(values: Manifest | None = None, release: str = "quire", namespace: str = "quire") -> str:
    """The rendered text. AssertionError with Helm's own words when it refuses."""
    return _template(json.dumps(values or {}), release, namespace)


@functools.cache
def _template(values: str, release: str, namespace: str) -> str:
    words = ["template", release, str(CHART), "--namespace", namespace, "--kube-version", KUBE_VERSION, "--values", "-"]
    command = [tool("helm"), *words]
    done = subprocess.run(command, input=values, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(values: Manifest) -> str:
    """What Helm says against values; AssertionError when it takes them."""
    with pytest.raises(AssertionError) as refused:
        template(values)
    return str(refused.value)


def objects(values: Manifest | None = None, namespace: str = "quire") -> dict[str, Manifest]:
    """By `Kind/name`, of another namespace than the release's by `Kind/namespace/name`. Not to be changed."""
    return _objects(json.dumps(values or {}), namespace)


@functools.cache
def _objects(values: str, namespace: str) -> dict[str, Manifest]:
    # libyaml: half a second less for each of the CRDs.
    found = [each for each in yaml.load_all(_template(values, "quire", namespace), yaml.CSafeLoader) if each]
    named = {}
    for each in found:
        place = each["metadata"].get("namespace", namespace)
        named[f"{each['kind']}/" + (f"{place}/" if place != namespace else "") + each["metadata"]["name"]] = each
    assert len(named) == len(found)
    return named


EVERYTHING: Manifest = {
    "images": {"registry": "mirror.example/quire", "pullSecrets": [{"name": "pull"}]},
    "operator": {
        "replicas": 2,
        "priorityClassName": "high",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "podLabels": {"team": "storage"},
        "podAnnotations": {"note": "x"},
        "extraArgs": ["--log-level=debug"],
    },
    "priorityClasses": {"create": True},
    "etcd": {
        "members": 5,
        "storage": {"storageClassName": "local", "size": "30Gi"},
        "tls": {"clientNamespaces": ["prod", "test"]},
        "requireSeparateNodes": True,
        "topologyKeys": ["topology.kubernetes.io/zone"],
        "priorityClassName": "high",
        "backup": {
            "enabled": True,
            "to": "s3://bucket/folder",
            "credentialsSecret": "s3",
            "env": {"AWS_ENDPOINT_URL": "https://objects.example"},
            "keep": 7,
            "extraArgs": ["--json"],
        },
    },
    "monitoring": {
        "podMonitors": {"enabled": True, "labels": {"release": "prometheus"}},
        "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True},
    },
    "networkPolicies": {"bookieClients": [{"podSelector": {}}], "etcdClients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
}
NO_ETCD: Manifest = {"etcd": {"enabled": False}}
CLEAR: Manifest = {"operator": {"tls": "none"}, "etcd": {"tls": {"enabled": False}}}
ONE_NAMESPACE: Manifest = {"operator": {"watchNamespace": "prod"}, "networkPolicies": {"enabled": False}}
ALL_NAMESPACES: Manifest = {"operator": {"watchNamespace": "*"}}
VALUES = {
    "default": {},
    "everything": EVERYTHING,
    "no etcd": NO_ETCD,
    "clear": CLEAR,
    "one namespace": ONE_NAMESPACE,
    "all namespaces": ALL_NAMESPACES,
}
"""What must render, lint and be valid."""
