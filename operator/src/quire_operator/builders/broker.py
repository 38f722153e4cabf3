"""Builds the children of a `ManagedLedger`: broker StatefulSet, Services, configuration, disruption budget. Pure."""

import re
from dataclasses import dataclass

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import Metadata
from quire_operator.builders import Manifest
from quire_operator.builders.bookie import CONFIG_HEAD, pod_monitor
from quire_operator.builders.naming import BROKER, CREDENTIALS_HASH, child, child_name, selector
from quire_operator.builders.pods import (
    CONFIG_FILE,
    container,
    pod_spec,
    pod_template,
    spread,
    with_credentials,
    with_pool_tokens,
    with_secret,
    with_secrets,
    with_store,
)
from quire_operator.builders.settings import (
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
NO_CREDENTIALS = "none"
"""Digest of a missing Secret."""
GRACE_S = 60
"""A shutdown releases topics, so that another broker need not wait for a session to expire."""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Inputs of the builders in addition to the resource."""

    pool: Bookie
    """The pool that `bookieRef` names."""
    default_image: str
    pod_monitors: bool = False
    credentials: str | None = None
    """Digest of the credentials of object storage; None if the resource names none."""


def broker_children(resource: ManagedLedger, facts: BrokerFacts) -> list[Manifest]:
    """Return all children, in the order of creation."""
    found = [
        service_account(resource),
        config_map(resource, facts),
        headless_service(resource),
        client_service(resource),
        stateful_set(resource, facts),
        disruption_budget(resource),
    ]
    if facts.pod_monitors and resource.spec.monitoring.enabled:
        port = "http" if "http" in broker_ports(resource.spec.brokers) else "https"
        tls = resource.spec.brokers.tls
        secret = tls.secret_name if tls is not None and port == "https" else None
        found.append(
            pod_monitor("ManagedLedger", resource.meta, BROKER, resource.spec.monitoring, port=port, secret=secret)
        )
    return found


def config_text(resource: ManagedLedger, facts: BrokerFacts) -> str:
    """Return the configuration file of the brokers."""
    return toml_text(broker_settings(resource.spec, facts.pool.spec), CONFIG_HEAD)


def config_map(resource: ManagedLedger, facts: BrokerFacts) -> Manifest:
    """Return the ConfigMap with the configuration file."""
    head = child("ConfigMap", "v1", "ManagedLedger", resource.meta, BROKER)
    return head | {"data": {CONFIG_FILE: config_text(resource, facts)}}


def service_account(resource: ManagedLedger) -> Manifest:
    """Return an account without permissions or token."""
    head = child("ServiceAccount", "v1", "ManagedLedger", resource.meta, BROKER)
    return head | {"automountServiceAccountToken": False}


def _ports(resource: ManagedLedger) -> list[Manifest]:
    found = broker_ports(resource.spec.brokers)
    return [{"name": name, "port": port, "targetPort": name} for name, port in found.items()]


def client_service(resource: ManagedLedger) -> Manifest:
    """Return the Service for clients, which covers only ready brokers."""
    meta, wanted = resource.meta, resource.spec.brokers.service
    found = child("Service", "v1", "ManagedLedger", meta, BROKER)
    if wanted.annotations:
        found["metadata"] = found["metadata"] | {"annotations": dict(wanted.annotations)}
    return found | {
        "spec": {"type": wanted.type.value, "selector": selector(meta.name, BROKER), "ports": _ports(resource)}
    }


def headless_service(resource: ManagedLedger) -> Manifest:
    """Return the Service that names the broker pods, for the responses of lookups."""
    meta = resource.meta
    found = child("Service", "v1", "ManagedLedger", meta, BROKER)
    found["metadata"] = found["metadata"] | {"name": child_name(meta.name, HEADLESS)}
    return found | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(meta.name, BROKER),
            "ports": _ports(resource),
        }
    }


def broker_hosts(resource: ManagedLedger) -> str:
    """Return a regular expression of the host names that the brokers advertise."""
    name, meta = child_name(resource.meta.name, BROKER), resource.meta
    domain = re.escape(f".{child_name(meta.name, HEADLESS)}.{meta.namespace}.svc")
    return f"{re.escape(name)}-[0-9]+{domain}"


def service_url(resource: ManagedLedger) -> str:
    """Return the service URL for clients inside the cluster."""
    meta = resource.meta
    ports, host = broker_ports(resource.spec.brokers), f"{child_name(meta.name, BROKER)}.{meta.namespace}.svc"
    if "pulsar-tls" in ports:
        return f"pulsar+ssl://{host}:{ports['pulsar-tls']}"
    return f"pulsar://{host}:{ports['pulsar']}"


def broker_host(meta: Metadata, pod: str) -> str:
    """Return the host name that a broker advertises to clients."""
    return f"{pod}.{child_name(meta.name, HEADLESS)}.{meta.namespace}.svc"


def stateful_set(resource: ManagedLedger, facts: BrokerFacts) -> Manifest:
    """Return the StatefulSet. Brokers store no data, so Kubernetes replaces them by itself, one at a time."""
    meta, spec, pool = resource.meta, resource.spec, facts.pool.spec
    name, match = child_name(meta.name, BROKER), selector(meta.name, BROKER)
    headless = child_name(meta.name, HEADLESS)
    arguments = ["broker", "start", "--advertise", f"$(POD_NAME).{headless}.{meta.namespace}.svc"]
    ports, image = broker_ports(spec.brokers), spec.brokers.image or facts.default_image
    main = container(image, arguments, ports, broker_resources(spec.brokers), "/healthz", tls="http" not in ports)
    # `/healthz` depends on the metadata store: a restart would not help while etcd is unavailable.
    main["livenessProbe"] = {"tcpSocket": {"port": next(iter(ports))}, "periodSeconds": 10, "failureThreshold": 6}
    pod = pod_spec(main, name, name, GRACE_S) | spread(match, pool.placement.topology_keys, 1, enforce=False)
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
    template = pod_template(meta.name, BROKER, pod, config_text(resource, facts), spec.brokers.pod_template)
    if facts.credentials is not None:
        template["metadata"]["annotations"][CREDENTIALS_HASH] = facts.credentials
    head = with_store(child("StatefulSet", "apps/v1", "ManagedLedger", meta, BROKER), pool.metadata)
    return head | {
        "spec": {
            "serviceName": headless,
            "replicas": spec.brokers.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": match},
            "template": template,
        }
    }


def disruption_budget(resource: ManagedLedger) -> Manifest:
    """Return the budget: one broker at a time. A single one may be evicted, too; its topics move to another node."""
    meta = resource.meta
    return child("PodDisruptionBudget", "policy/v1", "ManagedLedger", meta, BROKER) | {
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(meta.name, BROKER)}}
    }
