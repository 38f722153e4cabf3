"""A real cluster, and one stack under load on it that scenarios share as long as it stays healthy.

`make e2e` creates the cluster and the images and runs the tests (docs/kubernetes/testing.md). Without make, set
`QUIRE_E2E_KUBECONFIG` to a cluster that has the images; `KUBECONFIG` is ignored, so that tests never run on a
developer's usual cluster. `QUIRE_E2E_KEEP=1` keeps everything at the end.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e import bucket, evidence, manifests, release
from tests.e2e.kube import Cluster
from tests.e2e.stack import Stack

NAMESPACE_PREFIX = "quire-e2e-"
FIRST = ("test_chaos.py", "test_etcd_members.py", "test_volumes.py")
"""Their stacks are their own; the other scenarios share one from then on."""
LAST = ("test_jobs.py",)
"""They move messages to a bucket."""
BOUNDED_STORAGE: manifests.Manifest = {
    "journal": {"size": "1Gi", "storageClassName": "bounded"},
    "ledgers": {"size": "3Gi", "storageClassName": "bounded"},
    "reclaimPolicy": "Delete",
}
"""Volumes that hold no more than their size, so that a test can fill one."""
BOUNDED_BOOKIES = 4
READY_S = 120
SCENARIO_TIMEOUT_S = 900
SHELL = "quire-shell"
FOLDER = Path(os.environ.get("QUIRE_E2E_EVIDENCE", "e2e-failures"))

stacks: list[Stack] = []
_report: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests as end-to-end with long timeouts, and order the files."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(SCENARIO_TIMEOUT_S))
    items.sort(key=lambda item: (item.path.name not in FIRST, item.path.name in LAST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the evidence of a failure, and give the next scenario a new stack."""
    report: pytest.TestReport = yield
    if report.failed and Path(__file__).parent in item.path.parents and stacks:
        folder = FOLDER / re.sub(r"\W+", "-", item.name)
        evidence.collect(folder, stacks[-1].cluster)
        report.sections.append(("evidence", f"logs, events and resources are in {folder}"))
        stacks[-1].broken = True
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the measurements."""
    if _report:
        terminalreporter.section("measured")
        for line in _report:
            terminalreporter.write_line(line)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, float, str], None]:
    """Return a function that prints a measurement at the end of the run: name, value, unit."""

    def note(what: str, value: float, unit: str = "s") -> None:
        _report.append(f"{request.node.name}: {what}: {value:.1f} {unit}")

    return note


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """A reachable cluster."""
    given = os.environ.get("QUIRE_E2E_KUBECONFIG")
    if not given:
        pytest.skip("QUIRE_E2E_KUBECONFIG is not set: `make e2e` creates a cluster and runs these tests")
    if not Path(given).exists():
        pytest.skip(f"{given} does not exist: `make e2e` creates a cluster")
    found = Cluster(Path(given))
    try:
        found.api.text("/readyz")
    except OSError as error:
        pytest.skip(f"the cluster of {given} does not respond ({error}): you may need scripts/k8s/in_net.sh")
    for tool in ("helm", "kubectl"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not in PATH; `make e2e` builds it")
    for left in found.items("v1", "Namespace"):
        if left["metadata"]["name"].startswith(NAMESPACE_PREFIX):
            discard(found.within(left["metadata"]["name"]))
    return found


@pytest.fixture
def stack(cluster: Cluster) -> Iterator[Stack]:
    """The chart, three bookies, a ManagedLedger and a load, all healthy. Recreated after a failed scenario."""
    yield _shared(Stack(_place(cluster), replicas=3))


@pytest.fixture
def bounded(cluster: Cluster) -> Iterator[Stack]:
    """A stack of four bookies on volumes that hold no more than their size and can grow, and three members of etcd."""
    if not stacks and not _has_class(cluster, BOUNDED_STORAGE["ledgers"]["storageClassName"]):
        pytest.skip("the cluster has no storage class `bounded`, as scripts/k8s/up.sh makes it")
    storage = {"storage": BOUNDED_STORAGE}
    yield _shared(Stack(_place(cluster), BOUNDED_BOOKIES, etcd_members=3, pool_spec=storage))


def _place(cluster: Cluster) -> Cluster:
    return cluster.within(f"{NAMESPACE_PREFIX}{os.getpid()}-{len(stacks) + 1}")


def _has_class(cluster: Cluster, name: str) -> bool:
    return cluster.api.get(f"/apis/storage.k8s.io/v1/storageclasses/{name}").ok


def _shared(wanted: Stack) -> Stack:
    """Return the last stack if it is like the wanted one and no scenario failed on it; otherwise create the wanted."""
    if not stacks or stacks[-1].broken or stacks[-1].pool_spec != wanted.pool_spec:
        if stacks:
            discard(stacks[-1].cluster)
        stacks.append(wanted)
        wanted.create()
    found = stacks[-1]
    found.wait_until_well(READY_S)
    found.longest_pause_s()
    return found


@pytest.fixture
def shell(stack: Stack) -> Iterator[Callable[..., str]]:
    """Return a function that runs `quire` in the documented pod, with the bucket's keys, and returns its output."""
    kubectl, example = release.kubectl, str(manifests.EXAMPLES / "shell.yaml")
    kubectl(stack.cluster, "apply", "-f", example)
    stack.wait_for_pods(f"app.kubernetes.io/name={SHELL}", 1, 120)
    settings = {"SSL_CERT_FILE": "/etc/quire/tls/ca.crt"} | bucket.access(stack.where)
    environment = [f"{name}={value}" for name, value in settings.items()]
    yield lambda *words: kubectl(stack.cluster, "exec", SHELL, "--", "env", *environment, "quire", *words)
    stack.cluster.delete("v1", "Pod", SHELL, grace_s=0)


@pytest.fixture(scope="session", autouse=True)
def _cleared(cluster: Cluster) -> Iterator[None]:
    """Leave only the resource definitions on the cluster."""
    yield
    if stacks and not os.environ.get("QUIRE_E2E_KEEP"):
        discard(stacks[-1].cluster)


def discard(cluster: Cluster) -> None:
    """Delete the resources while an operator can remove their finalizers, then the release and the namespace.

    Does not wait for the end of the namespace.
    """
    for kind in ("ManagedLedger", "Bookie"):
        for found in cluster.items(manifests.API_VERSION, kind) if _is_served(cluster) else []:
            name = found["metadata"]["name"]
            cluster.delete(manifests.API_VERSION, kind, name)
            deadline_s = time.monotonic() + 15
            while cluster.get(manifests.API_VERSION, kind, name) and time.monotonic() < deadline_s:
                time.sleep(0.5)
            if cluster.get(manifests.API_VERSION, kind, name):
                cluster.merge(manifests.API_VERSION, kind, name, {"metadata": {"finalizers": []}})
    release.uninstall(cluster)
    cluster.delete("v1", "Namespace", cluster.namespace)


def _is_served(cluster: Cluster) -> bool:
    return cluster.api.get("/apis/quire.dev/v1alpha1/bookies").ok
