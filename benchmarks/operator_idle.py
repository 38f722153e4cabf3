"""Measures an operator with many resources that wait: first children, CPU, memory, and the way back after an outage.

    python -m benchmarks.operator_idle [POOLS LEDGERS]      default: 380 120

On an API server without nodes no pod starts, so every resource is reconciled every 15 s. Prints one JSON line. API
server, etcd and operator share the machine. More than 120 ManagedLedgers need a larger range of Service addresses.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.integration.operator.conftest import SCRIPT, with_crds
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import BOOKIE, changed
from tests.support.operator_load import RESOURCES, cpu_s, is_current, memory_peak_mb, operator, resources
from tests.support.polling import until
from tests.support.ports import free_port

NAMESPACE = "load"
TIMEOUT_S = 600.0
SETTLE_S = IDLE_S = 60.0
OUTAGE_S = 30.0
SINGLE = 10


@dataclass(frozen=True, slots=True)
class IdleResult:
    """The measurements."""

    first_child_s: float
    """Median time from the creation of a Bookie to that of its StatefulSet."""
    made_s: float
    """Time until every resource has a status of its current generation."""
    made_cpu_s: float
    idle_cpu_s: float
    """CPU time of 60 s in which nothing changes."""
    peak_mb: float
    after_outage_s: float
    """From the return of the API server, away for 30 s, to the StatefulSet of a Bookie that is created then."""


def first_child_s(api: KubeApi, name: str) -> float:
    """Create a Bookie and return how long its StatefulSet takes."""
    changes = {"metadata.name": name, "spec.metadata.endpoints": [f"{name}.etcd:2379"]}
    api.create(RESOURCES.format(NAMESPACE, "bookies"), changed(BOOKIE, changes)).expect()
    began_s = time.monotonic()
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{name}-bookie"
    until(lambda: api.get(path).ok, lambda: api.get(path).body, timeout_s=TIMEOUT_S, poll_s=0.005)
    return time.monotonic() - began_s


def all_current(api: KubeApi) -> bool:
    """Return whether all resources have a status of their current generation."""
    plurals = ("bookies", "managedledgers")
    return all(
        is_current(item)
        for plural in plurals
        for item in api.get(RESOURCES.format(NAMESPACE, plural)).expect()["items"]
    )


def measure(api: KubeApi, folder: Path, log: Path, pools: int, ledgers: int) -> IdleResult:
    """Run an operator through all phases."""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/quire-operator"
    with operator(api.kubeconfig, NAMESPACE, log) as process:
        until(lambda: api.get(lease).ok, log.read_text, timeout_s=TIMEOUT_S)
        time.sleep(5.0)
        firsts = [first_child_s(api, f"single-{number}") for number in range(SINGLE)]
        for number in range(SINGLE):
            api.call("DELETE", f"{RESOURCES.format(NAMESPACE, 'bookies')}/single-{number}").expect()
        began_s, before_s = time.monotonic(), cpu_s(process.pid)
        for plural, manifest in resources(pools, ledgers):
            api.create(RESOURCES.format(NAMESPACE, plural), manifest).expect()
        until(lambda: all_current(api), log.read_text, timeout_s=TIMEOUT_S, poll_s=1.0, process=process)
        made_s, made_cpu_s = time.monotonic() - began_s, cpu_s(process.pid) - before_s
        time.sleep(SETTLE_S)
        before_s = cpu_s(process.pid)
        time.sleep(IDLE_S)
        idle_cpu_s = cpu_s(process.pid) - before_s
        outage(folder)
        until(lambda: is_up(api), log.read_text, timeout_s=TIMEOUT_S, poll_s=0.05)
        after_s = first_child_s(api, "late")
        return IdleResult(
            statistics.median(firsts), made_s, made_cpu_s, idle_cpu_s, memory_peak_mb(process.pid), after_s
        )


def outage(folder: Path) -> None:
    """Kill the API server and start it again with the same arguments, so that its tokens stay valid."""
    pid = int((folder / "apiserver.pid").read_text())
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    os.kill(pid, signal.SIGKILL)
    time.sleep(OUTAGE_S)
    with (folder / "apiserver-again.log").open("wb") as output:
        again = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    (folder / "apiserver.pid").write_text(str(again.pid))


def is_up(api: KubeApi) -> bool:
    """Return whether the API server serves the resources."""
    try:
        return api.get(RESOURCES.format(NAMESPACE, "bookies")).ok
    except OSError:
        return False


def main() -> None:
    """Measure and print."""
    pools, ledgers = (int(word) for word in sys.argv[1:3] or ("380", "120"))
    with tempfile.TemporaryDirectory(prefix="quire-operator-idle-") as name:
        folder = Path(name) / "api"
        command = [str(SCRIPT), "start", str(folder), str(free_port()), str(free_port())]
        started = subprocess.run(command, capture_output=True, text=True, check=True)
        try:
            api = with_crds(KubeApi(Path(started.stdout.strip())))
            api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}).expect()
            found = measure(api, folder, Path(name) / "operator.log", pools, ledgers)
        finally:
            subprocess.run([str(SCRIPT), "stop", str(folder)], check=False)
    print(json.dumps({"pools": pools, "ledgers": ledgers, **asdict(found)}))


if __name__ == "__main__":
    main()
