"""The examples of docs/kubernetes on a real API server: each is taken, and the operator finds nothing wrong with it."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire_operator.api.declared import DECLARED_KINDS
from quire_operator.running.handlers import RESOURCES
from tests.integration.operator.kube_api import KubeApi
from tests.integration.operator.test_running import operator, until
from tests.unit.charts.rendering import ROOT, tool

pytestmark = pytest.mark.slow
FOLDER = ROOT / "docs" / "kubernetes" / "examples"
BEFORE = {
    "managed-ledger": ("bookie",),
    "proxy": ("bookie",),
    "jobs": ("bookie",),
    "topics": ("bookie", "managed-ledger"),
}
"""Examples that others build on."""
EXAMPLES = sorted(path for path in FOLDER.glob("*.yaml") if not path.name.startswith("values-"))


def resources(path: Path) -> Iterator[dict[str, Any]]:
    """Ours of a file."""
    yield from (each for each in yaml.safe_load_all(path.read_text()) if each["kind"] in RESOURCES)


def apply(kubeconfig: Path, namespace: str, path: Path) -> None:
    """`kubectl apply` of a file, after what it builds on. AssertionError when something was refused."""
    for each in (*(FOLDER / f"{name}.yaml" for name in BEFORE.get(path.stem, ())), path):
        command = [tool("kubectl"), "--kubeconfig", str(kubeconfig), "--namespace", namespace]
        command += ["apply", "--validate=strict", "-f", str(each)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.stem))
async def test_an_example_is_applied_and_has_children(
    kubeconfig: Path, kube: KubeApi, namespace: str, path: Path
) -> None:
    apply(kubeconfig, namespace, path)
    if not list(resources(path)):
        return
    root = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}"
    async with operator(kubeconfig, namespace, "one", "--tls", "generated", "--jobs-image", "quire-jobs:test"):
        for each in resources(path):
            at = f"{root}/{RESOURCES[each['kind']]}/{each['metadata']['name']}"
            await until(kube, at, "status", "observedGeneration")
            conditions = await until(kube, at, "status", "conditions")
            wrong = [one for one in conditions if one["reason"] in ("InvalidSpec", "Refused", "CannotRun")]
            assert not wrong
            if each["kind"] in DECLARED_KINDS:
                continue
            part = "bookie" if each["kind"] == "Bookie" else "broker"
            sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{each['metadata']['name']}-{part}"
            await until(kube, sets, "metadata", "uid")
        secrets = (await asyncio.to_thread(kube.get, f"/api/v1/namespaces/{namespace}/secrets")).expect()["items"]
    made = {secret["metadata"]["name"] for secret in secrets}
    if path.stem == "own-certificates":
        assert not {"pool-bookie-tls", "scratch-bookie-tls"} & made
    else:
        assert "pool-bookie-tls" in made
