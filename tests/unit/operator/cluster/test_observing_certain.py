"""Before bookies are removed, their users are read from the API server, not from the state of the watches."""

from typing import Any

import pytest

from quire_operator.cluster.memory import Cache, Memory, Resources
from quire_operator.cluster.observing import observe_pool
from quire_operator.plan.actions import Apply, DeleteMonitor
from quire_operator.plan.bookie import plan_bookie
from tests.support.kube_resources import bookie, managed_ledger

POOL = "/apis/quire.dev/v1alpha1/namespaces/ns/bookies/pool"
HEAD = {"name": "pool", "namespace": "ns", "uid": "u", "resourceVersion": "1"}


class FakeKube:
    """Serves objects and collections by path; missing ones are None or empty."""

    def __init__(self, resource: dict[str, Any], replicas: int) -> None:
        self.asked: list[str] = []
        owner = {"metadata": {"name": "pool-bookie", "uid": "s", "generation": 1}, "spec": {"replicas": replicas}}
        self.objects = {POOL: resource, "/apis/apps/v1/namespaces/ns/statefulsets/pool-bookie": owner}
        ledger = managed_ledger()
        ledger["metadata"]["namespace"] = "ns"
        self.lists = {
            "/apis/quire.dev/v1alpha1/managedledgers": [ledger],
            "/apis/quire.dev/v1alpha1/bookies": [resource],
        }

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        return self.objects.get(path)

    async def list(self, path: str, selector: str = "") -> list[Any]:
        self.asked.append(path)
        return self.lists.get(path, [])


async def users(resource: dict[str, Any], replicas: int) -> list[str]:
    """Return the namespaces of the pool as observed while the watches have reported none."""
    kube: Any = FakeKube(resource, replicas)
    http: Any = type("Silent", (), {"set_trust": lambda *_: None})()
    seen = await observe_pool(kube, http, "ns", "pool", 1.0, Memory(resources=Resources()))
    assert seen is not None
    return [one.name for one in seen.namespaces]


@pytest.mark.parametrize(
    ("gone", "replicas", "there", "expected"),
    [
        (False, 3, 3, []),
        (False, 3, 4, ["orders"]),
        (True, 3, 3, ["orders"]),
    ],
    ids=["nothing leaves", "a bookie leaves", "the pool goes"],
)
async def test_nothing_is_removed_based_on_the_state_of_a_watch(
    gone: bool, replicas: int, there: int, expected: list[str]
) -> None:
    resource = bookie(replicas=replicas)
    resource["metadata"] = HEAD | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if gone else {})
    assert await users(resource, there) == expected


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        (None, False),
        ({"resources": [{"kind": "ServiceMonitor"}]}, False),
        ({"resources": [{"kind": "PodMonitor"}]}, True),
    ],
)
async def test_pod_monitors_are_created_if_the_kind_is_installed(api: dict[str, Any] | None, expected: bool) -> None:
    resource = bookie()
    resource["metadata"] = HEAD
    kube: Any = FakeKube(resource, 3)
    kube.objects["/apis/monitoring.coreos.com/v1"] = api
    http: Any = type("Silent", (), {"set_trust": lambda *_: None})()
    seen = await observe_pool(kube, http, "ns", "pool", 1.0, Memory(resources=Resources()))
    assert seen is not None
    kinds = [action.manifest["kind"] for action in plan_bookie(seen, "i").actions if isinstance(action, Apply)]
    assert kinds.count("PodMonitor") == (2 if expected else 0)


@pytest.mark.parametrize(
    ("label", "expected"), [("quire-operator", {"pool-bookie", "pool-autorecovery"}), ("me", set())]
)
async def test_our_pod_monitors_are_deleted_when_monitoring_is_switched_off(label: str, expected: set[str]) -> None:
    resource = bookie(monitoring={"enabled": False})
    resource["metadata"] = HEAD
    kube: Any = FakeKube(resource, 3)
    kube.objects["/apis/monitoring.coreos.com/v1"] = {"resources": [{"kind": "PodMonitor"}]}
    for name in ("pool-bookie", "pool-autorecovery"):
        metadata = {"name": name, "uid": f"u-{name}", "labels": {"app.kubernetes.io/managed-by": label}}
        kube.objects[f"/apis/monitoring.coreos.com/v1/namespaces/ns/podmonitors/{name}"] = {"metadata": metadata}
    http: Any = type("Silent", (), {"set_trust": lambda *_: None})()
    seen = await observe_pool(kube, http, "ns", "pool", 1.0, Memory(resources=Resources()))
    assert seen is not None
    actions = plan_bookie(seen, "i").actions
    assert {action for action in actions if isinstance(action, DeleteMonitor)} == {
        DeleteMonitor(name, f"u-{name}") for name in expected
    }


async def test_cached_nodes_expire() -> None:
    cache, kube = Cache(), FakeKube({}, 0)
    reading: Any = kube
    for number in range(100):
        await cache.get(reading, f"/api/v1/nodes/n{number}", now_s=number * 10.0)
    assert len(cache) < 10
    await cache.get(reading, "/api/v1/nodes/n99", now_s=1000.0)
    assert len(kube.asked) == 100, "recently read"
