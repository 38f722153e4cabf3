"""Links within one process: a server recognizes those of its own client, and no others."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire_bookie.env.own_links import OwnLinks


class Server(asyncio.Protocol):
    """Keeps its end of the connection."""

    def __init__(self, ends: "asyncio.Queue[asyncio.BaseTransport]") -> None:
        self._ends = ends

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the end of an accepted client."""
        self._ends.put_nowait(transport)


@pytest.fixture(params=["127.0.0.1", "::1"])
async def listening(
    request: pytest.FixtureRequest,
) -> "AsyncIterator[tuple[str, int, asyncio.Queue[asyncio.BaseTransport]]]":
    """Listen on a port; yield it, and the server's end of each connection to it."""
    ends: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()
    try:
        server = await asyncio.get_running_loop().create_server(lambda: Server(ends), request.param, 0)
    except OSError as error:
        pytest.skip(f"no {request.param} on this machine: {error}")
    yield request.param, server.sockets[0].getsockname()[1], ends
    server.close()


async def test_a_server_recognizes_the_link_of_its_own_client_while_it_is_open(
    listening: "tuple[str, int, asyncio.Queue[asyncio.BaseTransport]]",
) -> None:
    host, port, ends = listening
    loop, links = asyncio.get_running_loop(), OwnLinks()
    own, _ = await loop.create_connection(asyncio.Protocol, host, port)
    noted = links.opened(own)
    ours = await ends.get()
    foreign, _ = await loop.create_connection(asyncio.Protocol, host, port)
    theirs = await ends.get()
    assert links.has(ours)
    assert not links.has(theirs)
    assert noted is not None
    links.closed(noted)
    assert not links.has(ours)
    own.close()
    foreign.close()


async def test_links_within_a_process_never_wait_for_memory() -> None:
    memory = OwnLinks().memory
    async with asyncio.timeout(5):
        await memory.reserve(1 << 40)
    assert not memory.is_full
