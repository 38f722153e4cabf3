"""The addresses that a broker tells clients, from the ports that it took."""

import asyncio
from typing import cast

import pytest

from quire_broker.server.connection import Connection
from quire_broker.server.ports import Ports, PortSettings


def refuse() -> Connection:
    """No client comes in these tests."""
    return cast(Connection, asyncio.Protocol())


@pytest.mark.parametrize(
    ("advertise", "host"), [("localhost", "localhost"), ("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "[2001:db8::7]")]
)
async def test_urls_name_the_advertised_host(advertise: str, host: str) -> None:
    ports = Ports(PortSettings("127.0.0.1", advertise, 0, None, 0, None))
    try:
        await ports.open(refuse, None)
        assert ports.urls.clients == f"pulsar://{host}:{ports.port}"
        assert ports.urls.web == f"http://{host}:{ports.http_port}"
    finally:
        ports.close()
