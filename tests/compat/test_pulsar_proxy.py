"""A stock Pulsar proxy before our brokers, which check the token of the proxy and the rights of its client.

`scripts/peers/fetch.sh` installs the proxy once: make peers && make test ARGS="-m peers tests/compat"
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import jwt
import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.cluster_processes import running  # noqa: E402  after the check that there is a client
from tests.support.polling import until  # noqa: E402  after the check that there is a client
from tests.support.ports import free_ports  # noqa: E402  after the check that there is a client
from tests.support.standalone import StandaloneProcess  # noqa: E402  after the check that there is a client

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(600)]

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
ROOT = Path(os.environ.get("PEERS_ROOT") or CACHE / "quire" / "peers")
LIBRARIES = (ROOT / "lib-proxy", ROOT / "lib-pulsar")
"""The first one has the parts of the proxy's own version."""
LOG = Path(__file__).resolve().parents[2] / "scripts" / "peers" / "log4j2.xml"
SECRET = b"a secret of tests that is long enough for HS256"
RECEIVE_MS = 30_000
START_TIMEOUT_S = 120.0
AUTHENTICATION = {
    "authenticationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
}


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


class StockProxy:
    """Where the proxy is reached."""

    def __init__(self, port: int, http_port: int) -> None:
        self.url = f"pulsar://127.0.0.1:{port}"
        self.http = f"http://127.0.0.1:{http_port}"

    def call(self, method: str, path: str, body: Any, role: str) -> tuple[int, Any]:
        """Status and body of a request of a role."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token(role)}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.http + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()

    def is_ready(self) -> bool:
        """Whether it serves."""
        try:
            with urllib.request.urlopen(self.http + "/metrics", timeout=2) as answer:
                return bool(answer.status == 200)
        except HTTPError:
            return True
        except (URLError, OSError):
            return False


@pytest.fixture(params=["false", "true"], ids=["trusted name", "checked token"])
def proxy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StockProxy]:
    if not all(list(library.glob("pulsar-*.jar")) for library in LIBRARIES):
        pytest.skip("no stock proxy: run `make peers`")
    key = tmp_path / "secret.key"
    key.write_bytes(SECRET)
    own = tmp_path / "proxy.token"
    own.write_text(token("gate"))
    secured = AUTHENTICATION | {
        "tokenSecretKey": f"file://{key}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin,gate",
        "proxyRoles": "gate",
        "authenticateOriginalAuthData": request.param,
    }
    broker = StandaloneProcess(tmp_path, settings=tuple(f"{name}={value}" for name, value in secured.items()))
    port, http_port = free_ports(2)
    settings = AUTHENTICATION | {
        "brokerServiceURL": broker.url,
        "brokerWebServiceURL": broker.http,
        "brokerProxyAllowedTargetPorts": "*",
        "clusterName": "standalone",
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "servicePort": str(port),
        "webServicePort": str(http_port),
        "tokenSecretKey": f"file://{key}",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"file://{own}",
        "forwardAuthorizationCredentials": request.param,
    }
    file = tmp_path / "proxy.conf"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    opens = [
        word
        for name in ("java.lang", "java.nio", "jdk.internal.misc", "sun.net")
        for word in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")
    ]
    command = [
        "java",
        "-Xmx256m",
        *opens,
        f"-Dlog4j.configurationFile={LOG}",
        "-cp",
        ":".join(f"{library}/*" for library in LIBRARIES),
    ]
    command += ["org.apache.pulsar.proxy.server.ProxyServiceStarter", "--config", str(file)]
    log = tmp_path / "proxy.log"
    found = StockProxy(port, http_port)
    try:
        broker.start()
        with running(command, log) as process:
            until(found.is_ready, lambda: log.read_text()[-4000:], timeout_s=START_TIMEOUT_S, process=process)
            yield found
    finally:
        broker.close()


def test_a_client_produces_and_consumes_with_its_own_rights(proxy: StockProxy) -> None:
    for path, body in (
        ("/admin/v2/tenants/acme", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}),
        ("/admin/v2/namespaces/acme/orders", {}),
    ):
        status, found = proxy.call("PUT", path, body, "admin")
        assert status == 204, found
    granted = "/admin/v2/namespaces/acme/orders/permissions/app"
    assert proxy.call("POST", granted, ["produce", "consume"], "app")[0] == 403
    assert proxy.call("POST", granted, ["produce", "consume"], "boss")[0] == 204
    client = pulsar.Client(
        proxy.url, authentication=pulsar.AuthenticationToken(token("app")), operation_timeout_seconds=30
    )
    consumer = client.subscribe("persistent://acme/orders/t", "s")
    producer = client.create_producer("persistent://acme/orders/t")
    for number in range(500):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    assert [int(consumer.receive(RECEIVE_MS).data()) for _ in range(500)] == list(range(500))
    assert client.get_topic_partitions("persistent://acme/orders/t") == ["persistent://acme/orders/t"]
    client.close()
    stranger = pulsar.Client(
        proxy.url, authentication=pulsar.AuthenticationToken(token("stranger")), operation_timeout_seconds=5
    )
    with pytest.raises((pulsar.AuthorizationError, pulsar.Timeout)):
        stranger.create_producer("persistent://acme/orders/t")
    stranger.close()
