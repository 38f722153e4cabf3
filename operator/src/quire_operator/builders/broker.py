"""Children of a `ManagedLedger`: broker StatefulSet, Services, configuration, disruption budget. Pure."""

from dataclasses import dataclass

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import Manifest
from quire_operator.builders.bookie import CONFIG_HEAD, pod_monitor
from quire_operator.builders.naming import BROKER, child, child_name, selector
from quire_operator.builders.pods import CONFIG_FILE, container, pod_spec, pod_template, spread, with_secrets
from quire_operator.builders.settings import BROKER_HTTP_PORT, BROKER_PORT, broker_settings
from quire_operator.builders.toml import toml_text

HEADLESS = "brokers"
GRACE_S = 60
"""A stop gives topics back, so that another broker need not wait for a lease to end."""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What the builders need beside the resource."""

    pool: Bookie
    """The pool that `bookieRef` names."""
    default_image: str
    pod_monitors: bool = False


def broker_children(resource: ManagedLedger, facts: BrokerFacts) -> list[Manifest]:
    """All of them, in the order in which they should be made."""
    found = [
        service_account(resource),
        config_map(resource, facts),
        headless_service(resource),
        client_service(resource),
        stateful_set(resource, facts),
        disruption_budget(resource),
    ]
    if facts.pod_monitors and resource.spec.monitoring.enabled:
        found.append(pod_monitor("ManagedLedger", resource.meta, BROKER, resource.spec.monitoring))
    return found


def config_text(resource: ManagedLedger, facts: BrokerFacts) -> str:
    """The brokers' configuration file."""
    return toml_text(broker_settings(resource.spec, facts.pool.spec), CONFIG_HEAD)


def config_map(resource: ManagedLedger, facts: BrokerFacts) -> Manifest:
    """The file as an object."""
    head = child("ConfigMap", "v1", "ManagedLedger", resource.meta, BROKER)
    return head | {"data": {CONFIG_FILE: config_text(resource, facts)}}


def service_account(resource: ManagedLedger) -> Manifest:
    """An account without rights and without a token."""
    head = child("ServiceAccount", "v1", "ManagedLedger", resource.meta, BROKER)
    return head | {"automountServiceAccountToken": False}


def _ports() -> list[Manifest]:
    return [
        {"name": "pulsar", "port": BROKER_PORT, "targetPort": "pulsar"},
        {"name": "http", "port": BROKER_HTTP_PORT, "targetPort": "http"},
    ]


def client_service(resource: ManagedLedger) -> Manifest:
    """Where clients connect; only brokers that answer."""
    meta, wanted = resource.meta, resource.spec.brokers.service
    found = child("Service", "v1", "ManagedLedger", meta, BROKER)
    if wanted.annotations:
        found["metadata"] = found["metadata"] | {"annotations": dict(wanted.annotations)}
    return found | {"spec": {"type": wanted.type.value, "selector": selector(meta.name, BROKER), "ports": _ports()}}


def headless_service(resource: ManagedLedger) -> Manifest:
    """Names of the broker pods: what a lookup answers with."""
    meta = resource.meta
    found = child("Service", "v1", "ManagedLedger", meta, BROKER)
    found["metadata"] = found["metadata"] | {"name": child_name(meta.name, HEADLESS)}
    return found | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(meta.name, BROKER),
            "ports": _ports(),
        }
    }


def service_url(resource: ManagedLedger) -> str:
    """Where clients inside the cluster connect."""
    meta = resource.meta
    return f"pulsar://{child_name(meta.name, BROKER)}.{meta.namespace}.svc:{BROKER_PORT}"


def stateful_set(resource: ManagedLedger, facts: BrokerFacts) -> Manifest:
    """Brokers hold no data: Kubernetes replaces them by itself, one after the other."""
    meta, spec, pool = resource.meta, resource.spec, facts.pool.spec
    name, match = child_name(meta.name, BROKER), selector(meta.name, BROKER)
    headless = child_name(meta.name, HEADLESS)
    arguments = ["broker", "start", "--advertise", f"$(POD_NAME).{headless}.{meta.namespace}.svc"]
    ports = {"pulsar": BROKER_PORT, "http": BROKER_HTTP_PORT}
    main = container(spec.brokers.image or facts.default_image, arguments, ports, spec.brokers.resources, "/healthz")
    # Its health is the metadata store's: to be killed because etcd is away would help nobody.
    main["livenessProbe"] = {"tcpSocket": {"port": "pulsar"}, "periodSeconds": 10, "failureThreshold": 6}
    pod = pod_spec(main, name, name, GRACE_S) | spread(match, (), 1, enforce=False)
    pod = with_secrets(pod, pool.metadata, pool.tls)
    return child("StatefulSet", "apps/v1", "ManagedLedger", meta, BROKER) | {
        "spec": {
            "serviceName": headless,
            "replicas": spec.brokers.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": match},
            "template": pod_template(meta.name, BROKER, pod, config_text(resource, facts), spec.brokers.pod_template),
        }
    }


def disruption_budget(resource: ManagedLedger) -> Manifest:
    """One broker at a time; with a single one a drained node may still take it, the topics come back elsewhere."""
    meta = resource.meta
    return child("PodDisruptionBudget", "policy/v1", "ManagedLedger", meta, BROKER) | {
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(meta.name, BROKER)}}
    }
