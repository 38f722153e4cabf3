"""One client's connection: bytes in, answers out, joined to one write per turn. Decides nothing about a request.

Answers are collected by `send`; the bookie flushes every connection that got some once per turn of the loop, so the
answers of a whole journal group leave in one write. Reading pauses for several reasons, counted apart: the client does
not take our answers, the bookie is full, too many requests are queued, one buffer brought more than a turn of the loop
takes, the memory of all connections is in use, or the connection is about to be closed. What arrived in part and what
is not sent yet is counted in the memory that all connections share (`env.connection_memory`).

START_TLS is answered here, since it is about the socket: reading stops, the answer leaves in clear, the handshake runs
on the same socket, and what is answered meanwhile waits for its end. Until the client has done what is asked of it
(authenticate, begin TLS) its requests go to the gate instead of the handler; then the gate is gone and costs nothing.
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
from quire_bookie.server.settings import BookieStats, ServiceSettings
from quire_bookie.wire import server_v3
from quire_bookie.wire.messages import AuthRequest, Request, StartTlsRequest, Status
from quire_bookie.wire.server_codec import ServerCodec

_log = logging.getLogger("quire.server.connections")

PAUSED_BY_WRITES = 1
PAUSED_BY_ADDS = 2
PAUSED_BY_REQUESTS = 4
PAUSED_BY_LOADING = 8
PAUSED_FOR_GOOD = 16
PAUSED_BY_TURN = 32
PAUSED_BY_MEMORY = 64
_OF_THE_PEER = PAUSED_BY_WRITES | PAUSED_BY_MEMORY
"""Pauses during which the silence of a peer is not ours."""
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

    def leaving(self, connection: "Connection") -> None:
        """The client sends nothing more, or is gone: answer what would wait for long."""
        ...


class OpenConnections(Collection["Connection"]):
    """The connections of one bookie, the oldest first. A set has another order in each run of the simulator."""

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
        """Take a new one."""
        self._all[connection] = None

    def closed(self, connection: "Connection") -> None:
        """Forget one that is gone."""
        self._all.pop(connection, None)
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
        "_account",
        "_address",
        "_admitted",
        "_clear",
        "_closing",
        "_codec",
        "_drained",
        "_early",
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
        """Counts its bytes: the memory of all peers, or of the links within this process."""
        self._account = self.memory.open(self)
        self._clear: asyncio.Transport | None = None
        """The socket below TLS, which has a buffer of its own."""
        self._first_timer: asyncio.TimerHandle | None = None
        self._guard = guard
        self._gate: Gate | None = None
        self._gate_timer: asyncio.TimerHandle | None = None
        self._address = ""
        self._admitted = False
        self._secure = False
        self._upgrading = False
        self._early: list[bytes] = []
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
            self._first_timer = loop.call_later(self._settings.first_request_s, self._never_asked)

    def _never_asked(self) -> None:
        """Close it only where others may need its place: clients connect ahead of their requests, and would again."""
        self._first_timer = None
        if self._guard is not None and not self._guard.is_crowded(self._address):
            self._wait_for_first_request()
            return
        self._handler.stats.connections_closed_unused += 1
        self.close_at_once(f"no request came in the first {self._settings.first_request_s:.0f} s")

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
            self._gate_timer = loop.call_later(guard.limits.unauthenticated_s, self._still_shut, guard)

    def _still_shut(self, guard: Guard) -> None:
        guard.stats.unauthenticated_timeouts += 1
        _log.info("closing the connection of %s: it has not authenticated in time", self._peer)
        self.abort()

    def _let_in(self, gate: Gate, guard: Guard) -> None:
        """The client did what was asked of it."""
        if gate.role is not None:
            guard.stats.authenticated += 1
            _log.info("%s is authenticated as %r%s", self._peer, gate.role, " over TLS" if self._secure else "")
            guard.watch(self, gate)
        self._codec.allow_frames(self._settings.frame_bytes_max)
        self._drop_gate()

    def give_way(self) -> None:
        """It has not authenticated, and its place is needed."""
        _log.info("closing the connection of %s: it has not authenticated, and a limit is reached", self._peer)
        self.abort()

    def withdraw(self) -> None:
        """What the client was let in for is not good any more."""
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
        """The socket is gone; answers that are still due go nowhere."""
        if self._transport is None:
            return  # a handshake that broke off told us already
        self._transport = self._clear = None
        self._out.clear()
        self._early.clear()
        self._codec.forget()  # this object may wait for the garbage collector, and its bytes count no more
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
        """Hand on the requests of one buffer."""
        if self._closing:
            return
        if self._upgrading:
            self._early.append(data)  # the handshake has ended, and its task does not know yet
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
        """The first bytes came: if the peer is the client of this process, it has announced its socket by now."""
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
        """Answer what comes before the gate opens; gives the rest."""
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
                self._let_in(gate, self._guard)
                return requests[at + 1 :]
        return []

    # TLS

    def _start_tls(self, request: StartTlsRequest) -> None:
        """Answer, and run the handshake beside: the answer is the last thing in clear."""
        guard, clear = self._guard, self._transport
        if guard is None or clear is None:
            return
        if self._codec.has_more_in_clear:
            # Taken later, it would pass for something that TLS had protected.
            _log.warning("closing the connection of %s: bytes in clear behind START_TLS", self._peer)
            self._handler.stats.protocol_failures += 1
            self.abort()
            return
        self.flush()
        self._upgrading = True
        self._drained.clear()  # what is made meanwhile cannot leave
        clear.pause_reading()  # the client's first bytes of TLS are not for us
        clear.write(server_v3.encode_start_tls(request.origin))
        guard.start(self._upgrade(guard, clear, request), f"TLS handshake with {self._peer}")

    async def _upgrade(self, guard: Guard, clear: asyncio.Transport, request: StartTlsRequest) -> None:
        secured: asyncio.Transport | None = None
        try:
            secured = await guard.begin_tls(clear, self)
        finally:
            self._upgrading = False
            if secured is None or self._transport is None or self._closing:
                clear.abort()
                self.connection_lost(None)  # nobody else tells us when a handshake breaks off
        if secured is None or self._transport is None:
            return
        self._codec.upgraded()
        secured.set_write_buffer_limits(high=self._settings.socket_write_high_bytes)
        self._transport, self._clear = secured, clear
        self._secure = True
        guard.stats.tls_connections_open += 1
        if not self._drained.is_set():
            self.resume_writing()  # the socket no longer tells us but the TLS layer
        if self._paused:
            secured.pause_reading()
        if self._gate is not None:
            self._gate_secured(guard, self._gate, secured, request)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)
        self.flush()

    def _gate_secured(self, guard: Guard, gate: Gate, secured: asyncio.Transport, request: StartTlsRequest) -> None:
        """Let a client in whose certificate is enough; tell one whose certificate is not, as BookKeeper's does."""
        refused = gate.secured(Peer(self._address, True, subject_of(secured.get_extra_info("peercert"))))
        if gate.is_open:
            self._let_in(gate, guard)
        elif refused is not None:
            guard.stats.authentication_failures += 1
            _log.warning("authentication of %s failed: %s", self._peer, refused.reason)
            self.unanswered += 1
            self.send((server_v3.encode_status(request.origin, Status.IO_ERROR),))

    def eof_received(self) -> bool:
        """The client sends nothing more; what it waits for may still be answered."""
        self.close_when_answered()
        return not self._secure  # TLS knows no half of a connection

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
        if not self._paused and self._can_pause:
            cast(asyncio.Transport, self._transport).pause_reading()
        self._paused |= reason

    def resume(self, reason: int) -> None:
        """Take one reason away."""
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if not self._paused and self._can_pause:
            cast(asyncio.Transport, self._transport).resume_reading()

    @property
    def _can_pause(self) -> bool:
        """While a handshake runs, what is read is not for us; whether to pause is settled at its end."""
        return self._transport is not None and not self._upgrading and not self._transport.is_closing()

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
        size_bytes = sum(map(len, buffers))
        self._out_bytes += size_bytes
        self.memory.queued(self._account, size_bytes)

    def flush(self) -> None:
        """Write everything queued at once; close if that was what remained to do."""
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
        """Close if that was asked for and nothing is due any more."""
        if self._closing and self.unanswered <= 0 and not self._out and self._transport is not None:
            self._transport.close()

    def close_when_answered(self) -> None:
        """Take no more requests; close once everything is answered."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        if self._upgrading:
            self._transport.abort()  # what is due could not be sent
            return
        self.pause(PAUSED_FOR_GOOD)
        self._handler.leaving(self)
        self.flush()

    # ---- memory: see `env.connection_memory.Holder`
    @property
    def listening(self) -> bool:
        """Whether the silence of the peer is its own."""
        return not self._paused & ~_OF_THE_PEER

    def unsent_bytes(self) -> int:
        """Return the bytes queued and those the socket has not sent."""
        if self._transport is None:
            return 0
        below = 0 if self._clear is None else self._clear.get_write_buffer_size()
        return self._out_bytes + self._transport.get_write_buffer_size() + below

    def wait_for_memory(self, waits: bool) -> None:
        """Stop reading until there is room, or go on."""
        if waits:
            self.pause(PAUSED_BY_MEMORY)
        else:
            self.resume(PAUSED_BY_MEMORY)

    def close_at_once(self, why: str) -> None:
        """Abort; without `why` nothing is logged."""
        if why:
            _log.warning("closing the connection of %s: %s", self._peer, why)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
