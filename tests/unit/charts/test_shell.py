"""The chart for people: the shell of docs/kubernetes/examples reaches what it is for, backups say what they did."""

from ipaddress import ip_address, ip_network

import pytest
import yaml

from quire_operator.builders.naming import ledger_password_name
from tests.unit.charts.rendering import ROOT, Manifest, objects

SHELL = ROOT / "docs" / "kubernetes" / "examples" / "shell.yaml"


def lets_in(policy: Manifest, who: dict[str, str] | str, port: str) -> bool:
    """A pod with these labels, of any namespace, or somebody at this address may come to the port."""
    for rule in policy["spec"]["ingress"]:
        if port not in [each["port"] for each in rule.get("ports", [{"port": port}])]:
            continue
        if "from" not in rule or any(_is_peer(peer, who) for peer in rule["from"]):
            return True
    return False


def _is_peer(peer: Manifest, who: dict[str, str] | str) -> bool:
    if isinstance(who, str):
        block = peer.get("ipBlock")
        return block is not None and ip_address(who) in ip_network(block["cidr"])
    selector = peer.get("podSelector", {})
    fits = selector.get("matchLabels", {}).items() <= who.items()
    for each in selector.get("matchExpressions", ()):
        assert each["operator"] in ("In", "NotIn")
        fits = fits and (who.get(each["key"]) in each["values"]) == (each["operator"] == "In")
    return bool(peer.get("namespaceSelector") == {} and fits)


@pytest.mark.parametrize(
    ("policy", "port"), [("quire-bookies", "http"), ("quire-bookies", "bookie"), ("quire-etcd", "client")]
)
def test_the_shell_reaches_bookies_their_http_and_etcd_and_a_pod_of_somebody_else_does_not(
    policy: str, port: str
) -> None:
    labels = yaml.safe_load(SHELL.read_text())["metadata"]["labels"]
    found = objects({})[f"NetworkPolicy/{policy}"]
    assert lets_in(found, labels, port)
    assert not lets_in(found, {"app.kubernetes.io/name": "shop"}, port)


def test_the_shell_has_the_password_that_the_operator_gives_to_ledgers_and_starts_without_it() -> None:
    spec = yaml.safe_load(SHELL.read_text())["spec"]
    (volume,) = [one["secret"] for one in spec["volumes"] if one["name"] == "ledger-password"]
    assert (volume["secretName"], volume["optional"]) == (ledger_password_name("orders"), True)
    (mount,) = [one["mountPath"] for one in spec["containers"][0]["volumeMounts"] if one["name"] == "ledger-password"]
    runbook = (ROOT / "docs" / "kubernetes" / "backup.md").read_text()
    assert f"orphans adopt --all --password-file {mount}/password`" in runbook


def test_a_broker_reaches_the_data_of_bookies_and_not_the_port_that_can_delete_it() -> None:
    labels = {"app.kubernetes.io/name": "quire-broker", "app.kubernetes.io/part-of": "quire"}
    found = objects({})["NetworkPolicy/quire-bookies"]
    assert lets_in(found, labels, "bookie")
    assert not lets_in(found, labels, "http")
    assert lets_in(found, labels | {"app.kubernetes.io/name": "quire-jobs"}, "http"), "analyses ask what bookies hold"


OUTSIDE = "203.0.113.7"
SHOP = {"app.kubernetes.io/name": "shop"}


def test_everybody_reaches_the_brokers_also_from_outside_of_the_cluster() -> None:
    found = objects({})["NetworkPolicy/quire-brokers"]
    for port in ("pulsar-tls", "https"):
        assert lets_in(found, SHOP, port)
        assert lets_in(found, OUTSIDE, port), "a load balancer's clients are no pods"


def test_brokers_are_kept_to_some_and_quires_own() -> None:
    values: Manifest = {"networkPolicies": {"brokerClients": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}}
    found = objects(values)["NetworkPolicy/quire-brokers"]
    assert lets_in(found, OUTSIDE, "pulsar-tls")
    assert not lets_in(found, "198.51.100.1", "pulsar-tls")
    assert not lets_in(found, SHOP, "pulsar-tls")
    assert lets_in(found, {"app.kubernetes.io/part-of": "quire"}, "https")


PROXY = {"app.kubernetes.io/name": "quire-proxy", "app.kubernetes.io/part-of": "quire"}


def test_proxies_are_reached_from_outside_and_reach_only_brokers() -> None:
    narrow = [{"ipBlock": {"cidr": "198.51.100.0/24"}}]
    found = objects({"networkPolicies": {"brokerClients": narrow}})
    assert lets_in(found["NetworkPolicy/quire-proxies"], OUTSIDE, "pulsar-tls")
    assert lets_in(found["NetworkPolicy/quire-brokers"], PROXY, "pulsar-tls")
    assert not lets_in(found["NetworkPolicy/quire-brokers"], OUTSIDE, "pulsar-tls"), "only through the proxies"
    for policy, port in (("bookies", "bookie"), ("bookies", "http"), ("etcd", "client"), ("operator", "metrics")):
        assert not lets_in(found[f"NetworkPolicy/quire-{policy}"], PROXY, port), "a proxy is the first to be attacked"


def test_proxies_are_kept_to_some() -> None:
    values: Manifest = {"networkPolicies": {"proxyClients": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}}
    found = objects(values)["NetworkPolicy/quire-proxies"]
    assert lets_in(found, OUTSIDE, "pulsar-tls")
    assert not lets_in(found, "198.51.100.1", "pulsar-tls")
    assert lets_in(found, {"app.kubernetes.io/name": "prometheus"}, "https")


def test_the_api_server_reaches_the_http_of_bookies_where_it_is_named_and_nothing_else_of_them() -> None:
    assert not lets_in(objects({})["NetworkPolicy/quire-bookies"], "10.0.0.5", "http")
    narrow = [{"ipBlock": {"cidr": "203.0.113.0/24"}}]
    found = objects({"networkPolicies": {"apiServer": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "brokerClients": narrow}})
    assert lets_in(found["NetworkPolicy/quire-bookies"], "10.0.0.5", "http")
    assert not lets_in(found["NetworkPolicy/quire-bookies"], "10.0.0.6", "http")
    assert not lets_in(found["NetworkPolicy/quire-bookies"], "10.0.0.5", "bookie")
    assert not lets_in(found["NetworkPolicy/quire-etcd"], "10.0.0.5", "client")
    assert lets_in(found["NetworkPolicy/quire-brokers"], "10.0.0.5", "https")


def test_values_of_a_release_from_before_the_api_server_had_one_render() -> None:
    found = objects({"networkPolicies": {"apiServer": None}})["NetworkPolicy/quire-bookies"]
    assert not lets_in(found, OUTSIDE, "http")


def test_backups_say_what_they_did_in_a_line_for_programs() -> None:
    job = objects({"etcd": {"backup": {"enabled": True, "to": "s3://b/f"}}})["CronJob/quire-etcd-backup"]
    arguments = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:2] == ["metadata", "backup"]
    assert "--json" in arguments
