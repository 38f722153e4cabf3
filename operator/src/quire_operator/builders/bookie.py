"""Builds children of a `Bookie`: StatefulSet, Service, configuration, disruption budget, account, PodMonitor. Pure.

The plan decides the number of pods and the size of new claims: nothing here shrinks anything.
"""

from dataclasses import dataclass

from quire_operator.api.bookie import Bookie
from quire_operator.api.bookie_storage import IndexVolume, Volumes
from quire_operator.api.shared import Metadata, Monitoring
from quire_operator.builders import Manifest
from quire_operator.builders.naming import BOOKIE, MONITORING_VERSION, child, child_name, selector
from quire_operator.builders.pods import (
    CONFIG_FILE,
    away_from,
    config_hash,
    container,
    pod_spec,
    pod_template,
    spread,
    with_pool_tokens,
    with_priority,
    with_secrets,
    with_store,
    with_volume,
)
from quire_operator.builders.settings import (
    BOOKIE_HTTP_PORT,
    BOOKIE_PORT,
    BOOKIE_TOKEN,
    DATA_ROOT,
    PODINFO_FOLDER,
    TOKEN_KEY,
    bookie_settings,
    is_https_only,
)
from quire_operator.builders.sizing import bookie_resources
from quire_operator.builders.toml import toml_text

GRACE_S = 120
"""A shutdown flushes the write cache; a kill would only cause a replay."""
MACHINE = "QUIRE_bookieMachine"
"""Names the node in the registration: pods on one node fail together, whatever their zone."""
CONFIG_HEAD = "Written by quire-operator from the resource of the same name; changes are put back."


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """Inputs of the builders in addition to the resource."""

    replicas: int
    """Pods that the plan allows now, not the number in the spec."""
    default_image: str
    may_disrupt: bool = False
    """All ledgers are known to be fully replicated, so an eviction may stop one bookie."""
    pod_monitors: bool = False
    """The API of PodMonitors is installed."""
    avoid_node: str | None = None
    """A node on which a new pod is created only if no other one fits."""
    ledger_size: str | None = None
    """Size of ledger claims if they have grown beyond the spec."""


def bookie_children(resource: Bookie, facts: BookieFacts) -> list[Manifest]:
    """Return all children except those of auto-recovery, in the order of creation."""
    meta = resource.meta
    found = [
        service_account(resource),
        config_map(resource),
        headless_service(resource),
        stateful_set(resource, facts),
        disruption_budget(resource, facts),
    ]
    if facts.pod_monitors and resource.spec.monitoring.enabled:
        secret = https_secret(resource)
        found.append(pod_monitor("Bookie", meta, BOOKIE, resource.spec.monitoring, secret=secret))
    return found


def config_text(resource: Bookie) -> str:
    """Return the configuration file of the bookies."""
    return toml_text(bookie_settings(resource.spec), CONFIG_HEAD)


def config_map_name(resource: Bookie) -> str:
    """Return the ConfigMap of the configuration: another configuration has another one.

    So a bookie that restarts before a roll reaches it, or after a roll has stopped, keeps its configuration.
    """
    return f"{child_name(resource.meta.name, BOOKIE)}-{config_hash(config_text(resource))}"


def config_map(resource: Bookie) -> Manifest:
    """Return the ConfigMap with the configuration file."""
    found = child("ConfigMap", "v1", "Bookie", resource.meta, BOOKIE)
    found["metadata"] = found["metadata"] | {"name": config_map_name(resource)}
    return found | {"immutable": True, "data": {CONFIG_FILE: config_text(resource)}}


def service_account(resource: Bookie) -> Manifest:
    """Return an account without permissions or token: a bookie never connects to the API server."""
    head = child("ServiceAccount", "v1", "Bookie", resource.meta, BOOKIE)
    return head | {"automountServiceAccountToken": False}


def headless_service(resource: Bookie) -> Manifest:
    """Return the Service that names the pods.

    The names resolve before a bookie is ready, because it registers by its name and serves while it is read-only.
    """
    meta = resource.meta
    ports = [
        {"name": "bookie", "port": BOOKIE_PORT, "targetPort": "bookie"},
        {"name": "http", "port": BOOKIE_HTTP_PORT, "targetPort": "http"},
    ]
    return child("Service", "v1", "Bookie", meta, BOOKIE) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(meta.name, BOOKIE),
            "ports": ports,
        }
    }


def bookie_host(meta: Metadata, pod: str) -> str:
    """Return the host name under which a pod registers; a recreated pod has the same."""
    return f"{pod}.{child_name(meta.name, BOOKIE)}.{meta.namespace}.svc"


def stateful_set(resource: Bookie, facts: BookieFacts) -> Manifest:
    """Return the StatefulSet of the bookies.

    `OnDelete`: only the plan replaces pods, one at a time, after a check of replication; Kubernetes never does.
    `Parallel`: a bookie does not wait for one of a lower ordinal, which may never come back.
    """
    meta, spec = resource.meta, resource.spec
    name, match = child_name(meta.name, BOOKIE), selector(meta.name, BOOKIE)
    arguments = ["bookie", "start", "--advertise", bookie_host(meta, "$(POD_NAME)")]
    ports, https = {"bookie": BOOKIE_PORT, "http": BOOKIE_HTTP_PORT}, is_https_only(spec.tls)
    main = container(spec.image or facts.default_image, arguments, ports, bookie_resources(spec), "/readyz", tls=https)
    # A variable, not an argument: an image of an earlier version ignores it.
    main["env"] = [*main["env"], {"name": MACHINE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    claims = volume_claims(resource, facts)
    mounts = [{"name": claim["metadata"]["name"], "mountPath": _mount(claim)} for claim in claims]
    main["volumeMounts"] = [*main["volumeMounts"], *mounts]
    pod = with_priority(pod_spec(main, config_map_name(resource), name, GRACE_S), spec.priority_class_name)
    pod |= spread(match, spec.placement.topology_keys, spec.placement.min_zones, spec.placement.enforce)
    pod = away_from(pod, facts.avoid_node)
    pod = with_pool_tokens(with_secrets(pod, spec.metadata, spec.tls), spec.authentication, TOKEN_KEY, BOOKIE_TOKEN)
    if spec.placement.topology_keys:
        pod = with_annotations(pod)
    head = with_store(child("StatefulSet", "apps/v1", "Bookie", meta, BOOKIE), spec.metadata)
    return head | {
        "spec": {
            "serviceName": name,
            "replicas": facts.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": match},
            "template": pod_template(meta.name, BOOKIE, pod, config_text(resource), spec.pod_template),
            "volumeClaimTemplates": claims,
        }
    }


def with_annotations(pod: Manifest) -> Manifest:
    """Mount the pod's annotations as a file that follows changes: the zone is known only after scheduling."""
    items = [{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]
    return with_volume(pod, "podinfo", PODINFO_FOLDER, {"downwardAPI": {"items": items}})


def volume_claims(resource: Bookie, facts: BookieFacts) -> list[Manifest]:
    """Return the claim templates: `journal0`, `ledgers0`, ..., `index0`."""
    storage = resource.spec.storage
    found = _claims(resource.meta, "journal", storage.journal, storage.journal.size)
    found += _claims(resource.meta, "ledgers", storage.ledgers, facts.ledger_size or storage.ledgers.size)
    if storage.index is not None:
        found += _claims(resource.meta, "index", storage.index, storage.index.size)
    return found


def _claims(meta: Metadata, kind: str, volumes: Volumes | IndexVolume, size: str) -> list[Manifest]:
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": size}},
    }
    if volumes.storage_class_name is not None:
        spec["storageClassName"] = volumes.storage_class_name
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"{kind}{number}", "labels": selector(meta.name, BOOKIE)},
            "spec": spec,
        }
        for number in range(volumes.volumes)
    ]


def _mount(claim: Manifest) -> str:
    return f"{DATA_ROOT}/{claim['metadata']['name']}"


def disruption_budget(resource: Bookie, facts: BookieFacts) -> Manifest:
    """Return the budget: one bookie at a time, and none while a ledger is, or may be, under-replicated."""
    meta = resource.meta
    return child("PodDisruptionBudget", "policy/v1", "Bookie", meta, BOOKIE) | {
        "spec": {
            "maxUnavailable": 1 if facts.may_disrupt else 0,
            "selector": {"matchLabels": selector(meta.name, BOOKIE)},
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
        }
    }


def https_secret(resource: Bookie) -> str | None:
    """Return the Secret with the certificate of the HTTP ports of a pool; None if they use plaintext."""
    return resource.spec.tls.secret_name if resource.spec.tls and is_https_only(resource.spec.tls) else None


def pod_monitor(
    owner_kind: str, meta: Metadata, part: str, monitoring: Monitoring, *, port: str = "http", secret: str | None = None
) -> Manifest:
    """Return the PodMonitor. It uses TLS with the ca.crt of `secret`, if given, and the name of the Service."""
    found = child("PodMonitor", MONITORING_VERSION, owner_kind, meta, part)
    endpoint: Manifest = {"port": port, "path": "/metrics", "interval": monitoring.interval}
    if secret is not None:
        name = f"{child_name(meta.name, part)}.{meta.namespace}.svc"
        endpoint |= {
            "scheme": "https",
            "tlsConfig": {"ca": {"secret": {"name": secret, "key": "ca.crt"}}, "serverName": name},
        }
    found["metadata"] = found["metadata"] | {"labels": {**monitoring.labels, **found["metadata"]["labels"]}}
    return found | {
        "spec": {
            "selector": {"matchLabels": selector(meta.name, part)},
            "podMetricsEndpoints": [endpoint],
        }
    }
