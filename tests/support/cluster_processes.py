"""`quire broker start` and `quire autorecovery` as processes on an etcd and its bookies."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.etcd_cluster import EtcdCluster
from tests.support.polling import until
from tests.support.ports import free_ports

START_TIMEOUT_S = 90.0
_QUIRE = ["-c", "from quire_bookie.cli.main import main; main()"]


@contextmanager
def running(command: list[str], log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that writes to a log; killed when left."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def auto_recovery(cluster: EtcdCluster, **settings: str) -> Iterator[None]:
    """`quire autorecovery`; `settings` by their keys."""
    command = [sys.executable, *_QUIRE, "autorecovery", "--metadata", f"etcd://{cluster.etcd.endpoint}", "--name", "ar"]
    with running(command + _set(settings), cluster.folder / "our-autorecovery.log"):
        yield


@dataclass(frozen=True)
class ClusterBroker:
    """Where a running broker is reached."""

    url: str
    http: str


@contextmanager
def cluster_broker(
    cluster: EtcdCluster, *, ports: tuple[int, int] | None = None, python: str = sys.executable, **settings: str
) -> Iterator[ClusterBroker]:
    """`quire broker start`, healthy; `settings` by their keys. `ports`: Pulsar's and HTTP's; default: free ones."""
    port, http_port = ports or free_ports(2)
    command = [python, *_QUIRE, "broker", "start", "--metadata", f"etcd://{cluster.etcd.endpoint}"]
    command += ["--advertise", "127.0.0.1", "--broker-port", str(port), "--http-port", str(http_port)]
    log = cluster.folder / "broker.log"
    with running(command + _set(settings), log) as process:
        broker = ClusterBroker(f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{http_port}")
        until(
            lambda: _is_healthy(broker),
            lambda: f"the broker did not start:\n{log.read_text()[-4000:]}",
            timeout_s=START_TIMEOUT_S,
            process=process,
        )
        yield broker


def _set(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def _is_healthy(broker: ClusterBroker) -> bool:
    try:
        with urllib.request.urlopen(f"{broker.http}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
