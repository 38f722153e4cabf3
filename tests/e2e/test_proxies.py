"""Proxies for clients that reach one address only: killed, replaced, and before brokers that are killed. Under load."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.e2e import manifests, nodes, probes, release
from tests.e2e.kube import holds, is_ready, until
from tests.e2e.stack import BOOKIE_PODS, BROKER_PODS, ETCD_PODS, Stack
from tests.e2e.test_brokers import Measured, ledger

PROXY_PODS = "app.kubernetes.io/name=quire-proxy"
LOAD = "proxied"
TOPICS, RATE = 2, 50
WELL_S = 240.0
SEEN_S = 60.0
ONLY_THE_LOAD = [{"podSelector": {"matchLabels": {"app": manifests.LOAD}}}]
"""Clients of the brokers: not the load that goes through proxies."""


def wait_until_ready(stack: Stack, replicas: int) -> None:
    """Wait until exactly `replicas` proxies are ready."""

    def look() -> bool:
        found = ledger(stack)
        status = found["status"]
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and holds(found, "ProxyReady")
            and status["proxy"]["ready"] == status["proxy"]["replicas"] == replicas
            and len(stack.cluster.pods(PROXY_PODS)) == replicas
        )

    try:
        until(f"{replicas} proxies are ready", look, WELL_S, poll_s=1.0)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{ledger(stack).get('status')}") from error


@pytest.fixture
def proxied(stack: Stack) -> Iterator[Stack]:
    """Two proxies and a load through them, to which the brokers are closed: a view of the stack with this load."""
    release.install(stack.cluster, networkPolicies={"brokerClients": ONLY_THE_LOAD})
    pods = manifests.with_code({}, "quire", "bookie", "broker")
    stack.change_proxy({"replicas": 2, "podTemplate": {"spec": pods}})
    found, prefix = replace(stack, load_pod=LOAD), f"{LOAD}-{time.time():.0f}"
    try:
        wait_until_ready(stack, 2)
        stack.cluster.apply(*manifests.load(stack.where, TOPICS, RATE, name=LOAD, prefix=prefix, part="proxy"))
        until("the load through the proxies is ready", lambda: _load_is_ready(stack), WELL_S)
        found.goes_on()
        found.longest_pause_s()
        yield found
    finally:
        stack.cluster.delete("v1", "Pod", LOAD, grace_s=0)
        stack.cluster.delete("v1", "ConfigMap", LOAD)
        stack.change_proxy(None)
        release.install(stack.cluster)
    for number in range(TOPICS):  # an open ledger without a writer at work keeps its mark after a bookie restarts
        stack.admin("DELETE", f"{prefix}-{number}", force="true")
    until("the proxies are gone", lambda: not stack.cluster.pods(PROXY_PODS), WELL_S)
    until("the status has no proxies", lambda: "proxy" not in ledger(stack)["status"], WELL_S)
    assert stack.cluster.get("apps/v1", "Deployment", f"{manifests.LEDGER}-proxy") is None
    assert stack.cluster.get("v1", "Service", f"{manifests.LEDGER}-proxy") is None


def _load_is_ready(stack: Stack) -> bool:
    return is_ready(stack.cluster.get("v1", "Pod", LOAD) or {})


def test_clients_with_one_address_lose_nothing_while_proxies_and_brokers_are_killed(
    proxied: Stack, measured: Measured
) -> None:
    for pod in proxied.cluster.pods(PROXY_PODS):
        nodes.signal_processes(pod["spec"]["nodeName"], pod["metadata"]["name"], "KILL")
        proxied.goes_on()
        wait_until_ready(proxied, 2)
    measured("longest pause of acknowledgements while each proxy was killed", proxied.longest_pause_s())

    before = {pod["metadata"]["uid"] for pod in proxied.cluster.pods(PROXY_PODS)}
    proxied.change_proxy({"podTemplate": {"metadata": {"annotations": {"replaced-at": str(time.time())}}}})
    ready: list[int] = []

    def replaced() -> bool:
        pods = proxied.cluster.pods(PROXY_PODS)
        ready.append(sum(is_ready(pod) for pod in pods))
        return not before & {pod["metadata"]["uid"] for pod in pods}

    until("every proxy was replaced", replaced, WELL_S)
    assert min(ready) >= 2, "one comes before one goes"
    proxied.goes_on()
    wait_until_ready(proxied, 2)
    measured("longest pause of acknowledgements while the proxies were replaced", proxied.longest_pause_s())

    (broker,) = proxied.cluster.pods(BROKER_PODS)
    nodes.signal_processes(broker["spec"]["nodeName"], broker["metadata"]["name"], "KILL")
    proxied.goes_on()
    measured("longest pause of acknowledgements while the broker was killed", proxied.longest_pause_s())
    proxied.check_all()


@pytest.mark.skipif("IMAGE_LOADER" in os.environ, reason="the network of this cluster may not enforce NetworkPolicies")
def test_a_client_of_a_proxy_reaches_nothing_else_and_a_proxy_only_brokers(proxied: Stack) -> None:
    cluster = proxied.cluster
    parts = {"broker": BROKER_PODS, "proxy": PROXY_PODS, "bookie": BOOKIE_PODS, "etcd": ETCD_PODS}
    targets = {
        (part, port): address
        for part, selector in parts.items()
        for (_, port), address in probes.addresses(cluster.pods(selector)[:1]).items()
    }
    ports = {part: {target for target in targets if target[0] == part} for part in parts}
    until("policies are in force", lambda: probes.opened(cluster, LOAD, targets) == ports["proxy"], SEEN_S)
    proxy = cluster.pods(PROXY_PODS)[0]["metadata"]["name"]
    assert probes.opened(cluster, proxy, targets) == ports["proxy"] | ports["broker"]
    proxied.goes_on()
    proxied.check()
