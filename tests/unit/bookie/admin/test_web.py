"""Health over HTTP, of a bookie in each of its states."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from quire_bookie.admin.web import BookieWeb
from quire_bookie.errors import StartupError
from quire_bookie.server.process import BookieState


async def code_of(port: int, path: str) -> tuple[int, str]:
    """Status and body of a GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.split("\r\n\r\n", 1)[1]


@pytest.fixture
async def web() -> AsyncIterator[BookieWeb]:
    found = BookieWeb()
    yield found
    await found.close()


async def test_before_the_bookie_serves_nothing_is_well(web: BookieWeb) -> None:
    port = await web.bind("127.0.0.1", 0)
    assert await code_of(port, "/healthz") == await code_of(port, "/readyz") == (503, "starting\n")
    assert await code_of(port, "/metrics") == (200, "")


@pytest.mark.parametrize(
    ("state", "health", "ready"),
    [
        (BookieState.WRITABLE, (200, "ok\n"), (200, "ok\n")),
        (BookieState.READ_ONLY, (200, "ok\n"), (503, "read-only\n")),
        (BookieState.POISONED, (503, "poisoned\n"), (503, "poisoned\n")),
        (BookieState.STOPPED, (503, "stopped\n"), (503, "stopped\n")),
    ],
)
async def test_a_read_only_bookie_is_well_but_not_ready(
    web: BookieWeb, state: BookieState, health: tuple[int, str], ready: tuple[int, str]
) -> None:
    port = await web.bind("127.0.0.1", 0)
    bookie: Any = SimpleNamespace(state=state)
    web.serve(bookie)
    assert await code_of(port, "/healthz") == health
    assert await code_of(port, "/readyz") == ready


async def test_a_port_in_use_is_one_line(web: BookieWeb) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 .* Address already in use"):
            await web.bind("127.0.0.1", port)
