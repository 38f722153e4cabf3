"""The broker's HTTP server before it knows the route of a request."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire_bookie.admin.listening import listen, port_of
from quire_broker.admin.web import WebServer, make_app
from quire_broker.security.settings import AccessSettings
from quire_broker.settings.console import ConsoleSettings
from quire_broker.settings.websocket import WebSocketSettings
from tests.support.unreadable_requests import check_refusals


async def test_an_invalid_http_request_neither_shows_nor_logs_a_token(caplog: pytest.LogCaptureFixture) -> None:
    access = AccessSettings()
    broker = cast(
        Any,
        SimpleNamespace(
            more_routes=list,
            settings=SimpleNamespace(
                access=access, console=ConsoleSettings(enabled=False), websocket=WebSocketSettings()
            ),
        ),
    )
    server = WebServer(make_app(broker), access.http)
    listening = listen("127.0.0.1", 0)
    await server.serve(listening, None)
    try:
        await check_refusals(port_of(listening), caplog)
    finally:
        await server.close()
