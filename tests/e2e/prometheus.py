"""A real Prometheus on the cluster. Does what Prometheus' operator does with PodMonitors and PrometheusRules.

Rules run with short windows: `shortened` derives them from the chart's, so that a test need not wait for hours.
"""

import base64
import copy
import json
import os
import re
from typing import Any

from tests.e2e.kube import Cluster, Manifest, is_ready, until
from tests.e2e.manifests import PROGRAMS

NAME, PORT = "prometheus", 9090
EXPORTER, EXPORTER_PORT = "exporter", 8080
MADE_UP = "made-up"
"""The label `namespace` of made-up metrics."""
MONITORING = "monitoring.coreos.com/v1"
INTERVAL = "2s"
FOR, WINDOW = "4s", "[20s]"
START_S = 120.0
KINDS = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}


def image() -> str:
    """Return the image's name as images/build.sh tags it."""
    return "quire-e2e-prometheus:" + os.environ.get("PROMETHEUS_VERSION", "v0.316.0")


def definitions() -> list[Manifest]:
    """Return definitions of the kinds of Prometheus' operator, without a schema."""
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                ],
            },
        }
        for kind, plural in KINDS.items()
    ]


def shortened(groups: list[Manifest], thresholds: dict[str, dict[str, str]]) -> list[Manifest]:
    """Return the groups of a PrometheusRule with short windows.

    `thresholds` replaces parts of expressions by rule; a part that does not exist is an error.
    """
    found = copy.deepcopy(groups)
    for group in found:
        group["interval"] = INTERVAL
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = FOR
            rule["expr"] = re.sub(r"\[\d+[smhd]\]", WINDOW, rule["expr"])
            for old, new in thresholds.get(rule["alert"], {}).items():
                assert old in rule["expr"], f"{rule['alert']} has no {old!r}: {rule['expr']}"
                rule["expr"] = rule["expr"].replace(old, new)
    return found


def scrapes(cluster: Cluster) -> list[Manifest]:
    """Return the scrape configurations of the namespace's PodMonitors."""
    return [
        _scrape(cluster, monitor, endpoint)
        for monitor in cluster.items(MONITORING, "PodMonitor")
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    ]


def _scrape(cluster: Cluster, monitor: Manifest, endpoint: Manifest) -> Manifest:
    labels = [
        {"source_labels": [f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9]', '_', name)}"], "regex": value}
        for name, value in monitor["spec"]["selector"]["matchLabels"].items()
    ]
    port = {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"]}
    taken = {"namespace": "namespace", "pod": "pod_name", "container": "pod_container_name"}
    found = {
        "job_name": f"{cluster.namespace}/{monitor['metadata']['name']}",
        "scheme": endpoint.get("scheme", "http"),
        "metrics_path": endpoint["path"],
        "scrape_interval": INTERVAL,
        "scrape_timeout": INTERVAL,
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [cluster.namespace]}}],
        "relabel_configs": [
            *({**one, "action": "keep"} for one in (*labels, port)),
            *(
                {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": label}
                for label, source in taken.items()
            ),
        ],
    }
    tls = endpoint.get("tlsConfig")
    if tls is not None:
        wanted = tls["ca"]["secret"]
        secret = cluster.get("v1", "Secret", wanted["name"])
        assert secret is not None, f"the PodMonitor {monitor['metadata']['name']} names a missing Secret: {wanted}"
        authority = base64.b64decode(secret["data"][wanted["key"]]).decode()
        found["tls_config"] = {"ca": authority, "server_name": tls["serverName"]}
    return found


def made_up(cluster: Cluster) -> Manifest:
    """Return the scrape configuration of the exporter of made-up metrics, which keep their own labels."""
    kept = [{"source_labels": ["__meta_kubernetes_pod_name"], "regex": EXPORTER, "action": "keep"}]
    return {
        "job_name": EXPORTER,
        "honor_labels": True,
        "scrape_interval": INTERVAL,
        "scrape_timeout": INTERVAL,
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [cluster.namespace]}}],
        "relabel_configs": kept,
    }


def exporter(series: list[Manifest]) -> list[Manifest]:
    """Return a pod that shows made-up series (programs/exporter.py)."""
    program = {"exporter.py": (PROGRAMS / "exporter.py").read_text()}
    container = {
        "name": EXPORTER,
        "image": "quire-e2e:1",
        "command": ["python", "/programs/exporter.py"],
        "env": [{"name": "EXPORTER_SERIES", "value": json.dumps(series)}],
        "ports": [{"name": "metrics", "containerPort": EXPORTER_PORT}],
        "readinessProbe": {"tcpSocket": {"port": EXPORTER_PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "programs", "mountPath": "/programs"}],
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "programs", "configMap": {"name": EXPORTER}}],
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": EXPORTER}, "data": program},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": EXPORTER}, "spec": spec},
    ]


def objects(where: str, scrape: list[Manifest], groups: list[Manifest]) -> list[Manifest]:
    """Return the server with its configuration, and an account that finds pods."""
    config = {
        "global": {"evaluation_interval": INTERVAL},
        "rule_files": ["/etc/prometheus/rules.json"],
        "scrape_configs": scrape,
    }
    rbac = "rbac.authorization.k8s.io"
    head = {"metadata": {"name": NAME}}
    server = {
        "name": NAME,
        "image": image(),
        "args": ["--config.file=/etc/prometheus/config.json", "--storage.tsdb.path=/data"],
        "ports": [{"name": "web", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/prometheus"}, {"name": "data", "mountPath": "/data"}],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", **head},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            **head,
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            **head,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": where}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            **head,
            "data": {"config.json": json.dumps(config), "rules.json": json.dumps({"groups": groups})},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            # The chart's NetworkPolicies let pods with this label scrape.
            "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": NAME}},
            "spec": {
                "serviceAccountName": NAME,
                "terminationGracePeriodSeconds": 1,
                "securityContext": {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001},
                "containers": [server],
                "volumes": [{"name": "config", "configMap": {"name": NAME}}, {"name": "data", "emptyDir": {}}],
            },
        },
    ]


class Prometheus:
    """The server in a namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def start(self, thresholds: dict[str, dict[str, str]]) -> None:
        """Start it with the namespace's PodMonitors and PrometheusRules, and wait until it is ready."""
        groups = [
            group for rule in self.cluster.items(MONITORING, "PrometheusRule") for group in rule["spec"]["groups"]
        ]
        where = self.cluster.namespace
        self.cluster.apply(
            *objects(where, [*scrapes(self.cluster), made_up(self.cluster)], shortened(groups, thresholds))
        )
        until("Prometheus is ready", self.is_running, START_S)

    def is_running(self) -> bool:
        """Return whether its pod is ready."""
        return is_ready(self.cluster.get("v1", "Pod", NAME) or {})

    def stop(self) -> None:
        """Delete its pod."""
        self.cluster.delete("v1", "Pod", NAME, grace_s=0)

    def query(self, expression: str) -> list[Manifest]:
        """Return the result of an instant query."""
        return self._ask("/api/v1/query", query=expression)

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: int) -> list[Manifest]:
        """Return the result of a query over a time."""
        return self._ask("/api/v1/query_range", query=expression, start=f"{start_s}", end=f"{end_s}", step=f"{step_s}")

    def firing(self, made_up: bool = False, pending: bool = False) -> set[str]:
        """Return the alerts that fire, because of real or of made-up metrics; `pending`: also those that soon may."""
        where = f'namespace{"=" if made_up else "!="}"{MADE_UP}"'
        state = "pending|firing" if pending else "firing"
        return {one["metric"]["alertname"] for one in self.query(f'ALERTS{{alertstate=~"{state}",{where}}}')}

    def unscraped(self) -> list[str]:
        """Return the targets that could not be scraped, each with the error."""
        answer = self.cluster.ask_pod(NAME, PORT, "/api/v1/targets", state="active").expect()
        targets: list[dict[str, Any]] = answer["data"]["activeTargets"]
        return [f"{one['labels']}: {one['lastError']}" for one in targets if one["health"] != "up"]

    def _ask(self, path: str, **query: str) -> list[Manifest]:
        answer = self.cluster.ask_pod(NAME, PORT, path, **query).expect()
        found: list[Manifest] = answer["data"]["result"]
        return found
