"""A server's WebSocket whose client receives the reason when it sends too large a text.

aiohttp closes the connection as soon as it notices the size. Bytes that the client is still sending would then make the
operating system reset the connection, and the client would not see the close frame. So this socket keeps reading, and
drops what it reads, until the client closes, sends nothing for a while, or time is up.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, web

from quire_broker.limits import CLOSE_FLUSH_S, CLOSE_SILENT_S

TOO_BIG: Final = WSCloseCode.MESSAGE_TOO_BIG


class TextSocket(web.WebSocketResponse):
    """`receive` returns an ERROR for too large a text; then `close` with the code `TOO_BIG` and the reason."""

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        """Close it. Without a reason `TOO_BIG` changes nothing: `receive` calls it so, and the session closes."""
        if code != TOO_BIG:
            return await super().close(code=code, message=message, drain=drain)
        if not message or self.closed:
            return False
        transport = None if self._req is None else self._req.transport
        try:
            await self.send_frame(TOO_BIG.to_bytes(2, "big") + message, WSMsgType.CLOSE)
            if transport is not None:
                await _drop_input(transport)
        except (ConnectionError, RuntimeError):
            pass  # the client is gone
        if transport is not None:
            transport.close()
        return await super().close(code=code, message=message, drain=drain)


class _Dropping(asyncio.Protocol):
    """Drops what arrives. Forwards all other events to the protocol in whose place it is."""

    def __init__(self, own: asyncio.BaseProtocol) -> None:
        self._own = own
        self.ended = asyncio.Event()
        self.on_data: Callable[[], None] = lambda: None

    def data_received(self, data: bytes) -> None:
        """Drop it."""
        self.on_data()

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end."""
        self.ended.set()
        self._own.connection_lost(error)

    def pause_writing(self) -> None:
        """Forward it."""
        self._own.pause_writing()

    def resume_writing(self) -> None:
        """Forward it."""
        self._own.resume_writing()


async def _drop_input(transport: asyncio.Transport) -> None:
    """Drop the client's bytes until it closes, is silent for `CLOSE_SILENT_S`, or `CLOSE_FLUSH_S` have passed."""
    if transport.is_closing():
        return
    own = transport.get_protocol()
    dropping = _Dropping(own)
    transport.set_protocol(dropping)
    transport.resume_reading()
    try:
        async with asyncio.timeout(CLOSE_FLUSH_S), asyncio.timeout(CLOSE_SILENT_S) as silence:
            loop = asyncio.get_running_loop()
            dropping.on_data = lambda: silence.reschedule(loop.time() + CLOSE_SILENT_S)
            await dropping.ended.wait()
    except TimeoutError:
        pass
    finally:
        dropping.on_data = lambda: None
        if not dropping.ended.is_set():
            transport.set_protocol(own)
