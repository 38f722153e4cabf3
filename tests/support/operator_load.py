"""Measures how long one operator takes for many resources on an API server without nodes."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import BOOKIE, MANAGED_LEDGER, changed
from tests.support.polling import until

RESOURCES = "/apis/quire.dev/v1alpha1/namespaces/{}/{}"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The measurements."""

    made_s: float
    """Time from the operator's start until every resource has its children and a status of its current generation."""
    peak_mb: float
    """Peak memory of the operator."""
    cpu_s: float
    """CPU time of the operator until then."""


def resources(pools: int, ledgers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield pools, each a separate cluster, and ManagedLedgers spread over them."""
    for number in range(pools):
        endpoints = [f"etcd-{number}.etcd:2379"]
        yield (
            "bookies",
            changed(BOOKIE, {"metadata.name": f"pool-{number}", "spec.metadata.endpoints": endpoints}),
        )
    for number in range(ledgers):
        yield (
            "managedledgers",
            changed(
                MANAGED_LEDGER,
                {
                    "metadata.name": f"orders-{number}",
                    "spec.namespace": f"shop/orders-{number}",
                    "spec.bookieRef.name": f"pool-{number % pools}",
                    "spec.topics": [{"name": "placed", "partitions": 4, "cursors": [{"name": "billing"}]}],
                },
            ),
        )


@contextmanager
def operator(kubeconfig: Path, namespace: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the operator's process, stopped at the end."""
    words = ("run", "--kubeconfig", str(kubeconfig), "--identity", "load", "--metrics-port", "0")
    images = ("--bookie-image", "quire-bookie:1", "--broker-image", "quire-broker:1")
    places = ("--namespace", namespace, "--watch-namespace", namespace)
    command = [sys.executable, "-m", "quire_operator.main", *words, *images, *places]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def is_current(item: dict[str, Any]) -> bool:
    """Return whether the status is of the current generation."""
    return bool(item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"])


def lacking(api: KubeApi, namespace: str, pools: int, ledgers: int) -> int:
    """Return the number of resources that are not current plus the number of missing children."""
    found = 0
    for plural in ("bookies", "managedledgers"):
        items = api.get(RESOURCES.format(namespace, plural)).expect()["items"]
        found += sum(not is_current(item) for item in items)
    wanted = {"statefulsets": pools + ledgers, "deployments": pools}
    for plural, count in wanted.items():
        found += count - len(api.get(f"/apis/apps/v1/namespaces/{namespace}/{plural}").expect()["items"])
    services = api.get(f"/api/v1/namespaces/{namespace}/services").expect()["items"]
    return found + pools + 2 * ledgers - len(services)


def memory_peak_mb(pid: int) -> float:
    """Return VmHWM of a process."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def cpu_s(pid: int) -> float:
    """Return the user and system time of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def run(api: KubeApi, namespace: str, log: Path, *, pools: int, ledgers: int, timeout_s: float) -> LoadResult:
    """Declare everything, start an operator, wait. AssertionError after `timeout_s`."""
    for plural, manifest in resources(pools, ledgers):
        api.create(RESOURCES.format(namespace, plural), manifest).expect()
    with operator(api.kubeconfig, namespace, log) as process:
        began_s = time.monotonic()
        until(
            lambda: not lacking(api, namespace, pools, ledgers),
            lambda: f"{lacking(api, namespace, pools, ledgers)} are missing:\n{log.read_text()[-4000:]}",
            timeout_s=timeout_s,
            poll_s=0.5,
            process=process,
        )
        made_s = time.monotonic() - began_s
        return LoadResult(made_s, memory_peak_mb(process.pid), cpu_s(process.pid))
