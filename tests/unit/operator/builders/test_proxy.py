"""The proxies of a ManagedLedger: their objects, and their settings as the process itself loads them."""

from pathlib import Path
from typing import Any

import pytest

from quire_bookie.config.sources import load
from quire_broker.cli.proxy_settings import proxy_settings
from quire_broker.config.broker import BrokerConfig
from quire_broker.config.proxy import ProxyConfig
from quire_broker.proxy.broker_book import StaticBrokers
from quire_broker.proxy.targets import Targets
from quire_broker.settings.proxy import ProxyLimits
from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.broker import BrokerFacts, broker_host
from quire_operator.builders.broker import config_text as broker_config_text
from quire_operator.builders.effective import effective_managed_ledger
from quire_operator.builders.proxy import KINDS, config_text, proxy_children, proxy_url
from tests.support.kube_resources import bookie, managed_ledger

SECURED: dict[str, Any] = {"brokers": {"authentication": {"tokenKeySecret": "tokens"}}}


def resource(generated: bool = True, **spec: Any) -> ManagedLedger:
    """Return the effective resource; `generated`: with certificates of the operator."""
    manifest = managed_ledger(**({"proxy": {}} | spec))
    manifest["metadata"] |= {"namespace": "ns", "uid": "u-2"}
    return effective_managed_ledger(ManagedLedger.model_validate(manifest), generated)


def children(found: ManagedLedger, *, pod_monitors: bool = False) -> dict[str, dict[str, Any]]:
    assert found.spec.proxy is not None
    made = proxy_children(found, found.spec.proxy, "quire/broker:1", ("zone",), pod_monitors)
    return {child["kind"]: child for child in made}


def pod(found: ManagedLedger) -> dict[str, Any]:
    spec: dict[str, Any] = children(found)["Deployment"]["spec"]["template"]["spec"]
    return spec


def loaded(folder: Path, found: ManagedLedger) -> ProxyConfig:
    """Return the settings as `quire proxy` loads them."""
    assert found.spec.proxy is not None
    file = folder / "quire.toml"
    file.write_text(config_text(found, found.spec.proxy))
    config = load(ProxyConfig, flags={}, environment={}, file=file).config
    assert isinstance(config, ProxyConfig)
    return config


def test_proxies_become_a_deployment_with_a_service_and_a_budget() -> None:
    found = children(resource(proxy={"service": {"type": "LoadBalancer", "annotations": {"lb": "public"}}}))
    assert {(child["apiVersion"], kind) for kind, child in found.items()} == set(KINDS)
    assert {child["metadata"]["name"] for child in found.values()} == {"orders-proxy"}
    spec = found["Deployment"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}, "one comes before one goes"
    service = found["Service"]
    assert (service["spec"]["type"], service["metadata"]["annotations"]) == ("LoadBalancer", {"lb": "public"})
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_a_proxy_is_as_confined_as_a_broker_and_has_neither_etcd_nor_bookies() -> None:
    spec = pod(resource(**SECURED))
    main = spec["containers"][0]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] and main["securityContext"]["readOnlyRootFilesystem"]
    assert main["args"][:3] == ["proxy", "--advertise", "orders-proxy.ns.svc"]
    assert main["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}
    secrets = {one["name"]: one["secret"] for one in spec["volumes"] if "secret" in one}
    keys = {name: [item["key"] for item in secret["items"]] for name, secret in secrets.items()}
    assert keys == {
        "proxy-tls": ["tls.crt", "tls.key"],
        "broker-ca": ["ca.crt"],
        "token": ["token.key", "proxy.token"],
    }, "not the brokers' private key, nor the operator's token"
    assert main["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "https", "scheme": "HTTPS"}


@pytest.mark.parametrize("generated", [True, False])
def test_a_proxy_accepts_its_settings_and_reaches_only_these_brokers(tmp_path: Path, generated: bool) -> None:
    found = resource(generated)
    config = loaded(tmp_path, found)
    settings = proxy_settings(config)
    assert not config.metadata, "a proxy without access to etcd"
    scheme, port = ("pulsar+ssl", 6651) if generated else ("pulsar", 6650)
    assert settings.native == f"{scheme}://orders-broker.ns.svc:{port}"
    assert settings.web == ("https://orders-broker.ns.svc:8443" if generated else "http://orders-broker.ns.svc:8080")
    assert (settings.towards.tls is not None) == generated
    assert (config.port is None, config.port_tls) == (generated, 6651 if generated else None)
    assert found.spec.proxy is not None
    assert proxy_url(found, found.spec.proxy) == f"{scheme}://orders-proxy.ns.svc:{port}"
    targets = Targets(StaticBrokers(settings.native, settings.web).has, settings.allowed_hosts, settings.allowed_ports)
    host = broker_host(found.meta, "orders-broker-7")
    assert targets.check(f"{scheme}://{host}:{port}").host == host
    assert not targets.names("etcd.ns.svc") and not targets.names("orders-broker-0.orders-brokers.other.svc")


def test_without_authentication_the_admin_api_is_not_forwarded(tmp_path: Path) -> None:
    assert not proxy_settings(loaded(tmp_path, resource())).access.admin_remote
    opened = resource(proxy={"settings": {"httpServerAdminRemote": "true"}})
    assert proxy_settings(loaded(tmp_path, opened)).access.admin_remote


def test_a_proxy_proves_its_role_and_passes_the_tokens_of_clients_on(tmp_path: Path) -> None:
    found = resource(**SECURED)
    config = loaded(tmp_path, found)
    assert config.authentication_enabled and config.forward_authorization_credentials
    assert proxy_settings(config).towards.secret_path == "/etc/quire/broker-token/proxy.token"
    file = tmp_path / "broker.toml"
    facts = BrokerFacts(Bookie.model_validate(bookie()), "quire/broker:1")
    file.write_text(broker_config_text(found, facts))
    brokers = load(BrokerConfig, flags={}, environment={}, file=file).config
    assert brokers.proxy_roles == ["quire-proxy"]
    assert brokers.authenticate_original_auth_data, "a proxy cannot name a client that it does not have"
    assert "quire-proxy" in brokers.super_user_roles
    alone = broker_config_text(resource(**SECURED, proxy=None), facts)
    assert "quire-proxy" not in alone and "authenticateOriginalAuthData" not in alone


def test_a_proxy_that_ends_has_time_to_close_the_connections_of_its_clients(tmp_path: Path) -> None:
    found = resource()
    drain_s = loaded(tmp_path, found).part(ProxyLimits).drain_s
    assert drain_s == 20
    assert pod(found)["terminationGracePeriodSeconds"] > drain_s + 5


def test_proxies_are_scraped_with_or_without_tls() -> None:
    secured, plain = (children(resource(one), pod_monitors=True)["PodMonitor"]["spec"] for one in (True, False))
    (endpoint,) = secured["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["tlsConfig"]["serverName"]) == ("https", "orders-proxy.ns.svc")
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "orders-proxy-tls"
    assert plain["podMetricsEndpoints"][0]["port"] == "http"
    off = resource(monitoring={"enabled": False})
    assert "PodMonitor" not in children(off, pod_monitors=True)


def test_a_changed_setting_replaces_the_pods() -> None:
    hashes = [
        children(resource(proxy={"settings": settings}))["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        for settings in ({}, {"proxyBufferBytes": "65536"})
    ]
    assert hashes[0] != hashes[1]
