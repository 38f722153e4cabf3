"""The HTTP server of a broker: binds, routes, ends. What a path does is in the other modules of this package."""

import asyncio
import os
from typing import TYPE_CHECKING

from aiohttp import web

from quire_bookie.errors import StartupError
from quire_broker.admin import brokers, clusters, ledgers, namespaces, schemas, status, subscriptions, topics
from quire_broker.admin.answers import BODY_BYTES_MAX, errors_as_json
from quire_broker.admin.context import BROKER

if TYPE_CHECKING:
    from quire_broker.server.broker import RunningBroker


def make_app(broker: "RunningBroker") -> web.Application:
    """All routes, on one broker."""
    app = web.Application(middlewares=[errors_as_json], client_max_size=BODY_BYTES_MAX)
    app[BROKER] = broker
    for part in (brokers, clusters, namespaces, topics, subscriptions, schemas, ledgers, status):
        part.add_routes(app.router)
    return app


class WebServer:
    """`bind` takes the port, `serve` begins to answer."""

    def __init__(self, broker: "RunningBroker") -> None:
        self._runner = web.AppRunner(make_app(broker), access_log=None, shutdown_timeout=2.0)
        self._server: asyncio.Server | None = None

    async def bind(self, host: str, port: int) -> int:
        """Take the port and return it; StartupError when it is taken."""
        await self._runner.setup()
        factory = self._runner.server
        assert factory is not None
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(factory, host, port, start_serving=False)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StartupError(
                f"port {port} on {host} cannot be listened on: {reason}; "
                "stop the other process or choose another --http-port"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def serve(self) -> None:
        """Answer requests from now on."""
        if self._server is not None:
            await self._server.start_serving()

    async def close(self) -> None:
        """Stop listening and end the requests under way."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
