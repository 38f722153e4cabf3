"""What the end-to-end tests apply: the operator's own objects, an etcd, resources, the load. Plain data.

The operator's rights are those that `charts/quire` gives it.
"""

import os
import tomllib
from pathlib import Path
from typing import Any

Manifest = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
API_VERSION = "quire.dev/v1alpha1"
POOL, LEDGER, LOAD, ETCD = "pool", "orders", "load", "etcd"
PULSAR_NAMESPACE = "shop/orders"
ETCD_PORT, LOAD_PORT = 2379, 8090
OPERATOR_NAMESPACE = "quire-system"
SITE_PACKAGES = "/opt/quire/lib/python3.11/site-packages"
TOGETHER: dict[str, Any] = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "preference": {
                    "matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-1"]}]
                },
            }
        ]
    }
}
"""Of pods that there is one of: on one machine, so that others may be killed. A wish: clusters differ."""


def image(name: str) -> str:
    """Of a distribution, as images/build.sh tags it."""
    project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
    return f"quire-{name}:{project['version']}"


def etcd_image() -> str:
    """As images/build.sh tags it."""
    return "quire-e2e-etcd:" + os.environ.get("ETCD_VERSION", "v3.6.16")


def with_code(spec: Manifest, container: str, *packages: str) -> Manifest:
    """A pod with the code that scripts/k8s/load_code.sh brought over that of its image, when QUIRE_E2E_CODE is set."""
    if not os.environ.get("QUIRE_E2E_CODE"):
        return spec
    mounts = [{"name": name, "mountPath": f"{SITE_PACKAGES}/quire_{name}", "readOnly": True} for name in packages]
    volumes = [{"name": name, "hostPath": {"path": f"/opt/quire-code/quire_{name}"}} for name in packages]
    containers = spec.get("containers") or [{"name": container}]
    containers = [{**one, "volumeMounts": [*one.get("volumeMounts", ()), *mounts]} for one in containers]
    return {**spec, "containers": containers, "volumes": [*spec.get("volumes", ()), *volumes]}


def namespace(name: str) -> Manifest:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def operator() -> list[Manifest]:
    """Its namespace, account, rights and Deployment."""
    rules = [
        {
            "apiGroups": ["quire.dev"],
            "resources": [f"{kind}{part}" for kind in ("bookies", "managedledgers") for part in ("", "/status")],
            "verbs": ["get", "list", "watch", "update", "patch"],
        },
        {
            "apiGroups": [""],
            "resources": ["configmaps", "services", "serviceaccounts", "persistentvolumeclaims", "pods", "secrets"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        },
        {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets", "deployments"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        },
        {
            "apiGroups": ["policy"],
            "resources": ["poddisruptionbudgets"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        },
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "list", "create", "update", "patch"],
        },
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list"]},
        {
            "apiGroups": ["monitoring.coreos.com"],
            "resources": ["podmonitors"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        },
    ]
    name, where = "quire-operator", OPERATOR_NAMESPACE
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    account = {"kind": "ServiceAccount", "name": name, "namespace": where}
    pod = {
        "serviceAccountName": name,
        "affinity": TOGETHER,
        "containers": [
            {
                "name": "operator",
                "image": image("operator"),
                "args": ["run", "--bookie-image", image("bookie"), "--broker-image", image("broker")],
                "ports": [{"name": "http", "containerPort": 8080}],
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 2},
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "timeoutSeconds": 5},
                "securityContext": {
                    "runAsNonRoot": True,
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    return [
        namespace(where),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": where}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [account],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": where},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": with_code(pod, "operator", "operator"),
                },
            },
        },
    ]


def etcd() -> list[Manifest]:
    """One member with a volume: a restart finds what was there. The chart's has three."""
    match = {"app": ETCD}
    words = [
        "--data-dir=/var/lib/etcd/data",
        f"--listen-client-urls=http://0.0.0.0:{ETCD_PORT}",
        f"--advertise-client-urls=http://{ETCD}:{ETCD_PORT}",
        "--max-txn-ops=1024",
        "--unsafe-no-fsync",  # the disk is shared by everything here, and a pod's end loses no page cache
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": ETCD},
        "spec": {"selector": match, "ports": [{"name": "client", "port": ETCD_PORT}]},
    }
    container = {
        "name": "etcd",
        "image": etcd_image(),
        "args": words,
        "ports": [{"containerPort": ETCD_PORT}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": ETCD_PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}],
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
    }
    return [
        service,
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": ETCD},
            "spec": {
                "serviceName": ETCD,
                "replicas": 1,
                "selector": {"matchLabels": match},
                "template": {
                    "metadata": {"labels": match},
                    "spec": {"terminationGracePeriodSeconds": 5, "affinity": TOGETHER, "containers": [container]},
                },
                "volumeClaimTemplates": [claim],
            },
        },
    ]


def bookie(where: str, replicas: int = 3, **spec: Any) -> Manifest:
    """A pool with small caches: a dozen of them fit on one machine. `where`: its namespace, part of etcd's name."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Bookie",
        "metadata": {"name": POOL, "namespace": where},
        "spec": {
            "replicas": replicas,
            "metadata": {"endpoints": [f"{ETCD}.{where}.svc:{ETCD_PORT}"]},
            "storage": {"journal": {"size": "2Gi"}, "ledgers": {"size": "5Gi"}, "reclaimPolicy": "Delete"},
            "engine": {
                "writeCache": "32Mi",
                "readCache": "8Mi",
                "indexCache": "8Mi",
                "journalFileSize": "64Mi",
                "entryLogSize": "64Mi",
                "flushInterval": "10s",
            },
            "autoRecovery": {"replicas": 2, "lostBookieDelay": "10s"},
            "podTemplate": {"spec": with_code({}, "quire", "bookie")},
            **spec,
        },
    }


def managed_ledger(where: str, **spec: Any) -> Manifest:
    """A namespace of topics on the pool, every message on three bookies of which two acknowledge."""
    broker_pods = with_code({"affinity": TOGETHER}, "quire", "bookie", "broker")
    return {
        "apiVersion": API_VERSION,
        "kind": "ManagedLedger",
        "metadata": {"name": LEDGER, "namespace": where},
        "spec": {
            "bookieRef": {"name": POOL},
            "namespace": PULSAR_NAMESPACE,
            "brokers": {"replicas": 1, "cache": "32Mi", "podTemplate": {"spec": broker_pods}},
            "replication": {"ensemble": 3, "writeQuorum": 3, "ackQuorum": 2},
            # New ledgers by size: a mark must not wait for the end of an open one.
            "rollover": {"maxEntries": 20000, "maxSize": "64Mi", "minTime": "0s", "maxTime": "1h"},
            **spec,
        },
    }


def load(where: str, topics: int, rate: int) -> list[Manifest]:
    """The load with the stock Pulsar client; `rate`: messages a second of each topic."""
    names = ",".join(f"persistent://{PULSAR_NAMESPACE}/load-{number}" for number in range(topics))
    settings = {
        "LOAD_URL": f"pulsar://{LEDGER}-broker.{where}.svc:6650",
        "LOAD_TOPICS": names,
        "LOAD_RATE": str(rate),
    }
    program = {"load.py": (PROGRAMS / "load.py").read_text()}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": LOAD}, "data": program},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": LOAD, "labels": {"app": LOAD}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "affinity": TOGETHER,
                "containers": [
                    {
                        "name": "load",
                        "image": "quire-e2e:1",
                        "command": ["python", "/programs/load.py"],
                        "env": [{"name": name, "value": value} for name, value in settings.items()],
                        "ports": [{"containerPort": LOAD_PORT}],
                        "readinessProbe": {"tcpSocket": {"port": LOAD_PORT}, "periodSeconds": 1},
                        "volumeMounts": [{"name": "programs", "mountPath": "/programs"}],
                    }
                ],
                "volumes": [{"name": "programs", "configMap": {"name": LOAD}}],
            },
        },
    ]
