"""The addresses that a broker publishes, from the ports that it listens on."""

import pytest

from quire_broker.server.ports import Ports, PortSettings


@pytest.mark.parametrize(
    ("advertise", "host"), [("localhost", "localhost"), ("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "[2001:db8::7]")]
)
async def test_urls_name_the_advertised_host(advertise: str, host: str) -> None:
    ports = Ports(PortSettings("127.0.0.1", advertise, 0, None, 0, None))
    try:
        await ports.open(None)
        assert ports.urls.clients == f"pulsar://{host}:{ports.port}"
        assert ports.urls.web == f"http://{host}:{ports.http_port}"
    finally:
        ports.close()
