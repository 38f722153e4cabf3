"""Builds the children of a `ManagedLedger` for its proxies: Deployment, Service, configuration, budget. Pure.

Proxies are reached from outside, so they have no access to etcd and bookies: they ask the brokers through their
Service, and connect clients to the host names of these brokers only. They store nothing, so Kubernetes replaces them.
"""

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.proxy_spec import Proxy
from quire_operator.builders import Manifest
from quire_operator.builders.bookie import CONFIG_HEAD, pod_monitor
from quire_operator.builders.broker import HEADLESS, client_url, service_ports
from quire_operator.builders.naming import BROKER, PROXY, child, child_name, selector
from quire_operator.builders.pods import (
    CONFIG_FILE,
    container,
    pod_spec,
    pod_template,
    spread,
    with_priority,
    with_secret,
)
from quire_operator.builders.settings import (
    BROKER_HTTP_PORT,
    BROKER_HTTPS_PORT,
    BROKER_TLS_FOLDER,
    BROKER_TOKEN_FOLDER,
    PROXY_TLS_FOLDER,
    PROXY_TOKEN,
    TOKEN_KEY,
    Settings,
    broker_ports,
    client_ports,
    token_checks,
)
from quire_operator.builders.sizing import proxy_resources
from quire_operator.builders.toml import toml_text

STOP_S = 20
"""How long a proxy that ends closes the connections of its clients in even steps."""
GRACE_S = STOP_S + 15
KINDS = (
    ("apps/v1", "Deployment"),
    ("policy/v1", "PodDisruptionBudget"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
)
"""The kinds of its children, each with one object of the same name. A PodMonitor is observed apart."""


def proxy_children(
    resource: ManagedLedger, proxy: Proxy, default_image: str, zones: tuple[str, ...], pod_monitors: bool
) -> list[Manifest]:
    """Return all children, in the order of creation. `zones`: labels of nodes to spread over."""
    found = [
        config_map(resource, proxy),
        service(resource, proxy),
        deployment(resource, proxy, default_image, zones),
        disruption_budget(resource),
    ]
    if pod_monitors and resource.spec.monitoring.enabled:
        is_plain = "http" in client_ports(proxy.tls)
        secret = None if is_plain or proxy.tls is None else proxy.tls.secret_name
        port = "http" if is_plain else "https"
        found.append(
            pod_monitor("ManagedLedger", resource.meta, PROXY, resource.spec.monitoring, port=port, secret=secret)
        )
    return found


def proxy_url(resource: ManagedLedger, proxy: Proxy) -> str:
    """Return the service URL for clients inside the cluster; those outside use the address of the Service."""
    return client_url(resource.meta, PROXY, client_ports(proxy.tls))


def config_text(resource: ManagedLedger, proxy: Proxy) -> str:
    """Return the configuration file."""
    return toml_text(proxy_settings_of_fields(resource, proxy) | proxy.settings, CONFIG_HEAD)


def proxy_settings_of_fields(resource: ManagedLedger, proxy: Proxy) -> Settings:
    """Return the settings that are set by fields of the spec; `proxy.settings` may override only a few of them.

    Without authentication the proxies do not forward the admin API: each client of a proxy would have all rights.
    """
    meta, ports = resource.meta, client_ports(proxy.tls)
    brokers = f"{child_name(meta.name, BROKER)}.{meta.namespace}.svc"
    found: Settings = {
        "servicePort": ports.get("pulsar", ""),
        "webServicePort": ports.get("http", ""),
        "brokerProxyAllowedHostNames": [f"*.{child_name(meta.name, HEADLESS)}.{meta.namespace}.svc"],
        "proxyShutdownTimeoutMs": 1000 * STOP_S,
    }
    if "https" in ports:
        found |= {
            "servicePortTls": ports["pulsar-tls"],
            "webServicePortTls": ports["https"],
            "tlsCertificateFilePath": f"{PROXY_TLS_FOLDER}/tls.crt",
            "tlsKeyFilePath": f"{PROXY_TLS_FOLDER}/tls.key",
        }
    if "https" in broker_ports(resource.spec.brokers):
        found |= {
            "tlsEnabledWithBroker": True,
            "brokerServiceURLTLS": client_url(meta, BROKER, broker_ports(resource.spec.brokers)),
            "brokerWebServiceURLTLS": f"https://{brokers}:{BROKER_HTTPS_PORT}",
            "brokerClientTrustCertsFilePath": f"{BROKER_TLS_FOLDER}/ca.crt",
        }
    else:
        found |= {
            "brokerServiceURL": client_url(meta, BROKER, broker_ports(resource.spec.brokers)),
            "brokerWebServiceURL": f"http://{brokers}:{BROKER_HTTP_PORT}",
        }
    if resource.spec.brokers.authentication is not None:
        found |= token_checks(resource.spec.brokers.authentication) | {
            "brokerClientAuthenticationPlugin": "token",
            "brokerClientAuthenticationParameters": f"file://{BROKER_TOKEN_FOLDER}/{PROXY_TOKEN}",
            "forwardAuthorizationCredentials": True,
        }
    return found


def config_map(resource: ManagedLedger, proxy: Proxy) -> Manifest:
    """Return the ConfigMap with the configuration file."""
    return child("ConfigMap", "v1", "ManagedLedger", resource.meta, PROXY) | {
        "data": {CONFIG_FILE: config_text(resource, proxy)}
    }


def service(resource: ManagedLedger, proxy: Proxy) -> Manifest:
    """Return the Service for clients, which covers only ready proxies."""
    found = child("Service", "v1", "ManagedLedger", resource.meta, PROXY)
    if proxy.service.annotations:
        found["metadata"] = found["metadata"] | {"annotations": dict(proxy.service.annotations)}
    ports = service_ports(client_ports(proxy.tls))
    match = selector(resource.meta.name, PROXY)
    return found | {"spec": {"type": proxy.service.type.value, "selector": match, "ports": ports}}


def deployment(resource: ManagedLedger, proxy: Proxy, default_image: str, zones: tuple[str, ...]) -> Manifest:
    """Return the Deployment. A change creates a pod before it ends another one."""
    meta, match = resource.meta, selector(resource.meta.name, PROXY)
    ports, image = client_ports(proxy.tls), proxy.image or default_image
    arguments = ["proxy", "--advertise", f"{child_name(meta.name, PROXY)}.{meta.namespace}.svc"]
    main = container(image, arguments, ports, proxy_resources(proxy), "/readyz", tls="http" not in ports)
    pod = pod_spec(main, child_name(meta.name, PROXY), child_name(meta.name, BROKER), GRACE_S)
    pod = with_priority(pod | spread(match, zones, 1, enforce=False), proxy.priority_class_name)
    pod = _with_secrets(pod, resource, proxy)
    template = pod_template(meta.name, PROXY, pod, config_text(resource, proxy), proxy.pod_template)
    return child("Deployment", "apps/v1", "ManagedLedger", meta, PROXY) | {
        "spec": {
            "replicas": proxy.replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": match},
            "template": template,
        }
    }


def _with_secrets(pod: Manifest, resource: ManagedLedger, proxy: Proxy) -> Manifest:
    """Mount only the required keys: certificates, the key of tokens and the proxies' own token."""
    brokers = resource.spec.brokers
    if proxy.tls is not None and proxy.tls.secret_name is not None and "https" in client_ports(proxy.tls):
        keys = {"tls.crt": "tls.crt", "tls.key": "tls.key"}
        pod = with_secret(pod, "proxy-tls", proxy.tls.secret_name, PROXY_TLS_FOLDER, keys)
    if brokers.tls is not None and brokers.tls.secret_name is not None and "https" in broker_ports(brokers):
        pod = with_secret(pod, "broker-ca", brokers.tls.secret_name, BROKER_TLS_FOLDER, {"ca.crt": "ca.crt"})
    if brokers.authentication is not None:
        keys = {TOKEN_KEY: TOKEN_KEY, PROXY_TOKEN: PROXY_TOKEN}
        pod = with_secret(pod, "token", brokers.authentication.token_key_secret, BROKER_TOKEN_FOLDER, keys)
    return pod


def disruption_budget(resource: ManagedLedger) -> Manifest:
    """Return the budget: one proxy at a time. A single one may be evicted, too: its pod starts on another node."""
    return child("PodDisruptionBudget", "policy/v1", "ManagedLedger", resource.meta, PROXY) | {
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(resource.meta.name, PROXY)}}
    }
