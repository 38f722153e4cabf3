"""What watches change for an operator: hands on children, requests of a quiet pass, many resources at once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from quire_operator.cluster.applied import Applied
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.reconcile import reconcile_bookie, reconcile_managed_ledger
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import BOOKIE, MANAGED_LEDGER
from tests.support.operator_load import operator, run

pytestmark = pytest.mark.slow
SOON_S = 30.0
READS_MAX = 4


async def until(what: str, found: Callable[[], bool]) -> None:
    """Once a question is answered with yes; `what` is in the traceback of one that is not."""
    async with asyncio.timeout(SOON_S):
        while True:
            if await asyncio.to_thread(found):
                return
            await asyncio.sleep(0.05)


def grace_s(kube: KubeApi, stateful: str) -> int:
    """How long pods of a StatefulSet have to stop."""
    found: int = kube.get(stateful).expect()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    return found


async def test_children_that_hands_changed_or_took_away_are_put_back(
    kubeconfig: Path, kube: KubeApi, namespace: str, tmp_path: Path
) -> None:
    resources = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}"
    kube.create(f"{resources}/bookies", BOOKIE).expect()
    kube.create(f"{resources}/managedledgers", MANAGED_LEDGER).expect()
    config = f"/api/v1/namespaces/{namespace}/configmaps/pool-autorecovery"
    service = f"/api/v1/namespaces/{namespace}/services/pool-bookie"
    stateful = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie"
    with operator(kubeconfig, namespace, tmp_path / "operator.log"):
        await until("both are made", lambda: all(kube.get(path).ok for path in (config, service, stateful)))
        before, uid = kube.get(config).expect()["data"], kube.get(service).expect()["metadata"]["uid"]
        kube.merge(config, {"data": {"quire.toml": "x"}}).expect()
        kube.call("DELETE", service).expect()
        kube.merge(stateful, {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}).expect()
        await until("the file is back", lambda: kube.get(config).expect()["data"] == before)
        await until("the Service is back", lambda: kube.get(service).body["metadata"].get("uid", uid) != uid)
        await until("the pods have their time", lambda: grace_s(kube, stateful) > 1)


async def test_a_pass_without_changes_writes_nothing_and_reads_little(
    kubeconfig: Path, kube: KubeApi, namespace: str
) -> None:
    resources = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}"
    pool = kube.create(f"{resources}/bookies", BOOKIE).expect()
    ledger = kube.create(f"{resources}/managedledgers", MANAGED_LEDGER).expect()
    known = Resources(
        {"Bookie": {(namespace, "pool"): [pool]}, "ManagedLedger": {(namespace, "orders"): [ledger]}},
    )
    memory = Memory(Applied(watched=True), known)
    async with await Kube.open(str(kubeconfig)) as client, aiohttp.ClientSession() as session:

        async def both() -> tuple[int, int]:
            before = client.requests
            await reconcile_bookie(
                client, BookieHttp(session), namespace, "pool", default_image="i", now_s=1.0, memory=memory
            )
            between = client.requests
            await reconcile_managed_ledger(
                client, BrokerRest(session), namespace, "orders", default_image="i", now_s=1.0, memory=memory
            )
            return between - before, client.requests - between

        for _ in range(3):
            await both()
        versions = [kube.get(f"{resources}/bookies").body, kube.get(f"{resources}/managedledgers").body]
        of_bookie, of_ledger = await both()
        assert 0 < of_bookie <= READS_MAX
        assert 0 < of_ledger <= READS_MAX
        after = [kube.get(f"{resources}/bookies").body, kube.get(f"{resources}/managedledgers").body]
        assert [one["items"] for one in after] == [one["items"] for one in versions]


async def test_many_resources_come_up_in_bounded_memory(kube: KubeApi, namespace: str, tmp_path: Path) -> None:
    """A small form of benchmarks/operator_load.py."""
    found = await asyncio.to_thread(run, kube, namespace, tmp_path / "log", pools=4, ledgers=16, timeout_s=120)
    print(found)
    assert found.peak_mb < 200
