"""Manifests of the end-to-end tests: values of the chart, resources, the load. Plain data."""

import os
import tomllib
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
API_VERSION = "quire.dev/v1alpha1"
EXAMPLES = ROOT / "docs" / "kubernetes" / "examples"
RELEASE, POOL, LEDGER, LOAD = "quire", "pool", "orders", "load"
OPERATOR, ETCD = f"{RELEASE}-operator", f"{RELEASE}-etcd"
BROKER_CERTIFICATE = f"{LEDGER}-broker-tls"
PULSAR_NAMESPACE = "shop/orders"
ETCD_PORT, LOAD_PORT, BROKER_TLS_PORT = 2379, 8090, 6651
SITE_PACKAGES = "/opt/quire/lib/python3.11/site-packages"
CERTIFICATES_SEEN_S = "10"
"""Seconds after which processes notice changed certificates; minutes by default."""
ZONE, SINGLE_ZONE = "topology.kubernetes.io/zone", "zone-1"
TOGETHER: dict[str, Any] = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "preference": {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [SINGLE_ZONE]}]},
            }
        ]
    }
}
"""Affinity of single pods: on one machine, so that others may be killed. Only preferred, as clusters differ."""

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
APART: dict[str, Any] = {
    "nodeSelector": {CONTROL_PLANE: ""},
    "tolerations": [{"key": CONTROL_PLANE, "operator": "Exists"}],
}
"""Placement on the control plane's machine."""


def image(name: str) -> str:
    """Return the image of a distribution, as images/build.sh tags it."""
    project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
    return f"quire-{name}:{project['version']}"


def next_image(name: str) -> str:
    """Return the same image under another tag, as scripts/k8s/e2e.sh tags it: simulates an update."""
    return f"{image(name)}-next"


def etcd_image() -> str:
    """Return the etcd image, as images/build.sh tags it."""
    return "quire-e2e-etcd:" + os.environ.get("ETCD_VERSION", "v3.6.16")


USES_CODE = bool(os.environ.get("QUIRE_E2E_CODE"))


def with_code(spec: Manifest, container: str, *packages: str) -> Manifest:
    """Mount the code from scripts/k8s/load_code.sh over the code of a pod's image, if QUIRE_E2E_CODE is set."""
    if not USES_CODE:
        return spec
    mounts = [{"name": name, "mountPath": f"{SITE_PACKAGES}/quire_{name}", "readOnly": True} for name in packages]
    volumes = [{"name": name, "hostPath": {"path": f"/opt/quire-code/quire_{name}"}} for name in packages]
    containers = spec.get("containers") or [{"name": container}]
    containers = [{**one, "volumeMounts": [*one.get("volumeMounts", ()), *mounts]} for one in containers]
    return {**spec, "containers": containers, "volumes": [*spec.get("volumes", ()), *volumes]}


def namespace(name: str) -> Manifest:
    """Return a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def chart_values(zones: set[str], api_server: list[str]) -> Manifest:
    """Return values for `helm install` of `charts/quire`: docs/kubernetes/examples/values-try.yaml with the local etcd
    image, and single pods on one machine. `zones`: the zones of the cluster's machines. `api_server`: its addresses."""
    values: Manifest = yaml.safe_load((EXAMPLES / "values-try.yaml").read_text())
    values["etcd"] |= {"image": etcd_image()}
    if SINGLE_ZONE in zones:
        values["etcd"] |= {"nodeSelector": {ZONE: SINGLE_ZONE}}
    values["networkPolicies"] = {"apiServer": [{"ipBlock": {"cidr": f"{address}/32"}} for address in api_server]}
    # The code of `with_code` comes from the nodes.
    return values | {"operator": {"affinity": TOGETHER, "podTemplates": "any" if USES_CODE else "restricted"}}


def operator_with_code() -> Manifest:
    """Return the patch of the chart's operator Deployment for QUIRE_E2E_CODE."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": OPERATOR},
        "spec": {"template": {"spec": with_code({}, "operator", "operator")}},
    }


def bookie(where: str, replicas: int = 3, **spec: Any) -> Manifest:
    """Return a pool with small caches, so that a dozen bookies fit on a machine.

    `where`: its namespace, part of etcd's name.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "Bookie",
        "metadata": {"name": POOL, "namespace": where},
        "spec": {
            "replicas": replicas,
            "metadata": {
                "endpoints": [f"{ETCD}.{where}.svc:{ETCD_PORT}"],
                "tls": {"secretName": f"{ETCD}-client"},
            },
            "storage": {"journal": {"size": "2Gi"}, "ledgers": {"size": "5Gi"}, "reclaimPolicy": "Delete"},
            "engine": {
                "writeCache": "32Mi",
                "readCache": "8Mi",
                "indexCache": "8Mi",
                "journalFileSize": "64Mi",
                "entryLogSize": "64Mi",
                "flushInterval": "10s",
                "settings": {"tlsCertFilesRefreshDurationSeconds": CERTIFICATES_SEEN_S},
            },
            "autoRecovery": {"replicas": 2, "lostBookieDelay": "10s"},
            "podTemplate": {"spec": with_code({}, "quire", "bookie")},
            **spec,
        },
    }


def managed_ledger(where: str, **spec: Any) -> Manifest:
    """Return a namespace of topics on the pool: every message on three bookies, of which two acknowledge."""
    broker_pods = with_code({"affinity": TOGETHER}, "quire", "bookie", "broker")
    return {
        "apiVersion": API_VERSION,
        "kind": "ManagedLedger",
        "metadata": {"name": LEDGER, "namespace": where},
        "spec": {
            "bookieRef": {"name": POOL},
            "namespace": PULSAR_NAMESPACE,
            "brokers": {
                "replicas": 1,
                "cache": "32Mi",
                "settings": {
                    "tlsCertRefreshCheckDurationSec": CERTIFICATES_SEEN_S,
                    "bookkeeperTlsCertFilesRefreshDurationSeconds": CERTIFICATES_SEEN_S,
                },
                "podTemplate": {"spec": broker_pods},
            },
            "replication": {"ensemble": 3, "writeQuorum": 3, "ackQuorum": 2},
            # New ledgers by size: an under-replication mark must not wait for the end of an open ledger.
            "rollover": {"maxEntries": 20000, "maxSize": "64Mi", "minTime": "0s", "maxTime": "1h"},
            **spec,
        },
    }


def load(
    where: str,
    topics: int,
    rate: int,
    apart: bool = False,
    *,
    name: str = LOAD,
    prefix: str = LOAD,
    part: str = "broker",
) -> list[Manifest]:
    """Return the load with the stock Pulsar client over TLS. `rate`: messages a second per topic. Its pod waits for the
    Secret of the brokers, or of the proxies by `part`. `apart`: on the control plane, so that every other machine may
    be killed. `name`: its pod. `prefix`: the beginning of its topics, which no load has written to before."""
    names = ",".join(f"persistent://{PULSAR_NAMESPACE}/{prefix}-{number}" for number in range(topics))
    settings = {
        "LOAD_URL": f"pulsar+ssl://{LEDGER}-{part}.{where}.svc:{BROKER_TLS_PORT}",
        "LOAD_CA": "/authority/ca.crt",
        "LOAD_TOPICS": names,
        "LOAD_RATE": str(rate),
    }
    authority = {"key": "ca.crt", "path": "ca.crt"}
    program = {"load.py": (PROGRAMS / "load.py").read_text()}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": program},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                **(APART if apart else {"affinity": TOGETHER}),
                "containers": [
                    {
                        "name": "load",
                        "image": "quire-e2e:1",
                        "command": ["python", "/programs/load.py"],
                        "env": [{"name": key, "value": value} for key, value in settings.items()],
                        "ports": [{"containerPort": LOAD_PORT}],
                        "readinessProbe": {"tcpSocket": {"port": LOAD_PORT}, "periodSeconds": 1},
                        "volumeMounts": [
                            {"name": "programs", "mountPath": "/programs"},
                            {"name": "authority", "mountPath": "/authority"},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "programs", "configMap": {"name": name}},
                    {"name": "authority", "secret": {"secretName": f"{LEDGER}-{part}-tls", "items": [authority]}},
                ],
            },
        },
    ]
