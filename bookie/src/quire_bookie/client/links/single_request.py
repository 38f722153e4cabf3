"""Sends one V3 request to one bookie on a separate connection, secured like the others of the client. Never retries."""

import asyncio

from quire_bookie.client.security import ClientSecurity, Greeting
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.wire.messages import Response


class _Wire(asyncio.Protocol):
    """Passes the bytes of one socket to the greeting, which returns responses one at a time."""

    def __init__(self, greeting: Greeting) -> None:
        self._greeting = greeting

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._greeting.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._greeting.lost(exc)


async def ask_once(
    address: BookieAddress, request: bytes, timeout_s: float, security: ClientSecurity | None
) -> Response:
    """Return the response to `request` with any status. OSError, TimeoutError, PeerProtocolError."""
    async with asyncio.timeout(timeout_s):
        greeting = Greeting()
        wire = _Wire(greeting)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: wire, address.host, address.port)
        try:
            if security is not None:
                transport = await security.secure(transport, wire, greeting, address.host, timeout_s, generation=3)
            transport.write(request)
            return await greeting.answer()
        finally:
            transport.abort()
