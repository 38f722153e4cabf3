"""A real API server without nodes, with our CRDs installed, and a fresh namespace for each test.

`QUIRE_E2E_KUBECONFIG` names another one (a token in it); `KUBECONFIG` is not looked at, because a developer's usual
cluster is no place for tests. Without the tools the tests are skipped: `scripts/k8s/build.sh kube-apiserver` makes
them once, in some minutes.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from quire_operator.api import crds
from tests.integration.operator.kube_api import KubeApi
from tests.support.polling import until
from tests.support.ports import free_port

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "k8s" / "apiserver.sh"
TOOL_MISSING = 3
ESTABLISHED_TIMEOUT_S = 30
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a running API server."""
    given = os.environ.get("QUIRE_E2E_KUBECONFIG")
    if given:
        yield Path(given)
        return
    with api_server(tmp_path_factory.mktemp("apiserver")) as found:
        yield found


@contextmanager
def api_server(folder: Path, *, controllers: bool = False) -> Iterator[Path]:
    """The kubeconfig of a server of its own; with Kubernetes' controllers if asked for. Skips without the tools."""
    command = [str(SCRIPT), "start", str(folder), str(free_port()), str(free_port())]
    environment = os.environ | ({"CONTROLLERS": "1"} if controllers else {})
    started = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, env=environment)
    if started.returncode == TOOL_MISSING:
        pytest.skip(started.stderr.strip())
    assert started.returncode == 0, started.stderr
    try:
        yield Path(started.stdout.strip())
    finally:
        subprocess.run([str(SCRIPT), "stop", str(folder)], timeout=30, check=False)


@pytest.fixture(scope="session")
def kube(kubeconfig: Path) -> KubeApi:
    """A client of it, with our CRDs established."""
    return with_crds(KubeApi(kubeconfig))


def with_crds(api: KubeApi) -> KubeApi:
    """The same, once our CRDs are installed and served."""
    for text in crds.files(crds.FOLDER).values():
        manifest = yaml.safe_load(text)
        name = manifest["metadata"]["name"]
        api.apply(f"{CRD_PATH}/{name}", manifest).expect()
        _wait_until_established(api, name)
    return api


def _wait_until_established(api: KubeApi, name: str) -> None:
    """Served is later than established by a moment: ask for the collection itself."""
    plural = name.partition(".")[0]
    until(
        lambda: api.get(f"/apis/quire.dev/v1alpha1/{plural}").ok,
        lambda: api.get(f"{CRD_PATH}/{name}").body.get("status"),
        timeout_s=ESTABLISHED_TIMEOUT_S,
    )


@pytest.fixture
def namespace(kube: KubeApi) -> str:
    """A namespace of the test's own. It stays: nothing collects namespaces here."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    kube.create("/api/v1/namespaces", {"metadata": {"name": name}}).expect()
    return name
