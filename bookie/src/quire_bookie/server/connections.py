"""One client's connection: bytes in, answers out, joined to one write per turn. Decides nothing about a request.

Answers are collected by `send`; the bookie flushes every connection that got some once per turn of the loop, so the
answers of a whole journal group leave in one write. Reading pauses for one of three reasons, counted apart: the client
does not take our answers, the bookie is full, or too many reads are queued.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol, cast

from quire_bookie.model import Buffer
from quire_bookie.server.settings import BookieStats, ServiceSettings
from quire_bookie.wire.messages import Request
from quire_bookie.wire.server_codec import ServerCodec

_log = logging.getLogger("quire.server.connections")

PAUSED_BY_WRITES = 1
PAUSED_BY_ADDS = 2
PAUSED_BY_READS = 4


class RequestHandler(Protocol):
    """Whoever answers requests."""

    stats: BookieStats

    def handle(self, connection: "Connection", requests: list[Request]) -> None:
        """Answer each request sooner or later by `connection.send`, once."""
        ...

    def flush_soon(self, connection: "Connection") -> None:
        """Call `connection.flush` at the end of this turn of the loop."""
        ...


class OpenConnections(set["Connection"]):
    """The connections of one bookie."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def closed(self, connection: "Connection") -> None:
        """One is gone."""
        self.discard(connection)
        self._changed.set()

    async def wait_until_none(self) -> None:
        """Until all are gone."""
        while self:
            self._changed.clear()
            await self._changed.wait()


class Connection(asyncio.Protocol):
    """The protocol object of one socket."""

    __slots__ = (
        "__weakref__",
        "_closing",
        "_codec",
        "_handler",
        "_open",
        "_out",
        "_paused",
        "_peer",
        "_settings",
        "_transport",
        "unanswered",
    )

    def __init__(self, handler: RequestHandler, open_connections: OpenConnections, settings: ServiceSettings) -> None:
        self._handler = handler
        self._open = open_connections
        self._settings = settings
        self._codec = ServerCodec(settings.frame_bytes_max)
        self._out: list[Buffer] = []
        self._paused = 0
        self._closing = False
        self._peer = ""
        self._transport: asyncio.Transport | None = None
        self.unanswered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        transport.set_write_buffer_limits(high=self._settings.socket_write_high_bytes)
        self._transport = transport
        self._peer = str(transport.get_extra_info("peername"))
        self._open.add(self)
        self._handler.stats.connections_opened += 1
        self._handler.stats.connections_open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone; answers that are still due go nowhere."""
        self._transport = None
        self._out.clear()
        self._open.closed(self)
        self._handler.stats.connections_open -= 1

    def data_received(self, data: bytes) -> None:
        """Hand on the requests of one buffer."""
        if self._closing:
            return
        requests = self._codec.feed(data)
        if requests:
            self._handler.handle(self, requests)
        if self._codec.failure is not None:
            _log.info("closing the connection of %s: %s", self._peer, self._codec.failure)
            self._handler.stats.protocol_failures += 1
            self.close_when_answered()

    def eof_received(self) -> bool:
        """The client sends nothing more; what it waits for may still be answered."""
        self.close_when_answered()
        return True

    def pause_writing(self) -> None:
        """The client does not take its answers: take no more of its requests."""
        self.pause(PAUSED_BY_WRITES)

    def resume_writing(self) -> None:
        """The client reads again."""
        self.resume(PAUSED_BY_WRITES)

    def pause(self, reason: int) -> None:
        """Stop reading from the socket until every reason is gone."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= reason

    def resume(self, reason: int) -> None:
        """Take one reason away."""
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, buffers: Iterable[Buffer], answers: int = 1) -> None:
        """Queue the bytes of `answers` answers for the next flush."""
        self.unanswered -= answers
        if self._transport is None:
            return
        if not self._out:
            self._handler.flush_soon(self)
        self._out.extend(buffers)

    def flush(self) -> None:
        """Write everything queued at once; close if that was what remained to do."""
        if self._transport is None:
            return
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()
        if self._closing and self.unanswered <= 0:
            self._transport.close()

    def close_when_answered(self) -> None:
        """Take no more requests; close once everything is answered."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        self.pause(PAUSED_BY_READS)
        self.flush()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
