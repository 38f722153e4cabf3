"""The chart's NetworkPolicies on a network that enforces them: which clients reach which ports. Under load."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e import manifests, probes, release
from tests.e2e.kube import Cluster, Manifest, until
from tests.e2e.probes import Port
from tests.e2e.stack import BOOKIE_PODS, BROKER_PODS, ETCD_PODS, OPERATOR_PODS, Stack

pytestmark = pytest.mark.e2e_short

PART, NAME = "app.kubernetes.io/part-of", "app.kubernetes.io/name"
PARTS = {
    "bookie": BOOKIE_PODS,
    "broker": BROKER_PODS,
    "etcd": ETCD_PODS,
    "operator": OPERATOR_PODS,
    "autorecovery": f"{NAME}=quire-autorecovery",
}
CLIENTS = {
    "stranger": {},
    "prometheus": {NAME: "prometheus"},
    "shell": {NAME: "quire-shell", PART: "quire"},
    "impostor": {NAME: "quire-shell"},
}
"""Labels of probing pods; only one of them lacks all labels that a policy selects."""
CLOSED = {"probe": "closed"}
SEEN_S = 60.0


@dataclass
class Room:
    """The stack's pods and the probing pods beside them."""

    stack: Stack
    elsewhere: Cluster

    def targets(self) -> dict[Port, tuple[str, int]]:
        """Return the addresses of all ports, with a pod's part as its name; pods of a part are equal for policies."""
        return {
            (part, port): address
            for part, selector in PARTS.items()
            for (_, port), address in probes.addresses(self.stack.cluster.pods(selector)[:1]).items()
        }

    def reaches(self, client: str) -> set[Port]:
        """Return the ports that a probing pod of the stack's namespace reaches."""
        return probes.opened(self.stack.cluster, f"probe-{client}", self.targets())


@pytest.fixture
def room(stack: Stack) -> Iterator[Room]:
    """Probing pods in the stack's namespace and in another one, on a network that enforces policies."""
    # Another namespace each time, as deleting one takes a while.
    elsewhere = stack.cluster.within(f"{stack.where}-{time.time_ns() % 1_000_000}")
    elsewhere.apply(manifests.namespace(elsewhere.namespace))
    try:
        for name, labels in CLIENTS.items():
            stack.cluster.apply(probes.client(f"probe-{name}", labels))
        elsewhere.apply(probes.client("probe-stranger", {}), probes.client("probe-closed", CLOSED), _closes())
        for name in CLIENTS:
            probes.wait(stack.cluster, f"probe-{name}")
        for name in ("probe-stranger", "probe-closed"):
            probes.wait(elsewhere, name)
        _require_enforcement(elsewhere)
        yield Room(stack, elsewhere)
    finally:
        for name in CLIENTS:
            stack.cluster.delete("v1", "Pod", f"probe-{name}", grace_s=0)
        elsewhere.delete("v1", "Namespace", elsewhere.namespace)


def test_only_those_that_need_a_port_reach_it(room: Room) -> None:
    every = set(room.targets())
    by_prometheus, by_shell = room.reaches("prometheus"), room.reaches("shell")
    brokers = {port for port in every if port[0] == "broker"}
    metrics = {("bookie", "http"), ("autorecovery", "http"), ("etcd", "metrics"), ("operator", "metrics")}
    assert {("bookie", "bookie"), ("etcd", "client"), ("etcd", "peer")} | metrics | brokers <= every, every
    until("policies are in force", lambda: room.reaches("stranger") <= brokers, SEEN_S)
    assert room.reaches("stranger") == brokers, "bookies, etcd and the operator are closed; brokers authenticate"
    assert room.reaches("impostor") == brokers, "the name alone does not make a pod Quire's"
    assert probes.opened(room.elsewhere, "probe-stranger", room.targets()) == brokers
    assert by_prometheus == metrics | brokers
    assert by_shell == every - {("etcd", "peer"), ("etcd", "metrics")}
    (broker,) = room.stack.cluster.pods(BROKER_PODS)
    by_broker = probes.opened(room.stack.cluster, broker["metadata"]["name"], room.targets())
    assert ("bookie", "bookie") in by_broker and ("etcd", "client") in by_broker
    assert not by_broker & {("bookie", "http"), ("autorecovery", "http"), ("etcd", "peer")}, "brokers delete no data"
    room.stack.goes_on()
    room.stack.check()


def test_brokers_can_be_restricted_to_named_clients(room: Room) -> None:
    brokers = {port for port in room.targets() if port[0] == "broker"}
    assert room.reaches("stranger") == brokers
    named = [
        {"podSelector": {"matchLabels": {"app": manifests.LOAD}}},
        {"podSelector": {"matchLabels": CLIENTS["impostor"]}},
    ]
    try:
        release.install(room.stack.cluster, networkPolicies={"brokerClients": named})
        until("strangers are shut out", lambda: not room.reaches("stranger"), SEEN_S)
        assert room.reaches("impostor") == brokers
        room.stack.goes_on()
    finally:
        release.install(room.stack.cluster)
    until("brokers are open again", lambda: room.reaches("stranger") == brokers, SEEN_S)
    room.stack.check()


def _closes() -> Manifest:
    """Return a policy that closes all ports of a pod."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed"},
        "spec": {"podSelector": {"matchLabels": CLOSED}, "policyTypes": ["Ingress"]},
    }


def _require_enforcement(elsewhere: Cluster) -> None:
    """Skip on another cluster whose network ignores policies; fail on the one of our scripts."""
    target = probes.addresses([pod for pod in elsewhere.pods() if pod["metadata"]["name"] == "probe-closed"])
    try:
        until("a closed pod is closed", lambda: not probes.opened(elsewhere, "probe-stranger", target), SEEN_S)
    except AssertionError:
        if os.environ.get("IMAGE_LOADER"):
            pytest.skip("the network of this cluster does not enforce NetworkPolicies")
        raise
