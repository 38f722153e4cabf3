"""Owns one TCP connection: passes frames to the session, sends bytes, keeps it alive, decides when to stop reading.

Reading stops for six independent reasons: too many unanswered publishes of this connection, the common
publish budget, a client that does not read its answers, the memory that all connections share
(`quire_bookie.env.connection_memory`), a rate of publishing, and a receiver of the frames that is full (`hold`). It
resumes when none of them applies. While that memory is full, nothing is dispatched either. While a rate is exceeded,
the frames of the last buffer wait.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.env.tls import common_name
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_broker import limits
from quire_broker.server.budget import PublishBudget
from quire_broker.wire import commands
from quire_broker.wire.frames import Frame, FrameDecoder

log = logging.getLogger("quire.broker.connection")


class Handler(Protocol):
    """Receives the frames of a connection: a session."""

    def handle(self, frame: Frame) -> None:
        """Handle one frame, in order. PeerProtocolError closes the connection."""
        ...

    def last_bytes(self, error: PeerProtocolError) -> bytes:
        """Return the last bytes for a peer that violates the protocol, before the connection is closed."""
        ...

    def lost(self) -> None:
        """Called when the connection is gone."""
        ...


# Reasons not to read, as bits of a plain int: checked once per message, where an enum's flags cost ten times as much.
_PENDING, _BUDGET, _WRITES, _MEMORY, _RATE, _RECEIVER = 1, 2, 4, 8, 16, 32
_COPIED_BYTES = 4096
"""Buffers that are smaller on average are copied into one before they are written."""
_OF_THE_PEER = _WRITES | _MEMORY
"""While only these reasons apply, the peer causes its own silence."""


class Connection(asyncio.Protocol):
    """The transport side of a session."""

    def __init__(
        self,
        budget: PublishBudget,
        frame_bytes_max: int,
        keep_alive_s: float,
        pending_max: int,
        make_handler: "Callable[[Connection], Handler]",
        memory: ConnectionMemory | None = None,
        slow: SlowLog | None = None,
    ) -> None:
        self._slow = slow
        self._unread_since_s = 0.0
        self._held_since_s: float | None = None
        """When a rate of publishing stopped the frames, if one does."""
        self._memory = memory or ConnectionMemory()
        self._account = self._memory.open(self)
        self._socket: asyncio.Transport | None = None
        """The transport until it is lost, even after we have closed it."""
        self._budget = budget
        self._decoder = FrameDecoder(frame_bytes_max)
        self._keep_alive_s = keep_alive_s
        self._pending_max = pending_max
        self._make_handler = make_handler
        self._handler: Handler
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received_at = self._loop.time()
        self._paused = 0
        self._unsent = 0
        self._pending = 0
        self._pending_bytes = 0
        self._alive_checks: list[asyncio.Future[bool]] = []
        self._when_writable: list[Callable[[], None]] = []
        self._waits_for_memory = False
        self._joined: list[Buffer] = []
        """What `write_joined` got in this turn of the loop, and its bytes; it precedes everything written later."""
        self._joined_bytes = 0
        self._flush_is_due = False
        self._frames: deque[Frame] = deque()
        """Frames of received buffers that are not handled yet."""
        self._throttled = False
        """Whether a rate of publishing is exceeded."""
        self._rate_ready: Callable[[], float] = float
        """Returns the loop time from which more may be published."""
        self._rate_timer: asyncio.TimerHandle | None = None
        self.peer = self.address = "unknown"
        self.listener: str | None = None
        """The listener whose addresses the client uses: "" for the default ones, None if it is not known."""
        self.bytes_in = 0

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open, and the TLS handshake is done: a probe that only connects does not get beyond
        `__init__`, and asyncio does not report its end."""
        transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        self._transport = self._socket = transport
        transport.set_write_buffer_limits(high=limits.SOCKET_WRITE_HIGH_BYTES, low=limits.SOCKET_WRITE_LOW_BYTES)
        address = transport.get_extra_info("peername")
        if address:
            self.peer, self.address = f"/{address[0]}:{address[1]}", str(address[0])
        self._timer = self._loop.call_later(self._keep_alive_s, self._check_alive)
        self._handler = self._make_handler(self)

    def data_received(self, data: bytes) -> None:
        """Split frames and pass them on; a peer that violates the protocol gets the reason and is disconnected."""
        self._received_at = self._loop.time()
        self.bytes_in += len(data)
        if self._alive_checks:
            self._end_alive_checks(True)
        decoder, account = self._decoder, self._account
        try:
            frames = decoder.feed(data)
            held_bytes = decoder.held_bytes
            if held_bytes or account.held_bytes:
                began = bool(frames) or not account.held_bytes
                self._memory.received(account, held_bytes, decoder.announced_bytes if held_bytes else 0, began)
            self._memory.wait_if_full(account)
            self._frames += frames
            self._handle_frames()
        except PeerProtocolError as error:
            self._violated(error)

    def _handle_frames(self) -> None:
        frames, handle = self._frames, self._handler.handle
        while frames and self._transport is not None and not self._throttled:
            handle(frames.popleft())

    def _violated(self, error: PeerProtocolError) -> None:
        log.warning("%s is disconnected: %s", self.peer, error)
        self.write(self._handler.last_bytes(error))
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket was closed, by either side."""
        self._transport = self._socket = None
        self._decoder.forget()  # this object may wait for the garbage collector, but its bytes no longer count
        self._memory.close(self._account)
        self._frames.clear()
        self._take_joined()
        for timer in (self._timer, self._rate_timer):
            if timer is not None:
                timer.cancel()
        self._end_alive_checks(False)
        writable, self._when_writable = self._when_writable, []
        for callback in writable:
            callback()
        self._handler.lost()

    def pause_writing(self) -> None:
        """The client does not read our answers: stop reading from it."""
        self._unread_since_s = self._loop.time()
        self._pause(_WRITES)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._resume(_WRITES)
        if self._slow is not None:
            waited_s = self._loop.time() - self._unread_since_s
            if waited_s >= self._slow.after_s:
                self._slow.note("send", waited_s, {"client": self.peer, "unsent_bytes": self.unsent_bytes()})
        self._settle()
        self._notify_writable()

    def _notify_writable(self) -> None:
        self._waits_for_memory = False
        writable, self._when_writable = self._when_writable, []
        for callback in writable:
            callback()

    @property
    def common_name(self) -> str:
        """The common name of the client's verified certificate; empty without one."""
        return "" if self._transport is None else common_name(self._transport.get_extra_info("peercert"))

    def limit_frames(self, frame_bytes_max: int) -> None:
        """Treat longer frames as a protocol error from the next buffer on."""
        self._decoder.frame_bytes_max = frame_bytes_max

    # writing

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._transport is None

    @property
    def writable(self) -> bool:
        """Whether the send buffer is below its limit, and the memory of all connections too."""
        return self._transport is not None and not self._paused & _WRITES and not self._memory.is_full

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `writable` is true again or the connection is gone."""
        if callback not in self._when_writable:
            self._when_writable.append(callback)
        if not self._waits_for_memory and not self._paused & _WRITES:
            self._waits_for_memory = True
            self._memory.on_room(self._notify_writable)

    def write(self, data: bytes) -> None:
        """Send `data` now, behind what waits; does nothing on a closed connection."""
        if self._transport is not None:
            self._memory.queued(self._account, len(data))
            if self._joined:
                self._joined.append(data)
                self._send_joined()
                return
            self._transport.write(data)
            self._settle()

    def write_joined(self, parts: Sequence[Buffer]) -> None:
        """Send buffers at the end of this turn of the loop, in one write with those of its other consumers.

        At once when the write is large: the socket's own buffer alone decides when the connection is not `writable`.
        """
        if self._transport is None:
            return
        size_bytes = sum(map(len, parts))
        self._memory.queued(self._account, size_bytes)
        self._joined += parts
        self._joined_bytes += size_bytes
        if self._joined_bytes >= limits.JOINED_WRITE_BYTES:
            self._send_joined()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._send_joined()

    def _send_joined(self) -> None:
        size_bytes, parts = self._joined_bytes, self._take_joined()
        if not parts or self._transport is None:
            return
        if size_bytes < _COPIED_BYTES * len(parts):
            self._transport.write(b"".join(parts))  # many small buffers take the socket longer than a copy
        else:
            self._transport.writelines(parts)
        self._settle()

    def _take_joined(self) -> list[Buffer]:
        parts, self._joined = self._joined, []
        self._joined_bytes = 0
        return parts

    def close(self) -> None:
        """Send buffered bytes, then close. No more frames are handled.

        A peer that does not read the rest within a few seconds is dropped: its producers and consumers must not stay.
        """
        self._send_joined()
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(limits.CLOSE_FLUSH_S, transport.abort)

    def hand_over(self, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Let another protocol use the socket from now on, and return it; bytes written before are sent first.

        The handler is not called again. PeerProtocolError if a part of a frame has arrived, or the socket is closed.
        """
        transport = self._transport
        if transport is None:
            raise PeerProtocolError("the connection is closed")
        if self._decoder.held_bytes:
            raise PeerProtocolError("a part of a frame before the answer to CONNECT")
        self._send_joined()
        if self._timer is not None:
            self._timer.cancel()
        self._transport = self._socket = None
        self._memory.close(self._account)
        transport.set_protocol(protocol)
        return transport

    def _drop(self) -> None:
        """Close at once: the peer is gone, and a socket that waits for it could stay open for a quarter of an hour."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # memory: see `ConnectionMemory`

    @property
    def listening(self) -> bool:
        """Whether the peer causes its own silence."""
        return not self._paused & ~_OF_THE_PEER

    def unsent_bytes(self) -> int:
        """Return the number of bytes in the socket's write buffer, and of those that wait for the end of the turn."""
        return 0 if self._socket is None else self._socket.get_write_buffer_size() + self._joined_bytes

    def wait_for_memory(self, waits: bool) -> None:
        """Stop reading until memory is available, or resume."""
        if waits:
            self._pause(_MEMORY)
        else:
            self._resume(_MEMORY)

    def close_at_once(self, why: str) -> None:
        """Abort the connection; without `why` nothing is logged."""
        if why:
            log.warning("%s is disconnected: %s", self.peer, why)
        self._transport = None
        if self._socket is not None:
            self._socket.abort()

    def _settle(self) -> None:
        self._memory.settle(self._account, self.unsent_bytes())

    # back-pressure

    def publish_taken(self, count: int, size_bytes: int) -> None:
        """Count SENDs that arrived and are not answered yet."""
        self._pending += count
        self._pending_bytes += size_bytes
        self._budget.take(size_bytes)
        if self._pending >= self._pending_max or self._pending_bytes >= limits.CONNECTION_PUBLISH_BYTES_MAX:
            self._pause(_PENDING)
        if self._budget.exhausted and not self._paused & _BUDGET:
            self._pause(_BUDGET)
            self._budget.wait(self._budget_freed)

    def publish_done(self, count: int, size_bytes: int) -> None:
        """Count answered SENDs."""
        self._pending -= count
        self._pending_bytes -= size_bytes
        self._budget.give(size_bytes)
        if (
            self._paused & _PENDING
            and self._pending <= self._pending_max // 2
            and self._pending_bytes <= limits.CONNECTION_PUBLISH_BYTES_MAX // 2
        ):
            self._resume(_PENDING)

    def throttle(self, ready_s: Callable[[], float], rest: Frame | None) -> None:
        """Handle `rest`, and then the frames after it, from that loop time on; it may change. Read nothing until then.

        Call it while a frame is handled.
        """
        if rest is not None:
            self._frames.appendleft(rest)
        self._throttled = True
        if self._held_since_s is None:
            self._held_since_s = self._loop.time()
        self._rate_ready = ready_s
        self._pause(_RATE)
        self._check_rate_later()

    def _check_rate_later(self) -> None:
        wait_s = min(self._rate_ready() - self._loop.time(), limits.RATE_CHECK_S)
        self._rate_timer = self._loop.call_later(max(0.0, wait_s), self._check_rate)

    def _check_rate(self) -> None:
        if self._rate_ready() > self._loop.time():
            self._check_rate_later()
            return
        self._throttled = False
        try:
            self._handle_frames()
        except PeerProtocolError as error:
            self._violated(error)
        if not self._throttled:  # one of the frames may exceed the rate again
            self._held_since_s = None
            self._resume(_RATE)

    @property
    def now_s(self) -> float:
        """The loop time."""
        return self._loop.time()

    @property
    def held_s(self) -> float:
        """How long a rate of publishing has held back the frame that is handled now."""
        return 0.0 if self._held_since_s is None else self._loop.time() - self._held_since_s

    def hold(self) -> None:
        """Read nothing until `release`: the receiver of the frames is full. Frames of the last buffer still arrive."""
        self._pause(_RECEIVER)

    def release(self) -> None:
        """Read again."""
        self._resume(_RECEIVER)

    def _budget_freed(self) -> None:
        self._resume(_BUDGET)

    def _pause(self, reason: int) -> None:
        if not self._paused and self._transport is not None:
            self._transport.pause_reading()
        self._paused |= reason

    def _resume(self, reason: int) -> None:
        was = self._paused
        self._paused &= ~reason
        if was and not self._paused and self._transport is not None:
            self._received_at = self._loop.time()  # we caused the silence
            self._transport.resume_reading()

    # life signs

    @property
    def _paused_by_us(self) -> bool:
        """Whether we do not read for our own reasons: then the peer's silence means nothing."""
        return bool(self._paused & ~_WRITES)  # also for memory: ConnectionMemory checks whether it holds too much

    def _drains(self) -> bool:
        """Return whether a slow peer, from which we do not read, has read something since the last check."""
        before, self._unsent = self._unsent, 0
        if not self._paused & _WRITES or self._transport is None:
            return False
        self._unsent = self._transport.get_write_buffer_size()
        return self._unsent < before

    def _check_alive(self) -> None:
        if self._transport is None:
            return
        if self._paused_by_us or self._drains():
            self._received_at = self._loop.time()
        silence = self._loop.time() - self._received_at
        if silence >= 2 * self._keep_alive_s:
            log.info("%s is disconnected: silent for %.0f s", self.peer, silence)
            self._drop()
            return
        if silence >= self._keep_alive_s * 0.9:
            self.write(commands.PING)
        self._timer = self._loop.call_later(self._keep_alive_s, self._check_alive)

    async def alive(self) -> bool:
        """Return whether the client answers a PING within a few seconds; otherwise it is disconnected.

        A client from which we do not read, because it publishes faster than we store, counts as alive.
        """
        if self._transport is None:
            return False
        if self._paused_by_us:
            return True
        future: asyncio.Future[bool] = self._loop.create_future()
        self._alive_checks.append(future)
        unsent = self._transport.get_write_buffer_size()
        self.write(commands.PING)
        try:
            async with asyncio.timeout(limits.LIVENESS_CHECK_S):
                return await future
        except TimeoutError:
            if self._paused_by_us or (self._transport is not None and self._transport.get_write_buffer_size() < unsent):
                return True  # reading stopped since the PING, or the peer is slow but still reads
            log.info("%s is disconnected: no answer to PING", self.peer)
            self._drop()
            return False

    def _end_alive_checks(self, alive: bool) -> None:
        waiting, self._alive_checks = self._alive_checks, []
        for future in waiting:
            if not future.done():
                future.set_result(alive)
