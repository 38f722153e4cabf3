"""Children of a ManagedLedger."""

from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.broker import (
    AppliedRevision,
    BrokerFacts,
    broker_children,
    revision_of,
    service_url,
)
from quire_operator.builders.broker_revision import Revision, config_map, parsed_revision
from tests.support.broker_pods import declared_children
from tests.support.kube_resources import bookie, managed_ledger


def resource(**spec: Any) -> ManagedLedger:
    manifest = managed_ledger(**spec)
    manifest["metadata"] |= {"namespace": "ns", "uid": "u-2"}
    return ManagedLedger.model_validate(manifest)


def children(pool: dict[str, Any] | None = None, **spec: Any) -> dict[str, dict[str, Any]]:
    facts = BrokerFacts(Bookie.model_validate(pool or bookie()), "quire/broker:1")
    found = declared_children(resource(**spec), facts)
    return {f"{child['kind']}/{child['metadata']['name']}": child for child in found}


def config(found: dict[str, dict[str, Any]]) -> str:
    """Return the configuration file."""
    (config_map,) = [child for name, child in found.items() if name.startswith("ConfigMap/orders-broker-")]
    text: str = config_map["data"]["quire.toml"]
    return text


def revision(**spec: Any) -> Revision:
    return revision_of(resource(**spec), BrokerFacts(Bookie.model_validate(bookie()), "quire/broker:1"))


def test_a_managed_ledger_becomes_brokers_with_two_services() -> None:
    assert list(children()) == [
        "ServiceAccount/orders-broker",
        f"ConfigMap/orders-broker-{revision().name}",
        "Service/orders-brokers",
        "Service/orders-broker",
        "StatefulSet/orders-broker",
        "PodDisruptionBudget/orders-broker",
    ]


def test_a_broker_has_time_to_hand_its_bundles_over_before_it_is_killed() -> None:
    found = children()
    grace_s = found["StatefulSet/orders-broker"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    stop_ms = next(line for line in config(found).splitlines() if line.startswith("brokerShutdownTimeoutMs"))
    assert 1000 * grace_s > int(stop_ms.partition("=")[2]) >= 30_000


def test_the_client_service_has_only_ready_brokers_and_lookups_name_every_pod() -> None:
    found = children(brokers={"service": {"type": "LoadBalancer", "annotations": {"lb": "internal"}}})
    client, headless = found["Service/orders-broker"], found["Service/orders-brokers"]
    assert client["spec"]["type"] == "LoadBalancer"
    assert client["metadata"]["annotations"] == {"lb": "internal"}
    assert "publishNotReadyAddresses" not in client["spec"]
    assert headless["spec"]["publishNotReadyAddresses"]
    stateful = found["StatefulSet/orders-broker"]["spec"]
    assert stateful["serviceName"] == "orders-brokers"
    arguments = stateful["template"]["spec"]["containers"][0]["args"]
    assert arguments[:4] == ["broker", "start", "--advertise", "$(POD_NAME).orders-brokers.ns.svc"]
    assert service_url(resource()) == "pulsar://orders-broker.ns.svc:6650"


def test_a_broker_is_not_restarted_while_the_metadata_store_is_unavailable() -> None:
    container = children()["StatefulSet/orders-broker"]["spec"]["template"]["spec"]["containers"][0]
    assert "httpGet" not in container["livenessProbe"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_brokers_use_the_metadata_and_the_certificates_of_their_pool() -> None:
    found = children(bookie(tls={"secretName": "certs"}))
    text = config(found)
    assert 'metadataStoreUrl = "etcd://etcd-0.etcd:2379,etcd-1.etcd:2379"' in text
    volumes = found["StatefulSet/orders-broker"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "tls", "secret": {"secretName": "certs", "defaultMode": 0o440}} in volumes


def test_a_paused_or_stopped_namespace_keeps_its_children() -> None:
    assert children(brokers={"replicas": 0})["StatefulSet/orders-broker"]["spec"]["replicas"] == 0


def test_brokers_that_require_tls_are_probed_and_scraped_only_over_tls() -> None:
    brokers = {"tls": {"secretName": "own"}, "authentication": {"tokenKeySecret": "tokens"}}
    found = children(brokers=brokers)
    for service in ("Service/orders-broker", "Service/orders-brokers"):
        assert {port["name"]: port["port"] for port in found[service]["spec"]["ports"]} == {
            "pulsar-tls": 6651,
            "https": 8443,
        }
    spec = found["StatefulSet/orders-broker"]["spec"]["template"]["spec"]
    container = spec["containers"][0]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "https", "scheme": "HTTPS"}
    assert container["livenessProbe"]["tcpSocket"]["port"] == "pulsar-tls"
    secrets = {v["name"]: v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}
    assert secrets == {"broker-tls": "own", "broker-token": "tokens"}
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert (mounts["broker-tls"], mounts["broker-token"]) == ("/etc/quire/broker-tls", "/etc/quire/broker-token")
    assert service_url(resource(brokers=brokers)) == "pulsar+ssl://orders-broker.ns.svc:6651"


def test_brokers_without_authentication_accept_remote_requests_of_the_operator() -> None:
    remote, names = "httpServerAdminRemote = true", 'httpServerAllowedHosts = ["*.svc", "*.cluster.local"]'
    text = config(children())
    assert remote in text and names in text
    brokers = {"tls": {"secretName": "own"}, "authentication": {"tokenKeySecret": "tokens"}}
    assert remote not in config(children(brokers=brokers))


def test_brokers_that_offer_tls_keep_their_plaintext_ports() -> None:
    found = children(brokers={"tls": {"secretName": "own", "mode": "Offered"}})
    ports = found["Service/orders-broker"]["spec"]["ports"]
    assert [port["name"] for port in ports] == ["pulsar", "http", "pulsar-tls", "https"]
    container = found["StatefulSet/orders-broker"]["spec"]["template"]["spec"]["containers"][0]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}


def test_advertised_listeners_are_configured_by_name() -> None:
    listeners = [{"name": "external", "host": "broker.shop.com"}, {"name": "vpn", "host": "10.0.0.1", "port": 7000}]
    wanted: dict[str, Any] = {"brokers.advertisedListeners": listeners}
    configured = "external:pulsar://broker.shop.com:6650,vpn:pulsar://10.0.0.1:7000"
    assert f'advertisedListeners = "{configured}"' in config(children(**wanted))


def test_brokers_have_the_offload_credentials_and_restart_when_they_change() -> None:
    offload = {"target": "s3://cold", "credentialsRef": {"name": "bucket"}}
    facts = BrokerFacts(Bookie.model_validate(bookie()), "quire/broker:1", credentials="d1")
    found = {child["kind"]: child for child in declared_children(resource(offload=offload), facts)}
    template = found["StatefulSet"]["spec"]["template"]
    assert template["metadata"]["annotations"]["quire.dev/credentials-hash"] == "d1"
    main = template["spec"]["containers"][0]
    assert main["envFrom"] == [{"secretRef": {"name": "bucket", "optional": True}}]
    assert {"name": "credentials", "mountPath": "/etc/quire/credentials", "readOnly": True} in main["volumeMounts"]
    without = children(offload={"target": "s3://cold"})["StatefulSet/orders-broker"]["spec"]["template"]
    assert "envFrom" not in without["spec"]["containers"][0]
    assert "quire.dev/credentials-hash" not in without["metadata"]["annotations"]


def test_brokers_read_the_ledger_password_from_the_mounted_secret() -> None:
    found = children(brokers={"ledgerPasswordSecret": "mine"})
    assert 'managedLedgerPassword = "file:///etc/quire/ledger-password/password"' in config(found)
    pod = found["StatefulSet/orders-broker"]["spec"]["template"]["spec"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "ledger-password"]
    assert volume["secret"]["secretName"] == "mine"
    assert volume["secret"]["items"] == [{"key": "password", "path": "password"}]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["ledger-password"] == "/etc/quire/ledger-password"
    assert "managedLedgerPassword" not in str(children())


@pytest.mark.parametrize(
    "change",
    [
        {"brokers": {"settings": {"maxMessageSize": "1000"}}},
        {"brokers": {"image": "quire/broker:2"}},
        {"brokers": {"podTemplate": {"metadata": {"annotations": {"tried": "again"}}}}},
        {"replication": {"ensemble": 2, "writeQuorum": 2}},
    ],
)
def test_what_reaches_the_pods_is_another_revision(change: dict[str, Any]) -> None:
    assert revision(**change).name != revision().name


def test_what_does_not_reach_the_pods_is_the_same_revision() -> None:
    changed = {"brokers": {"replicas": 0, "rollout": {"readyWithin": "1m"}}, "topics": [{"name": "t"}]}
    assert revision(**changed) == revision()


def test_a_pod_mounts_the_immutable_file_of_its_revision() -> None:
    found = children()
    name = f"orders-broker-{revision().name}"
    template = found["StatefulSet/orders-broker"]["spec"]["template"]
    assert {"name": "config", "configMap": {"name": name}} in template["spec"]["volumes"]
    assert template["metadata"]["annotations"]["quire.dev/revision"] == revision().name
    assert found[f"ConfigMap/{name}"]["immutable"] is True


def test_a_revision_is_restored_from_its_config_map() -> None:
    kept = config_map(resource(), revision(brokers={"image": "quire/broker:2"}))
    assert parsed_revision("orders", kept) == revision(brokers={"image": "quire/broker:2"})


@pytest.mark.parametrize(
    "damaged",
    [{"metadata": {"name": "orders-broker"}}, {"data": {}}, {"data": {"quire.toml": "", "revision.json": "{"}}],
    ids=["an earlier version's", "empty", "not JSON"],
)
def test_another_config_map_is_no_revision(damaged: dict[str, Any]) -> None:
    assert parsed_revision("orders", config_map(resource(), revision()) | damaged) is None


def test_services_have_the_ports_of_both_revisions_while_both_run() -> None:
    tls = resource(brokers={"tls": {"secretName": "own"}})
    facts = BrokerFacts(Bookie.model_validate(bookie()), "quire/broker:1")
    applied = AppliedRevision(revision_of(tls, facts), 2, revision())
    found = broker_children(tls, facts, applied)
    services = [one for one in found if one["kind"] == "Service"]
    for service in services:
        assert [port["name"] for port in service["spec"]["ports"]] == ["pulsar", "http", "pulsar-tls", "https"]
    (stateful,) = [one for one in found if one["kind"] == "StatefulSet"]
    assert stateful["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
