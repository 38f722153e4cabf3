"""Each of three members of etcd is replaced by one on an empty volume, as docs/kubernetes/operations.md describes.

Under load: no message is lost."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e import manifests, release
from tests.e2e.kube import is_ready, until
from tests.e2e.release import kubectl
from tests.e2e.stack import BOOKIE_PODS, ETCD_PODS, Stack

Measured = Callable[..., None]
MEMBERS = 3
CHANGED_S = 120.0
JOINED_S = 240.0
WELL_S = 300.0
TLS = "/etc/etcd/tls"
FLAGS = (
    f"--endpoints=https://localhost:{manifests.ETCD_PORT}",
    f"--cacert={TLS}/ca.crt",
    f"--cert={TLS}/tls.crt",
    f"--key={TLS}/tls.key",
)


@pytest.mark.timeout(1500)
def test_every_member_of_etcd_is_replaced_pod_by_pod(bounded: Stack, measured: Measured) -> None:
    stack, before = bounded, _members(bounded, by=0)
    bookies = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    assert len(before) == MEMBERS
    release.install(stack.cluster, etcd=stack.etcd_values() | {"initialClusterState": "existing"})
    start_s = time.monotonic()
    for number in range(MEMBERS):
        _replace(stack, number)
        stack.goes_on()
    measured("three members replaced after", time.monotonic() - start_s)
    after = _members(stack, by=0)
    assert after.keys() == before.keys(), "names stay"
    assert not set(after.values()) & set(before.values()), "every member is another one"
    stack.wait_until_well(WELL_S)
    now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stack.cluster.pods(BOOKIE_PODS)}
    assert now == bookies, "no bookie was replaced"
    measured("longest pause of acknowledgements", stack.longest_pause_s())
    stack.check_all()


def _replace(stack: Stack, number: int) -> None:
    name, stays = f"{manifests.ETCD}-{number}", (number + 1) % MEMBERS
    peer = f"https://{name}.{manifests.ETCD}-members.{stack.where}.svc:2380"
    left = _members(stack, stays)[name]
    # Until all members are connected, etcd refuses a change.
    until(f"{name} is removed", lambda: _etcdctl(stack, stays, "member", "remove", f"{left:x}"), CHANGED_S)
    until(f"{name} is added", lambda: _etcdctl(stack, stays, "member", "add", name, f"--peer-urls={peer}"), CHANGED_S)
    (pod,) = [pod for pod in stack.cluster.pods(ETCD_PODS) if pod["metadata"]["name"] == name]
    kubectl(stack.cluster, "delete", f"pvc/data-{name}", f"pod/{name}", "--wait=false")

    def joined() -> bool:
        found = [one for one in stack.cluster.pods(ETCD_PODS) if one["metadata"]["name"] == name]
        return any(is_ready(one) and one["metadata"]["uid"] != pod["metadata"]["uid"] for one in found)

    until(f"{name} is ready with an empty volume", joined, JOINED_S)


def _etcdctl(stack: Stack, by: int, *words: str) -> str:
    return kubectl(stack.cluster, "exec", f"{manifests.ETCD}-{by}", "--", "etcdctl", *FLAGS, *words)


def _members(stack: Stack, by: int) -> dict[str, int]:
    """Return the ids of the members by name, as one of them knows them."""
    found: dict[str, Any] = json.loads(_etcdctl(stack, by, "member", "list", "--write-out=json"))
    return {str(one["name"]): int(one["ID"]) for one in found["members"]}
