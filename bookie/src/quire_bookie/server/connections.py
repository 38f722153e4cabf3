"""One client's connection: bytes in, answers out, joined to one write per turn. Decides nothing about a request.

Answers are collected by `send`; the bookie flushes every connection that got some once per turn of the loop, so the
answers of a whole journal group leave in one write. Reading pauses for one of three reasons, counted apart: the client
does not take our answers, the bookie is full, or too many reads are queued.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol, cast

from quire_bookie.model import Buffer
from quire_bookie.server.settings import BookieStats, ServiceSettings
from quire_bookie.wire.messages import Request
from quire_bookie.wire.server_codec import ServerCodec

_log = logging.getLogger("quire.server.connections")

PAUSED_BY_WRITES = 1
PAUSED_BY_ADDS = 2
PAUSED_BY_READS = 4
_JOIN_BYTES_MAX = 64 * 1024
"""Larger answers go out as they are where the transport can: no copy of entries that were read."""


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
        "_drained",
        "_handler",
        "_open",
        "_out",
        "_out_bytes",
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
        self._out_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
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
        self._drained.set()
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
        self._drained.clear()
        self.pause(PAUSED_BY_WRITES)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._drained.set()
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

    @property
    def is_gone(self) -> bool:
        """Nobody is there to take an answer."""
        return self._transport is None

    @property
    def takes_answers(self) -> bool:
        """Whether answers leave about as fast as they are made. While not: make no large ones."""
        return self._drained.is_set() and self._out_bytes < self._settings.socket_write_high_bytes

    async def wait_to_take_answers(self) -> None:
        """Until `takes_answers`, or until the connection is gone."""
        while not (self.takes_answers or self.is_gone):
            if self._drained.is_set():
                await asyncio.sleep(0)  # the flush of this turn of the loop is due
            else:
                await self._drained.wait()

    def send(self, buffers: Sequence[Buffer], answers: int = 1) -> None:
        """Queue the bytes of `answers` answers for the next flush."""
        self.unanswered -= answers
        if self._transport is None:
            return
        if not self._out:
            self._handler.flush_soon(self)
        self._out.extend(buffers)
        self._out_bytes += sum(map(len, buffers))

    def flush(self) -> None:
        """Write everything queued at once; close if that was what remained to do."""
        if self._transport is None:
            return
        if self._out:
            out, self._out = self._out, []
            if self._out_bytes > _JOIN_BYTES_MAX:
                self._transport.writelines(out)
            else:
                self._transport.write(b"".join(out))
            self._out_bytes = 0
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
