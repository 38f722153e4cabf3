"""HTTP between simulated hosts: the real servers and clients of aiohttp on the simulated network.

Only the places are replaced that reach for sockets: binding a port, accepting connections, resolving and connecting.
`quire_bookie.admin.bounded_http`, which bounds accepted sockets, is left out.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from aiohttp import ClientConnectorError, TCPConnector

from quire_bookie.admin.bounded_http import BoundedHttp
from quire_broker.server import ports
from tests.sim.loop import SimLoop, current_node
from tests.sim.network import SimServer


class SimListening:
    """Stands for a listening socket: bound at once, served later."""

    def __init__(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._make: Callable[[], asyncio.BaseProtocol] | None = None
        self.server: SimServer = loop.network.listen(current_node(), self._protocol, port, serving=False)

    def _protocol(self) -> asyncio.BaseProtocol:
        assert self._make is not None, "it refuses connections until it is served"
        return self._make()

    def serve(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections from now on."""
        self._make = make
        self.server.serve()

    def close(self) -> None:
        """Stop accepting."""
        self.server.close()


def _listen(host: str, port: int) -> SimListening:
    return SimListening(port)


def _port_of(listening: SimListening) -> int:
    return listening.server.port


def _serve(self: BoundedHttp, listening: SimListening, tls: object) -> None:
    listening.serve(self.make_handler)


async def _resolve(self: TCPConnector, host: str, port: int, traces: object = None) -> list[dict[str, Any]]:
    return [{"hostname": host, "host": host, "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]


async def _connect(self: TCPConnector, make: Any, *_: Any, addr_infos: Any, req: Any, **__: Any) -> Any:
    host, port = addr_infos[0][4][:2]
    try:
        return await self._loop.create_connection(make, host, port)
    except OSError as error:
        raise ClientConnectorError(req.connection_key, error) from error


def simulated_http() -> ExitStack:
    """Return a context in which brokers and clients use the simulated network for HTTP."""
    stack = ExitStack()
    for owner, name, by in (
        (ports, "listen", _listen),
        (ports, "port_of", _port_of),
        (BoundedHttp, "listen", _serve),
        (TCPConnector, "_resolve_host", _resolve),
        (TCPConnector, "_wrap_create_connection", _connect),
    ):
        stack.enter_context(mock.patch.object(owner, name, by))
    return stack
