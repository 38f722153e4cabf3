"""`quire proxy` as a process of its own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.support.broker_cluster import http_call
from tests.support.cluster_processes import running
from tests.support.polling import until
from tests.support.ports import free_ports

START_TIMEOUT_S = 60.0
_QUIRE = [sys.executable, "-c", "from quire_bookie.cli.main import main; main()"]


@dataclass(frozen=True)
class ProxyProcess:
    """Where a running proxy is reached, and its process."""

    port: int
    http: str
    process: Any
    log: Path

    @property
    def url(self) -> str:
        """For clients."""
        return f"pulsar://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and JSON (or text) of a request."""
        return http_call(method, self.http + path, body, headers)

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        lines = str(self.call("GET", "/metrics")[1]).splitlines()
        return next(float(line.split()[1]) for line in lines if line.split(" ")[0] == name)


@contextmanager
def proxy_process(folder: Path, **settings: str) -> Iterator[ProxyProcess]:
    """`quire proxy`, ready; `settings` by their keys. Every port of brokers is permitted unless they say otherwise."""
    port, http_port = free_ports(2)
    chosen = {"brokerProxyAllowedTargetPorts": "*", "advertisedAddress": "127.0.0.1", "bindAddress": "127.0.0.1"}
    words = [f"{key}={value}" for key, value in (chosen | settings).items()]
    command = [*_QUIRE, "proxy", "--port", str(port), "--http-port", str(http_port)]
    log = folder / "proxy.log"
    with running(command + [part for word in words for part in ("--set", word)], log) as process:
        proxy = ProxyProcess(port, f"http://127.0.0.1:{http_port}", process, log)
        until(
            lambda: _is_ready(proxy),
            lambda: f"the proxy did not start:\n{log.read_text()[-4000:]}",
            timeout_s=START_TIMEOUT_S,
            process=process,
        )
        yield proxy


def _is_ready(proxy: ProxyProcess) -> bool:
    try:
        return proxy.call("GET", "/readyz")[0] == 200
    except (URLError, OSError):
        return False
