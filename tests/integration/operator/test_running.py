"""The operator as a process, on a real API server: it looks after what is made, one at a time, and hands over."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import BOOKIE

pytestmark = pytest.mark.slow
TIMEOUT_S = 60
NAMELESS = """
import os, pwd

def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = getpwuid
for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
    os.environ.pop(name, None)

from quire_operator.main import main
raise SystemExit(main())
"""
"""Runs the operator as the user of its image does, whose number has no account."""


@asynccontextmanager
async def operator(
    kubeconfig: Path, namespace: str, name: str, *more: str, program: tuple[str, str] = ("-m", "quire_operator.main")
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process, killed when left."""
    words = ("run", "--kubeconfig", str(kubeconfig), "--identity", name, "--metrics-port", "0")
    images = ("--bookie-image", "quire-bookie:1", "--broker-image", "quire-broker:1")
    places = ("--namespace", namespace, "--watch-namespace", namespace)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        *words,
        *images,
        *places,
        *more,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until(kube: KubeApi, path: str, *keys: str, is_not: object = None, expected: object = None) -> Any:
    """The value at some keys of an object, once it is there, another than `is_not`, and the expected one if given."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            answer = await asyncio.to_thread(kube.get, path)
            found: Any = answer.body if answer.ok else None
            for key in keys:
                found = (found or {}).get(key)
            if found not in (None, is_not) and expected in (None, found):
                return found
            await asyncio.sleep(0.1)


async def until_gone(kube: KubeApi, path: str) -> None:
    """Until there is no such object."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if not (await asyncio.to_thread(kube.get, path)).ok:
                return
            await asyncio.sleep(0.1)


def lease(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/quire-operator"


async def test_an_operator_looks_after_a_pool_and_gives_the_lease_back(
    kubeconfig: Path, kube: KubeApi, namespace: str
) -> None:
    pools = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/bookies"
    kube.create(pools, BOOKIE).expect()
    async with operator(kubeconfig, namespace, "one") as process:
        assert await until(kube, f"{pools}/pool", "status", "observedGeneration") == 1
        assert kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/pool-bookie").ok
        assert await until(kube, lease(namespace), "spec", "holderIdentity") == "one"
        kube.merge(f"{pools}/pool", {"spec": {"replicas": 4}}).expect()
        assert await until(kube, f"{pools}/pool", "status", "observedGeneration", is_not=1) == 2
        process.terminate()
        assert await process.wait() == 0
    assert not kube.get(lease(namespace)).expect()["spec"].get("holderIdentity")


async def test_an_operator_needs_no_account_name(kubeconfig: Path, kube: KubeApi, namespace: str) -> None:
    pools = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/bookies"
    async with operator(kubeconfig, namespace, "one", program=("-c", NAMELESS)):
        kube.create(pools, BOOKIE).expect()
        assert await until(kube, f"{pools}/pool", "status", "observedGeneration") == 1


async def test_a_second_operator_waits_and_takes_over_when_the_first_ends(
    kubeconfig: Path, kube: KubeApi, namespace: str
) -> None:
    async with operator(kubeconfig, namespace, "one") as first:
        assert await until(kube, lease(namespace), "spec", "holderIdentity") == "one"
        async with operator(kubeconfig, namespace, "two"):
            first.kill()
            assert await until(kube, lease(namespace), "spec", "holderIdentity", is_not="one") == "two"


async def test_an_operator_that_lost_the_lease_takes_it_again_and_goes_on(
    kubeconfig: Path, kube: KubeApi, namespace: str
) -> None:
    pools = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/bookies"
    async with operator(kubeconfig, namespace, "one") as process:
        assert await until(kube, lease(namespace), "spec", "holderIdentity") == "one"
        kube.create(pools, BOOKIE).expect()
        assert await until(kube, f"{pools}/pool", "status", "observedGeneration") == 1
        kube.merge(lease(namespace), {"spec": {"holderIdentity": "two"}}).expect()  # and never renewed
        kube.merge(f"{pools}/pool", {"spec": {"replicas": 4}}).expect()
        assert await until(kube, lease(namespace), "spec", "holderIdentity", is_not="two") == "one"
        kube.merge(f"{pools}/pool", {"spec": {"replicas": 5}}).expect()
        await until(kube, f"{pools}/pool", "status", "observedGeneration", expected=3)
        assert process.returncode is None, "within the same process"
