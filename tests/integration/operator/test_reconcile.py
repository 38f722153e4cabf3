"""Passes over a pool against a real API server: what Kubernetes has afterwards. No pod ever runs here."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.kube import Kube
from quire_operator.errors import ConflictError, KubeError
from quire_operator.reconcile import reconcile_bookie
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import BOOKIE, MANAGED_LEDGER, changed
from tests.support.status_judges import kstatus

pytestmark = pytest.mark.slow
NOW_S = 1_900_000_000.0


class Operator:
    """Passes over one pool."""

    def __init__(self, kube: Kube, http: BookieHttp, namespace: str) -> None:
        self.kube = kube
        self._http = http
        self._namespace = namespace

    async def passes(self, count: int) -> float | None:
        """The last one's requeue."""
        found: float | None = None
        for _ in range(count):
            found = await reconcile_bookie(
                self.kube, self._http, self._namespace, "pool", default_image="quire:1", now_s=NOW_S
            )
        return found


@pytest.fixture
async def operator(kubeconfig: Path, kube: KubeApi, namespace: str) -> AsyncIterator[Operator]:
    async with await Kube.open(str(kubeconfig)) as client, aiohttp.ClientSession() as session:
        yield Operator(client, BookieHttp(session), namespace)


def path(namespace: str) -> str:
    return f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/bookies"


def condition(pool: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in pool["status"]["conditions"] if one["type"] == kind)
    return found


async def test_two_passes_make_the_children_and_a_status(operator: Operator, kube: KubeApi, namespace: str) -> None:
    kube.create(path(namespace), BOOKIE).expect()
    assert await operator.passes(1) == 0, "the finalizer first"
    assert await operator.passes(1) == 2, "pods are missing"
    pool = kube.get(f"{path(namespace)}/pool").expect()
    assert pool["metadata"]["finalizers"] == ["quire.dev/bookie"]
    assert pool["status"]["observedGeneration"] == 1
    assert pool["status"]["phase"] == "Creating"
    assert condition(pool, "FullyReplicated")["status"] == "Unknown"
    stateful = kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie").expect()
    assert stateful["spec"]["replicas"] == 3
    assert stateful["metadata"]["ownerReferences"][0]["uid"] == pool["metadata"]["uid"]


async def test_a_pass_without_changes_writes_nothing(operator: Operator, kube: KubeApi, namespace: str) -> None:
    kube.create(path(namespace), BOOKIE).expect()
    await operator.passes(3)
    versions = [
        kube.get(f"{path(namespace)}/pool").expect()["metadata"]["resourceVersion"],
        kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie").expect()["metadata"][
            "resourceVersion"
        ],
    ]
    await operator.passes(2)
    assert versions == [
        kube.get(f"{path(namespace)}/pool").expect()["metadata"]["resourceVersion"],
        kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie").expect()["metadata"][
            "resourceVersion"
        ],
    ]


async def test_fewer_replicas_do_not_reach_the_stateful_set_while_nobody_can_say_what_is_safe(
    operator: Operator, kube: KubeApi, namespace: str
) -> None:
    kube.create(path(namespace), changed(BOOKIE, {"spec.replicas": 5})).expect()
    await operator.passes(2)
    kube.merge(f"{path(namespace)}/pool/scale", {"spec": {"replicas": 3}}).expect()
    await operator.passes(2)
    stateful = kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie").expect()
    assert stateful["spec"]["replicas"] == 5
    pool = kube.get(f"{path(namespace)}/pool").expect()
    assert condition(pool, "ScaleDownBlocked")["reason"] == "MetadataUnreachable"


async def test_a_child_that_was_changed_or_deleted_by_hand_is_put_back(
    operator: Operator, kube: KubeApi, namespace: str
) -> None:
    kube.create(path(namespace), BOOKIE).expect()
    await operator.passes(2)
    config = f"/api/v1/namespaces/{namespace}/configmaps/pool-autorecovery"
    before = kube.get(config).expect()["data"]
    kube.merge(config, {"data": {"quire.toml": "journalSyncData = false"}}).expect()
    kube.call("DELETE", f"/api/v1/namespaces/{namespace}/services/pool-bookie").expect()
    await operator.passes(1)
    assert kube.get(config).expect()["data"] == before
    assert kube.get(f"/api/v1/namespaces/{namespace}/services/pool-bookie").ok


async def test_a_status_is_not_written_over_what_was_not_seen(
    operator: Operator, kube: KubeApi, namespace: str
) -> None:
    made = kube.create(path(namespace), BOOKIE).expect()
    kube.merge(f"{path(namespace)}/pool", {"metadata": {"labels": {"a": "b"}}}).expect()
    with pytest.raises(ConflictError):
        await operator.kube.replace(f"{path(namespace)}/pool/status", made | {"status": {"phase": "Running"}})


async def test_a_rejected_stateful_set_is_in_the_status_and_in_one_event_until_it_is_accepted(
    operator: Operator, kube: KubeApi, namespace: str
) -> None:
    kube.create(path(namespace), BOOKIE).expect()
    await operator.passes(2)
    more_than_the_limit = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}
    template = {"spec": {"containers": [{"name": "quire", "resources": more_than_the_limit}]}}
    kube.merge(f"{path(namespace)}/pool", {"spec": {"podTemplate": template}}).expect()
    for _ in range(2):
        with pytest.raises(KubeError, match="must be less than or equal to cpu limit"):
            await operator.passes(1)
    pool = kube.get(f"{path(namespace)}/pool").expect()
    assert pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
    for kind in ("WriteRejected", "Ready", "Stalled"):
        found = condition(pool, kind)
        assert (found["status"], found["reason"]) == ("False" if kind == "Ready" else "True", "Invalid")
        assert "must be less than or equal to cpu limit" in found["message"]
    assert kstatus(pool) == "Failed"
    events = kube.get(f"/api/v1/namespaces/{namespace}/events").expect()["items"]
    assert [(one["reason"], one["type"]) for one in events if one["involvedObject"]["name"] == "pool"] == [
        ("Invalid", "Warning")
    ]
    kube.merge(f"{path(namespace)}/pool", {"spec": {"podTemplate": None}}).expect()
    await operator.passes(1)
    pool = kube.get(f"{path(namespace)}/pool").expect()
    assert condition(pool, "WriteRejected")["status"] == condition(pool, "Stalled")["status"] == "False"
    assert kstatus(pool) == "InProgress"


async def test_a_deleted_pool_gives_up_its_finalizer(operator: Operator, kube: KubeApi, namespace: str) -> None:
    kube.create(path(namespace), BOOKIE).expect()
    await operator.passes(2)
    kube.call("DELETE", f"{path(namespace)}/pool").expect()
    await operator.passes(1)
    assert kube.get(f"{path(namespace)}/pool").status == 404
    assert await operator.passes(1) is None


async def test_a_blocked_deletion_is_undone_by_a_second_one_that_orphans(
    operator: Operator, kube: KubeApi, namespace: str
) -> None:
    made = kube.create(path(namespace), BOOKIE).expect()
    ledgers = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/managedledgers"
    kube.create(ledgers, MANAGED_LEDGER).expect()
    await operator.passes(2)
    kube.call("DELETE", f"{path(namespace)}/pool").expect()
    await operator.passes(1)
    held = kube.get(f"{path(namespace)}/pool").expect()
    assert condition(held, "Ready")["reason"] == "DeletionHeld"
    assert "--cascade=orphan" in condition(held, "Ready")["message"]
    assert kstatus(held) == "Terminating"
    kube.call("DELETE", f"{path(namespace)}/pool", {"propagationPolicy": "Orphan"}).expect()
    await operator.passes(1)
    assert kube.get(f"{path(namespace)}/pool").expect()["metadata"]["finalizers"] == ["orphan"]
    # No garbage collector runs here: do what it does.
    stateful = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie"
    before = kube.merge(stateful, {"metadata": {"ownerReferences": None}}).expect()
    kube.merge(f"{path(namespace)}/pool", {"metadata": {"finalizers": None}}).expect()
    again = kube.create(path(namespace), BOOKIE).expect()
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    await operator.passes(2)
    after = kube.get(stateful).expect()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [one["uid"] for one in after["metadata"]["ownerReferences"]] == [again["metadata"]["uid"]]
    kube.call("DELETE", f"{ledgers}/orders").expect()
