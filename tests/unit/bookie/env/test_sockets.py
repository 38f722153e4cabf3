"""A listening socket whose connections detect a peer that has vanished."""

import asyncio
import socket

import pytest

from quire_bookie.env.sockets import notice_dead_peers
from quire_bookie.limits import KEEPALIVE_IDLE_S, KEEPALIVE_PROBES
from tests.support.bookie_world import BookieWorld, RawPeer
from tests.support.loops import LOOPS, run_on


@pytest.mark.linux
@pytest.mark.parametrize("loop", LOOPS)
def test_accepted_connections_are_probed(loop: str) -> None:
    async def go() -> tuple[int, int, int]:
        accepted: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

        class Accepted(asyncio.Protocol):
            """Passes on its socket."""

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                """Record the socket."""
                accepted.set_result(transport.get_extra_info("socket"))

        server = await asyncio.get_running_loop().create_server(Accepted, "127.0.0.1", 0)
        for each in server.sockets:
            notice_dead_peers(each)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        found = await accepted
        options = (
            found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        )
        writer.close()
        server.close()
        return options

    assert run_on(loop, go()) == (1, KEEPALIVE_IDLE_S, KEEPALIVE_PROBES)


async def test_a_bookie_probes_its_clients() -> None:
    world = BookieWorld()
    running = await world.start()
    peer = await RawPeer.connect(running.port)
    await asyncio.sleep(0)
    (listening,) = running._parts.server.sockets  # type: ignore[union-attr]
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    await peer.close()
    await world.stop()
