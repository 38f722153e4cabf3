"""`kubectl quire` against a real API server: resources as the operator writes them, pods behind its proxy.

No node runs here. The pods are objects whose address is this machine's own, where a small server answers as a bookie.
"""

import json
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from quire_operator.kubectl.main import main
from tests.integration.operator.kube_api import KubeApi
from tests.support.kube_resources import bookie, managed_ledger, of_orders
from tests.support.own_address import own_address

pytestmark = pytest.mark.slow
LABELS = {"app.kubernetes.io/managed-by": "quire-operator", "app.kubernetes.io/part-of": "quire"}
MERGE = "application/merge-patch+json"
LEDGER = {
    "ledgerId": 7,
    "state": "CLOSED",
    "ensembleSize": 3,
    "writeQuorum": 3,
    "ackQuorum": 2,
    "entries": 10,
    "length": 4096,
    "segments": [{"firstEntry": 0, "ensemble": ["a", "b", "c"]}],
    "custom": {"pulsar/managed-ledger": "t/n/persistent/x"},
}
INTERNAL = {
    "state": "LedgerOpened",
    "lastConfirmedEntry": "7:9",
    "cursors": {"sub": {"markDeletePosition": "7:3", "readPosition": "7:4"}},
}
STATS = {"subscriptions": {"sub": {"type": "Shared", "msgBacklog": 6, "unackedMessages": 0, "consumers": []}}}


class FakeProcess(ThreadingHTTPServer):
    """Answers as a bookie, and as a broker, at every pod's address."""

    def __init__(self, address: str) -> None:
        super().__init__((address, 0), _Handler)
        self.drains: dict[str, dict[str, Any]] = {}
        self.looks = 0
        self.own_host_only = False
        """As a process without tokens, which is asked by no name that it does not know."""
        self.token = ""
        """Of a role that may ask; empty: every client may."""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON."""
        plain = path.partition("?")[0]
        if plain.startswith("/api/v1/quire/drains/"):
            name = plain.rpartition("/")[2]
            if method == "PUT":
                self.drains[name] = {"wish": body["wish"], "state": "copying", "ledgers_left": 2, "ledgers_first": 2}
            elif method == "DELETE":
                self.drains[name] = {"wish": "cancel", "state": "cancelling"}
            else:
                self.looks += 1
                self.drains[name]["ledgers_left"] -= 1
                if self.drains[name]["ledgers_left"] == 0:
                    self.drains[name]["state"] = "emptied"
            return 200, self.drains[name]
        answers: dict[str, Any] = {
            "/api/v1/bookie/state": {"running": True, "readOnly": True, "readOnlyReasons": ["disk"], "inLimbo": False},
            "/api/v1/autorecovery/list_under_replicated_ledger": {"7": ["b"]},
            "/api/v1/quire/unrecoverable": [],
            "/api/v1/bookie/list_bookies": {"a": None, "c": None},
            "/admin/quire/ledgers": {"ledgers": [LEDGER], "next": None},
            "/admin/quire/ledgers/7": LEDGER,
            "/admin/v2/persistent/t/n/x/internalStats": INTERNAL,
            "/admin/v2/persistent/t/n/x/stats": STATS,
        }
        return (200, answers[plain]) if plain in answers else (404, {"reason": f"{plain}: not found"})


class _Handler(BaseHTTPRequestHandler):
    server: FakeProcess

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        own = f"{self.server.server_address[0]!s}:{self.server.server_port}"
        wanted = f"Bearer {self.server.token}" if self.server.token else None
        if wanted is not None and self.headers.get("Quire-Authorization") != wanted:
            status, answer = 401, {"reason": "show a token"}
        elif self.server.own_host_only and self.headers.get("Host") != own:
            status, answer = 403, {"reason": "this port is not asked by that name: see httpServerAllowedHosts"}
        else:
            status, answer = self.server.answer(self.command, self.path, body)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def process() -> Iterator[FakeProcess]:
    server = FakeProcess(own_address())  # the proxy of the API server refuses loopback
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def a_pod(kube: KubeApi, namespace: str, name: str, part: str, server: FakeProcess) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    labels = LABELS | {"app.kubernetes.io/name": f"quire-{part}", "app.kubernetes.io/instance": "pool"}
    container = {
        "name": "quire",
        "image": "quire-bookie:test",
        "env": [{"name": "SOME_PASSWORD", "value": "sesame42"}],
        "ports": [{"name": "http", "containerPort": server.server_port}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}},
    }
    kube.create(path, {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}).expect()
    address = str(server.server_address[0])
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    kube.call("PATCH", f"{path}/{name}/status", {"status": status}, content_type=MERGE).expect()


@pytest.fixture
def pool(kube: KubeApi, namespace: str, process: FakeProcess) -> FakeProcess:
    """A pool and a namespace of topics with their pods."""
    path = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}"
    kube.create(f"{path}/bookies", bookie() | {"metadata": {"name": "pool"}}).expect()
    kube.create(f"{path}/managedledgers", managed_ledger() | {"metadata": {"name": "orders"}}).expect()
    now = "2026-01-01T00:00:00Z"
    lacking = {
        "type": "FullyReplicated", "status": "False", "reason": "Lacking", "message": "1 ledger lacks a replica",
        "lastTransitionTime": now,
    }  # fmt: skip
    status = {
        "observedGeneration": 1,
        "phase": "Running",
        "ready": 1,
        "writable": 0,
        "underReplicated": {"count": 1},
        "bookies": [{"id": "a", "pod": "pool-bookie-0", "state": "ReadOnly", "reason": "disk"}],
        "conditions": [lacking],
    }
    kube.call("PATCH", f"{path}/bookies/pool/status", {"status": status}, content_type=MERGE).expect()
    a_pod(kube, namespace, "pool-bookie-0", "bookie", process)
    a_pod(kube, namespace, "orders-broker-0", "broker", process)
    return process


@pytest.fixture
def command(kube: KubeApi, namespace: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `kubectl quire`: exit code, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--kubeconfig", str(kube.kubeconfig), "-n", namespace])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_status_shows_pools_bookies_and_what_is_wrong(pool: FakeProcess, command: Any) -> None:
    code, out, _ = command("status")
    assert code == 0
    assert "pool-bookie-0" in out and "ReadOnly" in out and "orders" in out
    assert "FullyReplicated is False (Lacking): 1 ledger lacks a replica" in out
    rows = json.loads(command("status", "-o", "json")[1])
    assert rows["bookies"][0]["status"]["underReplicated"]["count"] == 1
    assert [one["severity"] for one in rows["managedLedgers"][0]["findings"]] == ["unknown"]


def test_declared_objects_are_counted_and_explained(
    pool: FakeProcess, kube: KubeApi, namespace: str, command: Any
) -> None:
    path = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/topics"
    for name, ready in (("placed", "True"), ("audit", "False")):
        kube.create(path, of_orders("Topic", name)).expect()
        condition = {"type": "Ready", "status": ready, "reason": "NotAdopted", "message": "it has 4 partitions"}
        conditions = [condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
        kube.merge(f"{path}/{name}/status", {"status": {"conditions": conditions}}).expect()
    code, out, _ = command("status")
    assert code == 0
    assert re.search(r"^Topic +2 +1 +0$", out, re.MULTILINE), out
    assert f"{namespace}/audit: Ready is False (NotAdopted): it has 4 partitions" in out
    assert len(json.loads(command("status", "-o", "json")[1])["declared"]) == 2
    code, out, _ = command("explain", "topic/audit")
    assert code == 0 and "it has 4 partitions" in out


def test_an_empty_namespace_is_no_error(command: Any) -> None:
    code, out, _ = command("status")
    assert code == 0 and "no Bookie or ManagedLedger" in out
    code, _, err = command("under-replicated")
    assert code == 1 and "no Quire pod" in err


def test_a_drain_is_requested_followed_and_cancelled(
    pool: FakeProcess, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = command("drain", "pool-bookie-0", "--no-wait")
    assert code == 0 and "2 of 2 ledgers left" in out and pool.drains["a"]["wish"] == "drain"
    code, out, err = command("drain", "a")
    assert code == 0 and "2 of 2 ledgers left" in err and "1 of 2 ledgers left" in err
    assert "all ledgers of bookie a were copied" in out and pool.looks == 2
    code, out, _ = command("undrain", "pool-bookie-0")
    assert code == 0 and pool.drains["a"]["wish"] == "cancel"
    code, _, err = command("drain", "pool-bookie-9")
    assert code == 1 and "known bookies: pool-bookie-0 (a)" in err


def test_ledgers_and_cursors_are_listed(pool: FakeProcess, command: Any) -> None:
    assert "7        b" in command("under-replicated")[1]
    out = command("ledgers")[1]
    assert "3/3/2" in out and "4.0 KiB" in out and "a, b, c" in out
    code, out, _ = command("cursors", "persistent://t/n/x")
    assert code == 0 and "last position 7:9" in out and "7:3" in out and "Shared" in out
    code, _, err = command("cursors", "t/n/missing")
    assert code == 1 and "HTTP 404" in err
    assert "persistent://tenant/namespace/topic" in command("cursors", "x")[2]


def test_each_kind_of_thing_is_explained(pool: FakeProcess, command: Any) -> None:
    _, out, _ = command("explain", "pool-bookie-0")
    assert "its bookie is read-only: disk" in out
    _, out, _ = command("explain", "bookie/pool")
    assert "1 ledger lacks a replica" in out and "-> auto-recovery copies them" in out
    _, out, _ = command("explain", "7")
    assert "its replica on b is marked" in out and "b not registered; 2 of its bookies are" in out
    _, out, _ = command("explain", "persistent://t/n/x")
    assert "subscription sub has a backlog of 6 and no consumer" in out
    code, _, err = command("explain", "nothing")
    assert code == 1 and "nothing not found" in err


def test_jobs_are_shown_and_asked_for(kube: KubeApi, namespace: str, command: Any) -> None:
    path = f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/managedledgers/orders"
    code, out, _ = command("jobs")
    assert code == 0 and "declare them in spec.offload, spec.analytics and spec.jobs" in out
    assert "job offload not found" in command("job", "run", "offload")[2]
    kube.create(path.rpartition("/")[0], managed_ledger() | {"metadata": {"name": "orders"}}).expect()
    row = {
        "name": "offload",
        "kind": "offload",
        "state": "Failed",
        "reason": "no such bucket",
        "runId": "orders-offload-20260131t0400",
        "slot": "2026-01-31T04:00:00Z",
        "since": "2026-01-31T03:00:00Z",
        "outputs": ["s3://quire"],
    }
    kube.call("PATCH", f"{path}/status", {"status": {"jobs": [row]}}, content_type=MERGE).expect()
    code, out, _ = command("jobs", "orders")
    assert code == 0 and "orders-offload-20260131t0400   no such bucket" in out
    assert "orders/offload wrote s3://quire" in out
    assert json.loads(command("jobs", "-o", "json")[1])[0]["state"] == "Failed"
    assert "ManagedLedger other not found" in command("jobs", "other")[2]
    code, out, _ = command("job", "run", "orders/offload")
    assert code == 0 and "a run of 20" in out
    wish = kube.get(path).expect()["metadata"]["annotations"]["quire.dev/run-job"]
    assert wish.startswith("offload@20") and wish.endswith("Z")
    code, _, err = command("job", "logs", "offload")
    assert code == 1 and "no pod of a run of offload; it is Failed: no such bucket" in err
    assert "declared jobs: orders/offload" in command("job", "logs", "keys")[2]


def test_a_report_holds_what_helps_and_nothing_secret(
    pool: FakeProcess, kube: KubeApi, namespace: str, command: Any, tmp_path: Path
) -> None:
    secret = {"metadata": {"name": "etcd-client", "labels": LABELS}, "stringData": {"tls.key": "sesame42"}}
    kube.create(f"/api/v1/namespaces/{namespace}/secrets", secret).expect()
    settings = {
        "metadata": {"name": "pool-bookie", "labels": LABELS},
        "data": {"quire.toml": 'p_password = "sesame42"'},
    }
    kube.create(f"/api/v1/namespaces/{namespace}/configmaps", settings).expect()
    file = tmp_path / "report.tar.gz"
    code, _, err = command("report", "--to", str(file))
    assert code == 0 and "1 x Bookie" in err
    with tarfile.open(file) as tar:
        texts = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}  # type: ignore[union-attr]
    assert not any("sesame42" in text for text in texts.values())
    assert not any("secret/" in name for name in texts)
    for name in ("bookie/pool", "managedledger/orders", "pod/pool-bookie-0", "configmap/pool-bookie"):
        assert f"quire-report/{name}.json" in texts
    assert "readOnly" in texts["quire-report/bookies/pool-bookie-0/state.json"]


def test_a_cluster_that_cannot_be_reached_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--kubeconfig", str(tmp_path / "missing")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("kubectl quire: no access to a cluster") and err.count("\n") == 1


def test_the_token_of_the_environment_reaches_the_pods_through_the_api_server(
    pool: FakeProcess, command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool.token = "of-a-role"
    code, _, error = command("explain", "7")
    assert code == 1 and "401" in error
    (tmp_path / "token").write_text("of-a-role\n")
    for given in ("of-a-role", f"file://{tmp_path}/token"):
        monkeypatch.setenv("QUIRE_TOKEN", given)
        code, shown, error = command("explain", "7")
        assert code == 0, error
        assert "ledger 7" in shown
    monkeypatch.setenv("QUIRE_TOKEN", f"file://{tmp_path}/none")
    code, _, error = command("explain", "7")
    assert code == 1 and "cannot be read" in error


def test_a_pod_that_does_not_know_the_name_of_the_api_server_is_asked_by_its_address(
    pool: FakeProcess, command: Any
) -> None:
    pool.own_host_only = True
    code, shown, error = command("explain", "7")
    assert code == 0, error
    assert "ledger 7" in shown
    assert command("drain", "pool-bookie-0", "--no-wait")[0] == 0
    assert pool.drains["a"]["wish"] == "drain"
