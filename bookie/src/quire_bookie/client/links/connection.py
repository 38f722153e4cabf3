"""One connection to one bookie for one purpose, over protocol V2. Implements `BookieLink`.

Connects when there is a request to send; all requests of one loop iteration are sent in one write. Responses are
matched by (ledger, entry) and kind, because V2 has no transaction ids. Therefore at most one read of an entry is in
flight; another read of the same entry waits for it (otherwise it could receive a response from before its fence). Never
retries and never interprets an error: when the connection is lost, all unanswered requests fail with
BookieUnavailableError.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from quire_bookie.client.links.bookie_link import AddSink, BatchAnswer, EntryAnswer
from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.client.security import ClientSecurity, Greeting
from quire_bookie.dataclass import dataclass
from quire_bookie.env.own_links import Ends, OwnLinks
from quire_bookie.errors import BookieProtocolError, BookieUnavailableError, LedgerError, PeerProtocolError
from quire_bookie.limits import KIB
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.client_codec import ClientCodec, v2_batch_read, v2_read
from quire_bookie.wire.messages import AddResponse, BatchReadResponse, ReadResponse, Response, Status, error_of
from quire_bookie.wire.packed_entries import stored_bytes

_log = logging.getLogger("quire.client.connection")
_V3_FIRST_BYTE = b"\x0a"
_COPY_BYTES_MAX = 32 * KIB  # buffers with a larger average size are written separately instead of copied into one


@dataclass(slots=True)
class _PendingRead:
    request: bytes
    answer: EntryAnswer
    asked_s: float


@dataclass(slots=True)
class _PendingBatch:
    answer: BatchAnswer
    asked_s: float


@dataclass(slots=True)
class ConnectionStats:
    """Counters of one connection since the client was opened."""

    connects: int = 0
    connect_failures: int = 0
    losses: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class ConnectionHooks:
    """The functions that a connection uses of its pool."""

    resolve: Callable[[BookieId], BookieAddress | None]
    spawn: Callable[["BookieConnection"], None]
    """Runs `connect` of that connection in a task that the pool owns."""
    watch: Callable[[], None]
    """Starts periodic calls of `check_overdue`, because a request is outstanding."""
    reached: Callable[[BookieId, bool], None]
    """Called when a connection was made (True), or could not be made or broke (False)."""
    security: ClientSecurity | None = None
    """Secures a new connection before its first request."""
    health: ReplicaHealth | None = None
    """Receives the durations of reads."""
    own_links: OwnLinks | None = None
    """Receives the sockets, so that a bookie in this process can recognise them."""


class BookieConnection:
    """Sends requests to one bookie. Exists as long as the client, over several sockets."""

    GENERATION = 2
    """Protocol generation; `V3Connection` uses the other one."""

    def __init__(self, bookie: BookieId, settings: ClientSettings, hooks: ConnectionHooks) -> None:
        self.bookie = bookie
        self.stats = ConnectionStats()
        self._settings = settings
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._wire: _Wire | None = None
        self._connecting = False
        self._closed = False
        self._outbox: list[Buffer] = []
        self._flush_due = False
        self._sinks: dict[LedgerId, AddSink] = {}
        self._owed: dict[LedgerId, AddSink] = {}
        """The sinks that were sent for since the last check, or were owed responses then."""
        self._reads: dict[tuple[LedgerId, EntryId], _PendingRead] = {}
        self._waiting: dict[tuple[LedgerId, EntryId], deque[_PendingRead]] = {}
        self._batches: dict[int, _PendingBatch] = {}
        self._next_request_id = 0
        self._received_s = 0.0

    # ---- requests
    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        """See BookieLink."""
        self._sinks[ledger] = self._owed[ledger] = sink
        self._outbox.append(frames)  # `_send` inlined: this is the hot path
        if not self._flush_due:
            self._flush_soon()

    def forget_sink(self, ledger: LedgerId, sink: AddSink) -> None:
        """See BookieLink."""
        if self._sinks.get(ledger) is sink:
            del self._sinks[ledger]
            self._owed.pop(ledger, None)

    def read(
        self, ledger: LedgerId, entry: EntryId, answer: EntryAnswer, *, fence_key: bytes | None, high_priority: bool
    ) -> None:
        """See BookieLink."""
        request = v2_read(ledger, entry, fence_with=fence_key, high_priority=high_priority)
        pending = _PendingRead(request, answer, self._loop.time())
        key = (ledger, entry)
        if key in self._reads:
            self._waiting.setdefault(key, deque()).append(pending)
        else:
            self._reads[key] = pending
            self._send(request)

    def read_batch(
        self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int, answer: BatchAnswer
    ) -> None:
        """See BookieLink."""
        request_id = self._next_request_id
        self._next_request_id += 1
        self._batches[request_id] = _PendingBatch(answer, self._loop.time())
        # The protocol counts entries in 32 bits, and 0 means no limit.
        self._send(v2_batch_read(ledger, first, request_id, max(1, min(entries_max, 2**31 - 1)), bytes_max))

    # ---- time
    @property
    def is_busy(self) -> bool:
        """Whether a response may be outstanding."""
        return bool(self._owed or self._reads or self._batches)

    def check_overdue(self, now_s: float) -> None:
        """Break the connection if a read is overdue; let the sinks check their adds.

        A bookie that a sink gave up and that sent nothing for half the add timeout counts as dead. Otherwise the
        connection would keep unread data and also queue the adds of each new ledger.
        """
        if self._break_if_ended():
            return
        # Dictionaries are ordered by insertion, so the first request is the oldest.
        read, batch = next(iter(self._reads.values()), None), next(iter(self._batches.values()), None)
        asked_s = min(read.asked_s if read else now_s, batch.asked_s if batch else now_s)
        if now_s - asked_s >= self._settings.read_timeout_s:
            # A late response could be matched with a later request: only a new connection is safe.
            self._break(BookieUnavailableError(f"bookie {self.bookie} did not respond to a read in time"))
            return
        given_up = [sink.check_overdue(self.bookie, now_s) for sink in list(self._owed.values())]
        # Not before, since a sink may send to its other bookies meanwhile. Idle ledgers cost no checks.
        self._owed = {ledger: sink for ledger, sink in self._owed.items() if sink.owes(self.bookie)}
        if any(given_up) and now_s - self._received_s >= self._settings.add_timeout_s / 2:
            self._break(BookieUnavailableError(f"bookie {self.bookie} has sent no response for too long"))

    # ---- the socket
    async def connect(self) -> None:
        """Connect and send the queued requests. On failure, all of them fail."""
        address = self._hooks.resolve(self.bookie)
        try:
            if address is None:
                raise OSError("it never registered")
            async with asyncio.timeout(self._settings.connect_timeout_s):
                transport, wire = await self._open(address)
            if wire.lost:
                raise OSError("it closed the connection at once")
            if self._hooks.resolve(self.bookie) != address:
                # Connecting may take seconds, and requests do not contain the bookie id.
                transport.abort()
                raise OSError("its address changed meanwhile")
        except (OSError, TimeoutError, ValueError, OverflowError, RuntimeError) as error:
            # ValueError and OverflowError: a registration with an invalid host or port. RuntimeError: from uvloop, for
            # a socket that was closed meanwhile.
            self._connecting = False
            self.stats.connect_failures += 1
            reason = str(error) or "timed out"
            lost = BookieUnavailableError(f"cannot reach bookie {self.bookie} at {address}: {reason}")
            lost.__cause__ = error
            self._fail_all(lost)
            return
        self._connecting = False
        if self._closed:
            transport.abort()
            return
        assert self._transport is None, "one socket at a time"
        self.stats.connects += 1
        self._received_s = self._loop.time()
        self._transport = transport
        self._wire = wire
        self._hooks.reached(self.bookie, True)
        self._flush()

    async def _open(self, address: BookieAddress) -> "tuple[asyncio.Transport, _Wire]":
        """Open a socket that is ready for requests. OSError."""
        security = self._hooks.security
        greeting = None if security is None else Greeting()
        transport, wire = await self._loop.create_connection(
            lambda: _Wire(self, self._settings.frame_bytes_max, greeting), address.host, address.port
        )
        if self._hooks.own_links is not None and not wire.lost:
            wire.ends = self._hooks.own_links.opened(transport)
        if security is not None and greeting is not None:
            timeout_s = self._settings.connect_timeout_s
            try:
                transport = await security.secure(transport, wire, greeting, address.host, timeout_s, self.GENERATION)
            except BaseException:
                self._forget(wire)  # an aborted handshake does not report the end of its socket
                raise
            wire.greeting = None
        return transport, wire

    def _forget(self, wire: "_Wire") -> None:
        ends, wire.ends = wire.ends, None
        if self._hooks.own_links is not None and ends is not None:
            self._hooks.own_links.closed(ends)

    def probe(self) -> None:
        """Connect unless connected, to find out whether the bookie is reachable."""
        if self._transport is None and not self._connecting and not self._closed:
            self._connecting = True
            self._hooks.spawn(self)

    def close(self) -> None:
        """Drop the socket and fail all unanswered requests."""
        self._closed = True
        self._break(BookieUnavailableError("the ledger client was closed"))

    def _send(self, data: Buffer) -> None:
        self._outbox.append(data)
        if not self._flush_due:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._flush_due = True
        self._loop.call_soon(self._flush)
        self._hooks.watch()

    def _flush(self) -> None:
        self._flush_due = False
        if self._transport is None:
            if self._closed:
                self._fail_all(BookieUnavailableError("the ledger client was closed"))
            elif self._outbox:
                self.probe()
            return
        if self._break_if_ended():
            return
        outbox, self._outbox = self._outbox, []
        if not outbox:
            return
        size_bytes = sum(map(len, outbox))
        self.stats.bytes_sent += size_bytes
        if size_bytes >= len(outbox) * _COPY_BYTES_MAX:
            for data in outbox:
                self._transport.write(data)
        else:
            self._transport.write(outbox[0] if len(outbox) == 1 else b"".join(outbox))

    def received(self, wire: "_Wire", data: bytes) -> None:
        """Process bytes from a socket; those from a former one are dropped."""
        if wire is not self._wire:
            return
        self.stats.bytes_received += len(data)
        self._received_s = self._loop.time()
        try:
            self._dispatch(wire.codec.feed(data))
        except PeerProtocolError as error:
            reason = f"broke the protocol: {error}"
            if self._hooks.security is not None and self.GENERATION == 2 and data[4:5] == _V3_FIRST_BYTE:
                # BookKeeper and Quire send this after a handshake if the role of the certificate may not connect.
                reason = "refuses this client's certificate or its role"
            _log.warning("bookie %s %s", self.bookie, reason)
            self._break(BookieUnavailableError(f"bookie {self.bookie} {reason}"))

    def lost(self, wire: "_Wire", error: BaseException | None) -> None:
        """Process the end of a socket."""
        self._forget(wire)
        if wire is not self._wire:
            return  # already given up, or lost while connecting, which `connect` checks
        reason = error or "it closed the connection"
        failure = BookieUnavailableError(f"lost the connection to bookie {self.bookie}: {reason}")
        failure.__cause__ = error
        self._break(failure)

    # ---- answers
    def _dispatch(self, responses: list[Response]) -> None:
        touched: dict[LedgerId, AddSink] = {}
        for response in responses:
            if isinstance(response, AddResponse):
                sink = self._sinks.get(response.ledger)
                if sink is None:
                    continue
                touched[response.ledger] = sink
                if response.status is Status.OK:
                    sink.adds_stored(self.bookie, response.first, response.count)
                else:
                    sink.adds_refused(self.bookie, response.first, response.count, self._error(response))
            elif isinstance(response, ReadResponse):
                self._read_answered(response)
            elif isinstance(response, BatchReadResponse):
                self._batch_answered(response)
            else:
                raise PeerProtocolError(f"unexpected response of type {type(response).__name__}")
        for sink in touched.values():
            sink.adds_answered()

    def _read_answered(self, response: ReadResponse) -> None:
        key = (response.ledger, response.entry)
        pending = self._reads.pop(key, None)
        if pending is None:
            return
        waiting = self._waiting.get(key)
        if waiting:
            following = waiting.popleft()
            if not waiting:
                del self._waiting[key]
            assert key not in self._reads, "at most one read of an entry is in flight"
            self._reads[key] = following
            self._send(following.request)
        if response.status is Status.OK and response.data is not None:
            if self._hooks.health is not None:
                now_s = self._received_s
                self._hooks.health.answered(self.bookie, now_s - pending.asked_s, now_s, len(response.data))
            pending.answer(response.data)
        else:
            pending.answer(self._error(response))

    def _batch_answered(self, response: BatchReadResponse) -> None:
        pending = self._batches.pop(response.request_id, None)
        if pending is None:
            return
        if response.status is Status.OK and response.entries:
            if self._hooks.health is not None:
                now_s, size_bytes = self._received_s, stored_bytes(response.entries)
                self._hooks.health.answered(self.bookie, now_s - pending.asked_s, now_s, size_bytes)
            pending.answer(response.entries)
        else:
            pending.answer(self._error(response))

    def _error(self, response: AddResponse | ReadResponse | BatchReadResponse) -> LedgerError:
        entry = response.entry if isinstance(response, ReadResponse) else response.first
        name = f"ledger {response.ledger} entry {entry} at bookie {self.bookie}"
        if response.status is Status.OK:
            return BookieProtocolError(f"{name}: answered OK without an entry")
        return error_of(response.status, name)

    def _break_if_ended(self) -> bool:
        """Break the connection if the bookie has ended it; return whether it had.

        Event loops drop all bytes written from then on, and report the loss only after all earlier bytes have left. If
        the bookie has died, they never leave.
        """
        if self._transport is None or not self._transport.is_closing():
            return False
        self._break(BookieUnavailableError(f"bookie {self.bookie} has ended the connection"))
        return True

    def _break(self, error: LedgerError) -> None:
        transport, self._transport, self._wire = self._transport, None, None
        if transport is not None:
            self.stats.losses += 1
            transport.abort()
        self._fail_all(error)

    def _fail_all(self, error: LedgerError) -> None:
        self._hooks.reached(self.bookie, False)
        # Cleared before the callbacks, which may send further requests and so begin a new connection.
        sinks, self._sinks, self._owed = self._sinks, {}, {}
        reads = [*self._reads.values(), *(pending for queue in self._waiting.values() for pending in queue)]
        batches, self._batches = self._batches, {}
        self._reads, self._waiting, self._outbox = {}, {}, []
        for sink in sinks.values():
            sink.link_lost(self.bookie, error)
        for pending in reads:
            pending.answer(error)
        for batch in batches.values():
            batch.answer(error)


class _Wire(asyncio.Protocol):
    """One socket of a connection, from its handshake to its end."""

    def __init__(self, owner: BookieConnection, frame_bytes_max: int, greeting: Greeting | None) -> None:
        self._owner = owner
        self.greeting = greeting
        self.codec = ClientCodec(owner.GENERATION, frame_bytes_max)
        self.lost = False
        self.ends: Ends | None = None

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.greeting is not None:
            self.greeting.received(data)
        else:
            self._owner.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.lost = True
        if self.greeting is not None:
            self.greeting.lost(exc)
        self._owner.lost(self, exc)
