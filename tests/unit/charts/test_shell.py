"""The chart for people: the shell of docs/kubernetes/examples reaches what it is for, backups say what they did."""

import pytest
import yaml

from tests.unit.charts.rendering import ROOT, Manifest, objects

SHELL = ROOT / "docs" / "kubernetes" / "examples" / "shell.yaml"


def lets_in(policy: Manifest, labels: dict[str, str], port: str) -> bool:
    """A pod with these labels, of any namespace, may come to the port."""
    for rule in policy["spec"]["ingress"]:
        if port not in [each["port"] for each in rule.get("ports", [{"port": port}])]:
            continue
        for peer in rule["from"]:
            selector = peer.get("podSelector", {})
            fits = selector.get("matchLabels", {}).items() <= labels.items()
            for each in selector.get("matchExpressions", ()):
                assert each["operator"] == "In"
                fits = fits and labels.get(each["key"]) in each["values"]
            if peer.get("namespaceSelector") == {} and fits:
                return True
    return False


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


def test_a_broker_reaches_the_data_of_bookies_and_not_the_port_that_can_delete_it() -> None:
    labels = {"app.kubernetes.io/name": "quire-broker", "app.kubernetes.io/part-of": "quire"}
    found = objects({})["NetworkPolicy/quire-bookies"]
    assert lets_in(found, labels, "bookie")
    assert not lets_in(found, labels, "http")
    assert lets_in(found, labels | {"app.kubernetes.io/name": "quire-jobs"}, "http"), "analyses ask what bookies hold"


def test_backups_say_what_they_did_in_a_line_for_programs() -> None:
    job = objects({"etcd": {"backup": {"enabled": True, "to": "s3://b/f"}}})["CronJob/quire-etcd-backup"]
    arguments = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:2] == ["metadata", "backup"]
    assert "--json" in arguments
