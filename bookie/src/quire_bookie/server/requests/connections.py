"""Owns one client's connection: decodes requests, and writes responses once per loop iteration. Decides nothing about a
request.

`send` collects responses; the bookie flushes each connection that got some once per loop iteration, so the responses of
a whole journal group leave in one write. Reading pauses for several reasons, tracked separately: the client does not
read its responses, the bookie is full, too many requests are queued, one buffer brought more than a loop iteration
handles, the memory of all connections is in use, or the connection is about to be closed. Incomplete frames and unsent
responses count towards the memory that all connections share (`env.connection_memory`).

START_TLS is answered here, since it concerns the socket: reading stops, the response leaves in plaintext, the handshake
runs on the same socket, and other responses wait for its end. Until the client has authenticated and begun TLS as
required, its requests go to the gate instead of the handler; afterwards the gate is removed and costs nothing.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol, cast

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.own_links import OwnLinks
from quire_bookie.model import Buffer
from quire_bookie.server.security.auth import Peer, subject_of
from quire_bookie.server.security.gate import Gate
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire import server_v3
from quire_bookie.wire.messages import AuthRequest, Request, StartTlsRequest, Status
from quire_bookie.wire.server_codec import ServerCodec

_log = logging.getLogger("quire.server.connections")

PAUSED_BY_WRITES = 1
PAUSED_BY_ADDS = 2
PAUSED_BY_REQUESTS = 4
PAUSED_BY_LOADING = 8
PAUSED_UNTIL_CLOSED = 16
PAUSED_BY_TURN = 32
PAUSED_BY_MEMORY = 64
_CAUSED_BY_PEER = PAUSED_BY_WRITES | PAUSED_BY_MEMORY
"""Pauses caused by the peer itself; any other pause excuses its silence."""
_JOIN_BYTES_MAX = 64 * 1024
"""Larger responses are written as separate buffers, so that entries are not copied."""


class RequestHandler(Protocol):
    """Answers requests."""

    stats: BookieStats

    def handle(self, connection: "Connection", requests: list[Request]) -> None:
        """Answer each request eventually by `connection.send`, exactly once."""
        ...

    def flush_soon(self, connection: "Connection") -> None:
        """Call `connection.flush` at the end of this loop iteration."""
        ...

    def leaving(self, connection: "Connection") -> None:
        """Answer its long polls: the client sends nothing more, or is gone."""
        ...


class OpenConnections(Collection["Connection"]):
    """Tracks the connections of one bookie, the oldest first. Not a set: its order differs between simulator runs."""

    def __init__(self) -> None:
        self._all: dict[Connection, None] = {}
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator["Connection"]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, connection: object) -> bool:
        return connection in self._all

    def add(self, connection: "Connection") -> None:
        """Add a new connection."""
        self._all[connection] = None

    def closed(self, connection: "Connection") -> None:
        """Remove a closed connection."""
        self._all.pop(connection, None)
        self._changed.set()

    async def wait_until_none(self) -> None:
        """Wait until all connections are closed."""
        while self:
            self._changed.clear()
            await self._changed.wait()


class Connection(asyncio.Protocol):
    """Handles one socket as an asyncio protocol."""

    __slots__ = (
        "__weakref__",
        "_account",
        "_address",
        "_admitted",
        "_closing",
        "_codec",
        "_drained",
        "_first_timer",
        "_gate",
        "_gate_timer",
        "_guard",
        "_handler",
        "_open",
        "_out",
        "_out_bytes",
        "_own_links",
        "_paused",
        "_peer",
        "_refusal_logged",
        "_secure",
        "_settings",
        "_transport",
        "_upgrading",
        "memory",
        "unanswered",
    )

    def __init__(
        self,
        handler: RequestHandler,
        open_connections: OpenConnections,
        settings: ServiceSettings,
        guard: Guard | None = None,
        memory: ConnectionMemory | None = None,
        own_links: OwnLinks | None = None,
    ) -> None:
        self._handler = handler
        self._own_links = own_links
        self.memory = memory or ConnectionMemory()
        """The budget that counts its bytes: that of all peers, or of the links within this process."""
        self._account = self.memory.open(self)
        self._first_timer: asyncio.TimerHandle | None = None
        self._guard = guard
        self._gate: Gate | None = None
        self._gate_timer: asyncio.TimerHandle | None = None
        self._address = ""
        self._admitted = False
        self._secure = False
        self._upgrading = False
        self._open = open_connections
        self._settings = settings
        self._codec = ServerCodec(settings.frame_bytes_max, batches=True)
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._paused = 0
        self._closing = False
        self._peer = ""
        self._refusal_logged = False
        self._transport: asyncio.Transport | None = None
        self.unanswered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        if self._upgrading:
            self._secured(transport)
            return
        transport.set_write_buffer_limits(high=self._settings.socket_write_high_bytes)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self._peer = str(name)
        self._address = str(name[0]) if isinstance(name, tuple) else self._peer
        self._open.add(self)
        self._handler.stats.connections_opened += 1
        self._handler.stats.connections_open += 1
        self._wait_for_first_request()
        if self._guard is not None:
            self._enter(self._guard)

    def _wait_for_first_request(self) -> None:
        if self._settings.first_request_s > 0:
            loop = asyncio.get_running_loop()
            self._first_timer = loop.call_later(self._settings.first_request_s, self._no_first_request)

    def _no_first_request(self) -> None:
        """Close only if other clients may need the place: clients connect before they have requests, and reconnect."""
        self._first_timer = None
        if self._guard is not None and not self._guard.is_crowded(self._address):
            self._wait_for_first_request()
            return
        self._handler.stats.connections_closed_unused += 1
        self.close_at_once(f"no request arrived in the first {self._settings.first_request_s:.0f} s")

    def _drop_first_timer(self) -> None:
        if self._first_timer is not None:
            self._first_timer.cancel()
            self._first_timer = None

    def _enter(self, guard: Guard) -> None:
        self._admitted = guard.admits(self._address)
        if not self._admitted:
            self.abort()
            return
        self._codec.takes_start_tls = guard.offers_tls
        self._gate = guard.gate(Peer(self._address))
        if self._gate is None:
            return
        guard.unproven.add(self, self._address)
        self._codec.allow_frames(min(guard.limits.unauthenticated_frame_bytes_max, self._settings.frame_bytes_max))
        if guard.limits.unauthenticated_s > 0:
            loop = asyncio.get_running_loop()
            self._gate_timer = loop.call_later(guard.limits.unauthenticated_s, self._not_authenticated, guard)

    def _not_authenticated(self, guard: Guard) -> None:
        guard.stats.unauthenticated_timeouts += 1
        _log.info("closing the connection of %s: it has not authenticated in time", self._peer)
        self.abort()

    def _admit(self, gate: Gate, guard: Guard) -> None:
        """Open the connection to requests: the client has authenticated and uses TLS, as required."""
        if gate.role is not None:
            guard.stats.authenticated += 1
            _log.info("%s is authenticated as %r%s", self._peer, gate.role, " over TLS" if self._secure else "")
            guard.watch(self, gate)
        self._codec.allow_frames(self._settings.frame_bytes_max)
        self._drop_gate()

    def give_way(self) -> None:
        """Close: the client has not authenticated, and a limit of connections is reached."""
        _log.info("closing the connection of %s: it has not authenticated, and a limit is reached", self._peer)
        self.abort()

    def withdraw(self) -> None:
        """Close: the token with which the client authenticated is no longer valid."""
        _log.warning("closing the connection of %s: its token was withdrawn", self._peer)
        self.abort()

    def _drop_gate(self) -> None:
        self._gate = None
        if self._guard is not None:
            self._guard.unproven.discard(self)
        if self._gate_timer is not None:
            self._gate_timer.cancel()
            self._gate_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything: the socket is closed, and pending responses are dropped."""
        self._transport = None
        self._out.clear()
        self._codec.forget()  # this object may outlive its memory account until it is garbage-collected
        self._drop_gate()
        self._drop_first_timer()
        self.memory.close(self._account)
        if self._guard is not None and self._admitted:
            self._guard.left(self._address)
            self._guard.unwatch(self)
            self._guard.stats.tls_connections_open -= self._secure
        self._drained.set()
        self._open.closed(self)
        self._handler.leaving(self)
        self._handler.stats.connections_open -= 1

    def data_received(self, data: bytes) -> None:
        """Decode one buffer and pass its requests on."""
        if self._closing:
            return
        if self._own_links is not None:
            self._settle_memory(self._own_links)
        codec, account = self._codec, self._account
        requests = codec.feed(data)
        held_bytes = codec.held_bytes
        if held_bytes or account.held_bytes:
            began = bool(requests) or not account.held_bytes
            self.memory.received(account, held_bytes, codec.announced_bytes if held_bytes else 0, began)
        self._take(requests)
        self.memory.wait_if_full(account)

    def _settle_memory(self, own_links: OwnLinks) -> None:
        """Choose the memory budget at the first bytes: a client in this process has announced its socket by now."""
        self._own_links = None
        if self._transport is not None and own_links.has(self._transport):
            self.memory.close(self._account)
            self.memory = own_links.memory
            self._account = self.memory.open(self)

    def _take(self, requests: list[Request]) -> None:
        if self._gate is not None:
            requests = self._pass_gate(self._gate, requests)
        if requests:
            if self._first_timer is not None:
                self._drop_first_timer()
            self._handler.handle(self, requests)
        if self._codec.start_tls is not None and not self._closing:
            self._start_tls(self._codec.start_tls)
        if self._codec.failure is not None and not self._closing:
            _log.info("closing the connection of %s: %s", self._peer, self._codec.failure)
            self._handler.stats.protocol_failures += 1
            self.close_when_answered()

    def _pass_gate(self, gate: Gate, requests: list[Request]) -> list[Request]:
        """Answer the requests before the gate opens; return the rest."""
        assert self._guard is not None
        stats = self._guard.stats
        for at, request in enumerate(requests):
            verdict = gate.answer(request)
            if verdict.answer:
                self.unanswered += 1
                self.send((verdict.answer,))
            if verdict.refused:
                stats.authentication_failures += 1
                if not self._refusal_logged:  # a client that may try again must not fill the log
                    self._refusal_logged = True
                    _log.warning("authentication of %s failed: %s", self._peer, verdict.refused)
            elif not isinstance(request, AuthRequest):
                stats.requests_unauthorized += 1
            if verdict.close:
                self.close_when_answered()
                return []
            if gate.is_open:
                self._admit(gate, self._guard)
                return requests[at + 1 :]
        return []

    # TLS

    def _start_tls(self, request: StartTlsRequest) -> None:
        """Answer, then run the handshake in the background: the response is the last plaintext."""
        guard, plain = self._guard, self._transport
        if guard is None or plain is None:
            return
        if self._codec.has_more_plaintext:
            # If it were handled later, it would count as protected by TLS.
            _log.warning("closing the connection of %s: plaintext after START_TLS", self._peer)
            self._handler.stats.protocol_failures += 1
            self.abort()
            return
        self.flush()
        self._upgrading = True
        self._drained.clear()  # responses cannot leave during the handshake
        plain.pause_reading()  # the client's first TLS bytes are for the TLS layer
        plain.write(server_v3.encode_start_tls(request.origin))
        guard.start(self._upgrade(guard, plain), f"TLS handshake with {self._peer}")

    async def _upgrade(self, guard: Guard, plain: asyncio.Transport) -> None:
        try:
            await guard.begin_tls(plain, self, self._handshake_failed)
        except BaseException:
            plain.abort()
            raise

    def _handshake_failed(self) -> None:
        self.connection_lost(None)  # the socket now calls the TLS layer instead of this object

    def _secured(self, secured: asyncio.Transport) -> None:
        """Continue over TLS: the handshake has ended."""
        guard, request = self._guard, self._codec.start_tls
        assert guard is not None and request is not None
        self._upgrading = False
        self._codec.upgraded()
        secured.set_write_buffer_limits(high=self._settings.socket_write_high_bytes)
        self._transport = secured
        self._secure = True
        guard.stats.tls_connections_open += 1
        self.resume_writing()  # the TLS layer has nothing to send yet
        if self._paused:
            secured.pause_reading()
        if self._gate is not None:
            self._gate_secured(guard, self._gate, secured, request)
        self.flush()

    def _gate_secured(self, guard: Guard, gate: Gate, secured: asyncio.Transport, request: StartTlsRequest) -> None:
        """Admit a client whose certificate suffices; answer one whose certificate is refused, as BookKeeper does."""
        refused = gate.secured(Peer(self._address, True, subject_of(secured.get_extra_info("peercert"))))
        if gate.is_open:
            self._admit(gate, guard)
        elif refused is not None:
            guard.stats.authentication_failures += 1
            _log.warning("authentication of %s failed: %s", self._peer, refused.reason)
            self.unanswered += 1
            self.send((server_v3.encode_status(request.origin, Status.IO_ERROR),))

    def eof_received(self) -> bool:
        """Close once everything is answered: the client sends nothing more, but may still read."""
        self.close_when_answered()
        return not self._secure  # TLS has no half-closed connections

    def pause_writing(self) -> None:
        """Stop reading requests: the client does not read its responses."""
        self._drained.clear()
        self.pause(PAUSED_BY_WRITES)

    def resume_writing(self) -> None:
        """Continue reading requests: the client reads its responses again."""
        self._drained.set()
        self.resume(PAUSED_BY_WRITES)

    def pause(self, reason: int) -> None:
        """Stop reading from the socket until every reason is gone."""
        if not self._paused and self._can_pause:
            cast(asyncio.Transport, self._transport).pause_reading()
        self._paused |= reason

    def resume(self, reason: int) -> None:
        """Remove one reason; continue reading if it was the last."""
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if not self._paused and self._can_pause:
            cast(asyncio.Transport, self._transport).resume_reading()

    @property
    def _can_pause(self) -> bool:
        """Whether reading can be paused and resumed now. A handshake reads the socket: pauses apply after it."""
        return self._transport is not None and not self._upgrading and not self._transport.is_closing()

    @property
    def client(self) -> str:
        """The host of the client."""
        return self._address

    @property
    def is_gone(self) -> bool:
        """Whether the connection is closed, so that no response can be sent."""
        return self._transport is None

    @property
    def takes_answers(self) -> bool:
        """Whether responses leave about as fast as they are produced. If not, produce no large ones."""
        return self._drained.is_set() and self._out_bytes < self._settings.socket_write_high_bytes

    async def wait_to_take_answers(self) -> None:
        """Wait until `takes_answers`, or until the connection is closed."""
        while not (self.takes_answers or self.is_gone):
            if self._drained.is_set():
                await asyncio.sleep(0)  # the flush of this loop iteration is due
            else:
                await self._drained.wait()

    def send(self, buffers: Sequence[Buffer], answers: int = 1) -> None:
        """Queue the bytes of `answers` responses for the next flush."""
        self.unanswered -= answers
        assert self.unanswered >= 0, "each request is answered once"
        if self._transport is None:
            return
        if not self._out:
            self._handler.flush_soon(self)
        self._out.extend(buffers)
        size_bytes = sum(map(len, buffers))
        self._out_bytes += size_bytes
        self.memory.queued(self._account, size_bytes)

    def flush(self) -> None:
        """Write all queued bytes at once; close if the connection only waited for that."""
        if self._transport is None or self._upgrading:
            return
        if self._out:
            out, self._out = self._out, []
            if self._out_bytes > _JOIN_BYTES_MAX:
                self._transport.writelines(out)
            else:
                self._transport.write(b"".join(out))
            self._out_bytes = 0
            self.memory.settle(self._account, self.unsent_bytes())
        self.close_if_answered()

    def close_if_answered(self) -> None:
        """Close if `close_when_answered` was called and no response is pending."""
        if self._closing and self.unanswered <= 0 and not self._out and self._transport is not None:
            self._transport.close()

    def close_when_answered(self) -> None:
        """Take no more requests; close once everything is answered."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        if self._upgrading:
            self._transport.abort()  # pending responses cannot be sent during a handshake
            return
        self.pause(PAUSED_UNTIL_CLOSED)
        self._handler.leaving(self)
        self.flush()

    # ---- memory: see `env.connection_account.Holder`
    @property
    def listening(self) -> bool:
        """Whether the peer itself causes its silence, rather than a pause of reading."""
        return not self._paused & ~_CAUSED_BY_PEER

    def unsent_bytes(self) -> int:
        """Return the bytes queued and those the socket has not sent."""
        if self._transport is None:
            return 0
        return self._out_bytes + self._transport.get_write_buffer_size()

    def wait_for_memory(self, waits: bool) -> None:
        """Stop reading until memory is free, or continue."""
        if waits:
            self.pause(PAUSED_BY_MEMORY)
        else:
            self.resume(PAUSED_BY_MEMORY)

    def close_at_once(self, why: str) -> None:
        """Abort; log `why` unless it is empty."""
        if why:
            _log.warning("closing the connection of %s: %s", self._peer, why)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
