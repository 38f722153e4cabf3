"""Children of a `Bookie`: StatefulSet, Service, configuration, disruption budget, account, PodMonitor. Pure.

How many pods, and of which size a new claim is, is decided by the plan and comes in: nothing here shrinks anything.
"""

from dataclasses import dataclass

from quire_operator.api.bookie import Bookie
from quire_operator.api.bookie_storage import IndexVolume, Volumes
from quire_operator.api.shared import Metadata, Monitoring
from quire_operator.builders import Manifest
from quire_operator.builders.naming import BOOKIE, MONITORING_VERSION, child, child_name, selector
from quire_operator.builders.pods import (
    CONFIG_FILE,
    container,
    pod_spec,
    pod_template,
    spread,
    with_pool_tokens,
    with_secrets,
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
from quire_operator.builders.toml import toml_text

GRACE_S = 120
"""A stop flushes the write cache; a kill would only mean a replay."""
CONFIG_HEAD = "Written by quire-operator from the resource of the same name; changes are put back."


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """What the builders need beside the resource."""

    replicas: int
    """Pods that the plan allows now; not what the spec wants."""
    default_image: str
    may_disrupt: bool = False
    """Nothing is under-replicated, for sure: an eviction may take one bookie away."""
    pod_monitors: bool = False
    """The cluster knows PodMonitor."""
    ledger_size: str | None = None
    """Size of ledger claims when they have grown beyond the spec."""


def bookie_children(resource: Bookie, facts: BookieFacts) -> list[Manifest]:
    """All of them but auto-recovery, in the order in which they should be made."""
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
    """The bookies' configuration file."""
    return toml_text(bookie_settings(resource.spec), CONFIG_HEAD)


def config_map(resource: Bookie) -> Manifest:
    """The file as an object."""
    head = child("ConfigMap", "v1", "Bookie", resource.meta, BOOKIE)
    return head | {"data": {CONFIG_FILE: config_text(resource)}}


def service_account(resource: Bookie) -> Manifest:
    """An account without rights and without a token: a bookie never talks to the API server."""
    head = child("ServiceAccount", "v1", "Bookie", resource.meta, BOOKIE)
    return head | {"automountServiceAccountToken": False}


def headless_service(resource: Bookie) -> Manifest:
    """Names of the pods. They resolve before a bookie is ready: it registers by its name, and read-only ones serve."""
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
    """The name under which a pod registers; it stays when the pod is made anew."""
    return f"{pod}.{child_name(meta.name, BOOKIE)}.{meta.namespace}.svc"


def stateful_set(resource: Bookie, facts: BookieFacts) -> Manifest:
    """The pods. `OnDelete`: the plan takes pods one by one, after looking at replication; Kubernetes never does.

    `Parallel`: a bookie does not wait for the one before it, least of all when that one will never come back.
    """
    meta, spec = resource.meta, resource.spec
    name, match = child_name(meta.name, BOOKIE), selector(meta.name, BOOKIE)
    arguments = ["bookie", "start", "--advertise", bookie_host(meta, "$(POD_NAME)")]
    ports, https = {"bookie": BOOKIE_PORT, "http": BOOKIE_HTTP_PORT}, is_https_only(spec.tls)
    main = container(spec.image or facts.default_image, arguments, ports, spec.resources, "/readyz", tls=https)
    claims = volume_claims(resource, facts)
    mounts = [{"name": claim["metadata"]["name"], "mountPath": _mount(claim)} for claim in claims]
    main["volumeMounts"] = [*main["volumeMounts"], *mounts]
    pod = pod_spec(main, name, name, GRACE_S)
    pod |= spread(match, spec.placement.topology_keys, spec.placement.min_zones, spec.placement.enforce)
    pod = with_pool_tokens(with_secrets(pod, spec.metadata, spec.tls), spec.authentication, TOKEN_KEY, BOOKIE_TOKEN)
    if spec.placement.topology_keys:
        pod = with_annotations(pod)
    return child("StatefulSet", "apps/v1", "Bookie", meta, BOOKIE) | {
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
    """The pod's annotations as a file that follows them: the zone comes once there is a node."""
    main = dict(pod["containers"][0])
    main["volumeMounts"] = [*main["volumeMounts"], {"name": "podinfo", "mountPath": PODINFO_FOLDER, "readOnly": True}]
    items = [{"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]
    volume = {"name": "podinfo", "downwardAPI": {"items": items}}
    return pod | {"containers": [main], "volumes": [*pod["volumes"], volume]}


def volume_claims(resource: Bookie, facts: BookieFacts) -> list[Manifest]:
    """Claim templates: `journal0`, `ledgers0`, ..., `index0`."""
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
    """Evictions: one bookie at a time, and none while anything is under-replicated or nobody knows."""
    meta = resource.meta
    return child("PodDisruptionBudget", "policy/v1", "Bookie", meta, BOOKIE) | {
        "spec": {
            "maxUnavailable": 1 if facts.may_disrupt else 0,
            "selector": {"matchLabels": selector(meta.name, BOOKIE)},
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
        }
    }


def https_secret(resource: Bookie) -> str | None:
    """The Secret that vouches for the HTTP ports of a pool; None: they are in clear."""
    return resource.spec.tls.secret_name if resource.spec.tls and is_https_only(resource.spec.tls) else None


def pod_monitor(
    owner_kind: str, meta: Metadata, part: str, monitoring: Monitoring, *, port: str = "http", secret: str | None = None
) -> Manifest:
    """What Prometheus' operator scrapes; over TLS with the ca.crt of `secret`, for the name of the Service."""
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
