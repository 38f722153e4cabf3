"""Builds the children of a `ManagedLedger`: broker StatefulSet, Services, configuration, disruption budget. Pure.

The plan decides which revision of the pods is applied, and on how many of them (`plan.rollout`).
"""

import re
from dataclasses import dataclass

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import Metadata
from quire_operator.builders import Manifest
from quire_operator.builders.bookie import CONFIG_HEAD, pod_monitor
from quire_operator.builders.broker_revision import Revision, config_map, config_map_name, digest
from quire_operator.builders.external import with_listeners
from quire_operator.builders.naming import BROKER, CREDENTIALS_HASH, REVISION_ANNOTATION, child, child_name, selector
from quire_operator.builders.pods import (
    container,
    pod_spec,
    pod_template,
    spread,
    with_credentials,
    with_pool_tokens,
    with_priority,
    with_secret,
    with_secrets,
    with_store,
)
from quire_operator.builders.settings import (
    BROKER_STOP_S,
    BROKER_TLS_FOLDER,
    BROKER_TOKEN,
    BROKER_TOKEN_FOLDER,
    LEDGER_PASSWORD_FOLDER,
    LEDGER_PASSWORD_KEY,
    broker_ports,
    broker_settings,
)
from quire_operator.builders.sizing import broker_resources
from quire_operator.builders.toml import toml_text

HEADLESS = "brokers"
PORT_NAMES = ("pulsar", "http", "pulsar-tls", "https")
NO_CREDENTIALS = "none"
"""Digest of a missing Secret."""
GRACE_S = BROKER_STOP_S + 10
"""A broker that ends hands its bundles to others, so that they need not wait for a session to expire."""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Inputs of the builders in addition to the resource."""

    pool: Bookie
    """The pool that `bookieRef` names."""
    default_image: str
    pod_monitors: bool = False
    credentials: str | None = None
    """Digest of the credentials of object storage; None if the resource names none."""
    external: bool = False
    """The address of each existing broker outside the cluster is known."""


@dataclass(frozen=True, slots=True)
class AppliedRevision:
    """The revision with which the StatefulSet is applied."""

    revision: Revision
    partition: int = 0
    """Pods with a lower ordinal keep the former revision."""
    other: Revision | None = None
    """Another revision that pods may have meanwhile; the Services have its ports, too."""
    replicas: int | None = None
    """Pods of the StatefulSet, while one that leaves is drained; None: the number in the spec."""


def broker_children(resource: ManagedLedger, facts: BrokerFacts, applied: AppliedRevision) -> list[Manifest]:
    """Return all children, in the order of creation."""
    ports = broker_ports(resource.spec.brokers) | applied.revision.ports
    ports |= {} if applied.other is None else applied.other.ports
    found = [
        service_account(resource),
        config_map(resource, applied.revision),
        headless_service(resource, ports),
        client_service(resource, ports),
        stateful_set(resource, applied),
        disruption_budget(resource),
    ]
    if facts.pod_monitors and resource.spec.monitoring.enabled:
        port = "http" if "http" in applied.revision.ports else "https"
        tls = resource.spec.brokers.tls
        secret = tls.secret_name if tls is not None and port == "https" else None
        found.append(
            pod_monitor("ManagedLedger", resource.meta, BROKER, resource.spec.monitoring, port=port, secret=secret)
        )
    return found


def config_text(resource: ManagedLedger, facts: BrokerFacts) -> str:
    """Return the configuration file of the brokers."""
    return toml_text(broker_settings(resource.spec, facts.pool.spec), CONFIG_HEAD)


def service_account(resource: ManagedLedger) -> Manifest:
    """Return an account without permissions or token."""
    head = child("ServiceAccount", "v1", "ManagedLedger", resource.meta, BROKER)
    return head | {"automountServiceAccountToken": False}


def service_ports(ports: dict[str, int]) -> list[Manifest]:
    """Return the ports of a Service, in one order."""
    return [{"name": name, "port": ports[name], "targetPort": name} for name in PORT_NAMES if name in ports]


def client_service(resource: ManagedLedger, ports: dict[str, int]) -> Manifest:
    """Return the Service for clients, which covers only ready brokers."""
    meta, wanted = resource.meta, resource.spec.brokers.service
    found = child("Service", "v1", "ManagedLedger", meta, BROKER)
    if wanted.annotations:
        found["metadata"] = found["metadata"] | {"annotations": dict(wanted.annotations)}
    return found | {
        "spec": {"type": wanted.type.value, "selector": selector(meta.name, BROKER), "ports": service_ports(ports)}
    }


def headless_service(resource: ManagedLedger, ports: dict[str, int]) -> Manifest:
    """Return the Service that names the broker pods, for the responses of lookups."""
    meta = resource.meta
    found = child("Service", "v1", "ManagedLedger", meta, BROKER)
    found["metadata"] = found["metadata"] | {"name": child_name(meta.name, HEADLESS)}
    return found | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(meta.name, BROKER),
            "ports": service_ports(ports),
        }
    }


def broker_hosts(resource: ManagedLedger) -> str:
    """Return a regular expression of the host names that the brokers advertise."""
    name, meta = child_name(resource.meta.name, BROKER), resource.meta
    domain = re.escape(f".{child_name(meta.name, HEADLESS)}.{meta.namespace}.svc")
    return f"{re.escape(name)}-[0-9]+{domain}"


def service_url(resource: ManagedLedger) -> str:
    """Return the service URL for clients inside the cluster."""
    return client_url(resource.meta, BROKER, broker_ports(resource.spec.brokers))


def client_url(meta: Metadata, part: str, ports: dict[str, int]) -> str:
    """Return the service URL of brokers or proxies, with TLS if they have a port with it."""
    host = f"{child_name(meta.name, part)}.{meta.namespace}.svc"
    if "pulsar-tls" in ports:
        return f"pulsar+ssl://{host}:{ports['pulsar-tls']}"
    return f"pulsar://{host}:{ports['pulsar']}"


def broker_host(meta: Metadata, pod: str) -> str:
    """Return the host name that a broker advertises to clients."""
    return f"{pod}.{child_name(meta.name, HEADLESS)}.{meta.namespace}.svc"


def revision_of(resource: ManagedLedger, facts: BrokerFacts) -> Revision:
    """Return the revision that the spec declares."""
    store = facts.pool.spec.metadata
    name = digest(_template(resource, facts, ""), store)
    template = _template(resource, facts, config_map_name(resource.meta.name, name))
    template["metadata"]["annotations"][REVISION_ANNOTATION] = name
    return Revision(name, config_text(resource, facts), template, store)


def _template(resource: ManagedLedger, facts: BrokerFacts, config_map: str) -> Manifest:
    """Return the pod template. `config_map`: the ConfigMap that the pods mount."""
    meta, spec, pool = resource.meta, resource.spec, facts.pool.spec
    name, match = child_name(meta.name, BROKER), selector(meta.name, BROKER)
    headless = child_name(meta.name, HEADLESS)
    arguments = ["broker", "start", "--advertise", f"$(POD_NAME).{headless}.{meta.namespace}.svc"]
    ports, image = broker_ports(spec.brokers), spec.brokers.image or facts.default_image
    main = container(image, arguments, ports, broker_resources(spec), "/healthz", tls="http" not in ports)
    # `/healthz` depends on the metadata store: a restart would not help while etcd is unavailable.
    main["livenessProbe"] = {"tcpSocket": {"port": next(iter(ports))}, "periodSeconds": 10, "failureThreshold": 6}
    pod = pod_spec(main, config_map, name, GRACE_S) | spread(match, pool.placement.topology_keys, 1, enforce=False)
    pod = with_priority(pod, spec.brokers.priority_class_name)
    pod = with_pool_tokens(with_secrets(pod, pool.metadata, pool.tls), pool.authentication, BROKER_TOKEN)
    tls, authentication = spec.brokers.tls, spec.brokers.authentication
    if tls is not None and tls.secret_name is not None and "https" in ports:
        pod = with_secret(pod, "broker-tls", tls.secret_name, BROKER_TLS_FOLDER)
    if authentication is not None:
        pod = with_secret(pod, "broker-token", authentication.token_key_secret, BROKER_TOKEN_FOLDER)
    if spec.brokers.ledger_password_secret is not None:
        keys = {LEDGER_PASSWORD_KEY: LEDGER_PASSWORD_KEY}
        pod = with_secret(pod, "ledger-password", spec.brokers.ledger_password_secret, LEDGER_PASSWORD_FOLDER, keys)
    offload = spec.offload
    if offload is not None and offload.credentials_ref is not None:
        # Without the credentials brokers still serve the ledgers on bookies.
        pod = with_credentials(pod, offload.credentials_ref.name, optional=True)
    if facts.external and spec.brokers.external is not None:
        pod = with_listeners(pod, resource, spec.brokers.external)
    template = pod_template(meta.name, BROKER, pod, config_text(resource, facts), spec.brokers.pod_template)
    if facts.credentials is not None:
        template["metadata"]["annotations"][CREDENTIALS_HASH] = facts.credentials
    return template


def stateful_set(resource: ManagedLedger, applied: AppliedRevision) -> Manifest:
    """Return the StatefulSet. Brokers store no data, so Kubernetes replaces them by itself, one at a time."""
    meta = resource.meta
    head = with_store(child("StatefulSet", "apps/v1", "ManagedLedger", meta, BROKER), applied.revision.store)
    return head | {
        "spec": {
            "serviceName": child_name(meta.name, HEADLESS),
            "replicas": resource.spec.brokers.replicas if applied.replicas is None else applied.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": applied.partition}},
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": selector(meta.name, BROKER)},
            "template": applied.revision.template,
        }
    }


def disruption_budget(resource: ManagedLedger) -> Manifest:
    """Return the budget: one broker at a time. A single one may be evicted, too: its pod starts on another node."""
    meta = resource.meta
    return child("PodDisruptionBudget", "policy/v1", "ManagedLedger", meta, BROKER) | {
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(meta.name, BROKER)}}
    }
