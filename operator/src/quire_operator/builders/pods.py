"""Builds the common parts of all pods: an unprivileged user, a read-only root, probes, configuration folders. Pure."""

import hashlib
import json
from typing import Any

from quire_operator.api.bookie_spec import BookieAuthentication
from quire_operator.api.shared import MetadataStore, PodTemplate, Resources, Tls
from quire_operator.builders import Manifest
from quire_operator.builders.merging import merged
from quire_operator.builders.naming import CONFIG_HASH, CONTAINER, METADATA_ANNOTATION, labels
from quire_operator.builders.settings import METADATA_AUTH_FOLDER, METADATA_TLS_FOLDER, POOL_TOKEN_FOLDER, TLS_FOLDER

CONFIG_FOLDER = "/etc/quire/config"
CONFIG_FILE = "quire.toml"
CREDENTIALS_FOLDER = "/etc/quire/credentials"
USER_ID = 10001
STARTUP_PERIOD_S = 2
STARTUP_PERIODS = 1800
"""An hour in total, so that a long replay of the journal is not restarted."""


def config_hash(text: str) -> str:
    """Return a short digest of a configuration file; a change replaces the pods."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def probe(path: str, port: str, period_s: int, failures: int, *, tls: bool) -> Manifest:
    """Return a probe by GET on an HTTP port; kubelets do not verify certificates."""
    where = {"path": path, "port": port} | ({"scheme": "HTTPS"} if tls else {})
    return {
        "httpGet": where,
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def container(
    image: str, arguments: list[str], ports: dict[str, int], resources: Resources, ready_path: str, *, tls: bool = False
) -> Manifest:
    """Return the main container. Only mounted folders are writable. `tls`: its HTTP port uses TLS."""
    http = "http" if "http" in ports else "https"
    found: Manifest = {
        "name": CONTAINER,
        "image": image,
        "args": [*arguments, "--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}", "--log-format", "json"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "startupProbe": probe("/healthz", http, STARTUP_PERIOD_S, STARTUP_PERIODS, tls=tls),
        "livenessProbe": probe("/healthz", http, 10, 6, tls=tls),
        "readinessProbe": probe(ready_path, http, 5, 2, tls=tls),
        # The last line has the reason why a process refuses to start; the status of the resource shows it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    if resources.requests or resources.limits:
        found["resources"] = resources.plain()
    return found


def container_security() -> Manifest:
    """Return the security context of every container: writes only to mounts, no privileges."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security() -> Manifest:
    """Return the security context of every pod: not root, with volumes that its user can write."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_spec(main: Manifest, config_map: str, service_account: str, grace_s: int) -> Manifest:
    """Return the spec of a pod with one container."""
    return {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_s,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [main],
        "volumes": [
            {"name": "config", "configMap": {"name": config_map}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        ],
    }


def with_priority(spec: Manifest, name: str | None) -> Manifest:
    """Set the PriorityClass, if there is one. It decides which pods a node without memory or disk evicts last."""
    return spec if name is None else spec | {"priorityClassName": name}


def with_secrets(spec: Manifest, metadata: MetadataStore, tls: Tls | None) -> Manifest:
    """Mount the Secrets with certificates. Processes follow updates of the mounts, so rotation needs no restart."""
    secrets = []
    if tls is not None and tls.secret_name is not None:
        secrets.append(("tls", tls.secret_name, TLS_FOLDER))
    if metadata.tls is not None:
        secrets.append(("metadata-tls", metadata.tls.secret_name, METADATA_TLS_FOLDER))
    if metadata.auth is not None:
        secrets.append(("metadata-auth", metadata.auth.secret_name, METADATA_AUTH_FOLDER))
    for name, secret, folder in secrets:
        spec = with_secret(spec, name, secret, folder)
    return spec


def with_pool_tokens(spec: Manifest, wanted: BookieAuthentication | None, *keys: str) -> Manifest:
    """Mount only the required keys of the Secret with the key and the tokens of a pool."""
    if wanted is None:
        return spec
    return with_secret(spec, "token", wanted.token_key_secret, POOL_TOKEN_FOLDER, {key: key for key in keys})


def with_secret(
    spec: Manifest, name: str, secret: str, folder: str, keys: dict[str, str] | None = None, *, optional: bool = False
) -> Manifest:
    """Mount another Secret in a folder. `keys`: only these, with their file names."""
    source: Manifest = {"secretName": secret, "defaultMode": 0o440}
    if optional:
        source["optional"] = True
    if keys is not None:
        source["items"] = [{"key": key, "path": path} for key, path in keys.items()]
    return with_volume(spec, name, folder, {"secret": source})


def with_volume(spec: Manifest, name: str, folder: str, source: Manifest) -> Manifest:
    """Mount another volume in a folder, which the process can only read."""
    main = dict(spec["containers"][0])
    main["volumeMounts"] = [*main["volumeMounts"], {"name": name, "mountPath": folder, "readOnly": True}]
    return spec | {"volumes": [*spec["volumes"], {"name": name} | source], "containers": [main]}


def with_credentials(spec: Manifest, secret: str, *, optional: bool = False) -> Manifest:
    """Provide the credentials of object storage: the keys of a Secret as environment variables, and as files.

    `optional`: the pod also starts without the Secret.
    """
    spec = with_secret(spec, "credentials", secret, CREDENTIALS_FOLDER, optional=optional)
    main, reference = spec["containers"][0], {"name": secret} | ({"optional": True} if optional else {})
    return spec | {"containers": [main | {"envFrom": [*main.get("envFrom", ()), {"secretRef": reference}]}]}


def pod_template(owner: str, part: str, spec: Manifest, config: str, wanted: PodTemplate) -> Manifest:
    """Return the generated pod with the user's template merged over it, except for the operator's labels and hash."""
    return {
        "metadata": {
            "labels": {**wanted.metadata.labels, **labels(owner, part)},
            "annotations": {**wanted.metadata.annotations, CONFIG_HASH: config_hash(config)},
        },
        "spec": merged(spec, wanted.spec),
    }


def with_store(stateful_set: Manifest, store: MetadataStore) -> Manifest:
    """Record the metadata store of the pods, with which a later spec is compared. No part of the pods, so no roll."""
    text = json.dumps(store.plain(), sort_keys=True, separators=(",", ":"))
    metadata = stateful_set["metadata"]
    return stateful_set | {"metadata": metadata | {"annotations": {METADATA_ANNOTATION: text}}}


def away_from(pod: Manifest, node: str | None) -> Manifest:
    """Return the pod with a preference for other nodes than this one, if any."""
    if node is None:
        return pod
    term = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]}
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
    return pod | {"affinity": pod["affinity"] | {"nodeAffinity": rule}}


def spread(match: dict[str, str], keys: tuple[str, ...], min_zones: int, enforce: bool) -> dict[str, Any]:
    """Return anti-affinity over nodes and spread over the topology, as a preference or enforced."""
    term = {"labelSelector": {"matchLabels": match}, "topologyKey": "kubernetes.io/hostname"}
    rule: Manifest
    if enforce:
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    else:
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    constraints: list[Manifest] = []
    for place, key in enumerate(keys):
        constraint: Manifest = {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if enforce else "ScheduleAnyway",
            "labelSelector": {"matchLabels": match},
        }
        if place == 0 and enforce and min_zones > 1:
            constraint["minDomains"] = min_zones
        constraints.append(constraint)
    return {"affinity": {"podAntiAffinity": rule}} | ({"topologySpreadConstraints": constraints} if constraints else {})
