"""What `helm test` runs in the cluster, run here against HTTP servers."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.support.ports import free_port
from tests.unit.charts.rendering import CHART, CLEAR, objects


@contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    """The URL of a server with one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(**environment: str) -> "subprocess.CompletedProcess[str]":
    script = (CHART / "files" / "check.py").read_text()
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, env={"PATIENCE_S": "0", **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def test_all_is_well() -> None:
    with serving(200, b"ok\n") as operator, serving(200, b'{"health":"true","reason":""}') as etcd:
        done = run(OPERATOR=operator, ETCD=etcd)
    assert (done.returncode, done.stdout.count("is healthy")) == (0, 2)


@pytest.mark.parametrize("body", [b'{"health":"false","reason":"RAFT NO LEADER"}', b"no json"])
def test_an_etcd_that_is_not_healthy_is_said(body: bytes) -> None:
    with serving(200, body) as etcd:
        done = run(ETCD=etcd)
    assert done.returncode == 1 and done.stderr.startswith("etcd: ")


def test_an_operator_that_is_not_ready_or_away_is_said() -> None:
    with serving(503, b"the API server has not answered yet") as operator:
        assert "503" in run(OPERATOR=operator).stderr
    assert run(OPERATOR=f"http://127.0.0.1:{free_port()}").returncode == 1


def test_the_hook_runs_this_script_with_the_certificate_only_where_etcd_has_tls() -> None:
    for values, scheme in (({}, "https"), (CLEAR, "http")):
        pod = objects(values)["Pod/quire-test"]
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        (container,) = pod["spec"]["containers"]
        assert container["args"][0].strip() == (CHART / "files" / "check.py").read_text().strip()
        given = {each["name"]: each["value"] for each in container["env"]}
        assert given["ETCD"] == f"{scheme}://quire-etcd.quire.svc:2379/health"
        assert ("ETCD_CERTIFICATES" in given) == ("volumes" in pod["spec"]) == (scheme == "https")
