"""Owns one connection to a broker: CONNECT, answers to requests by their ids, signs of life.

Commands for a producer or a consumer go to callbacks. Must never reconnect: its users do.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from quire_bookie.cli.client_access import ClientAccess
from quire_bookie.errors import PeerProtocolError, QuireError
from quire_bookie.model import Buffer
from quire_broker.limits import MESSAGE_BYTES_MAX
from quire_broker.wire import commands
from quire_broker.wire.frames import AckRun, Frame, FrameDecoder, MessageFrame, SendRun, encode
from quire_broker.wire.kinds import PROTOCOL_VERSION, Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.errors import BrokerRefusedError, ConnectionLostError, UnconfirmedError, error_of
from quire_client.options import ClientOptions

VERSION = "quire-client"

_REPLIES = {
    Kind.SUCCESS: "success",
    Kind.ERROR: "error",
    Kind.PRODUCER_SUCCESS: "producer_success",
    Kind.PARTITIONED_METADATA_RESPONSE: "partition_metadata_response",
    Kind.LOOKUP_RESPONSE: "lookup_response",
    Kind.GET_LAST_MESSAGE_ID_RESPONSE: "get_last_message_id_response",
    Kind.ACK_RESPONSE: "ack_response",
}
_NUMBERED: dict[int, tuple[str, str]] = {
    Kind.SEND_RECEIPT: ("send_receipt", "producer_id"),
    Kind.SEND_ERROR: ("send_error", "producer_id"),
    Kind.CLOSE_PRODUCER: ("close_producer", "producer_id"),
    Kind.CLOSE_CONSUMER: ("close_consumer", "consumer_id"),
}


class Connection(asyncio.Protocol):
    """One connection. `on_frame`, `on_lost` and `on_writable` hold the callbacks of its users."""

    def __init__(self, access: Callable[[], ClientAccess], options: ClientOptions, proxied_to: str = "") -> None:
        """`access`: returns the present credentials.

        `proxied_to`: the broker, as host:port, to which a proxy at the other end connects us.
        """
        self._access = access
        self._shown = access().shown  # here, where an error reaches the caller
        self._options = options
        self._proxied_to = proxied_to
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(options.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next_id = 0
        self._received_at_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._error: BrokerRefusedError | None = None
        self.is_writable = True
        """Whether the socket takes more: what waits for it is below the bound."""
        self.message_bytes_max = MESSAGE_BYTES_MAX
        """Of a message, as the broker names it."""
        self.connected: asyncio.Future[int] = self._loop.create_future()
        self.on_frame: dict[tuple[int, int], Callable[[Any], None]] = {}
        """By the type of a command and the id of its producer or consumer."""
        self.on_lost: dict[int, Callable[[BrokerRefusedError], None]] = {}
        """Called once when the connection ends, by the id of a producer or consumer."""
        self.on_writable: dict[int, Callable[[], None]] = {}
        """Called when the socket takes more again."""

    @property
    def is_made(self) -> bool:
        """Whether the other end took the connection."""
        return self._transport is not None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._error is None and self.connected.done()

    # ---- asyncio's protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT at once."""
        self._transport = cast(asyncio.Transport, transport)  # that of TLS does not inherit from it
        self._transport.set_write_buffer_limits(high=self._options.write_bytes_max)
        hello = pb.CommandConnect(client_version=VERSION, protocol_version=PROTOCOL_VERSION)
        hello.feature_flags.supports_auth_refresh = True
        method, data = self._shown
        if method:
            hello.auth_method_name, hello.auth_data = method, data.encode()
        if self._proxied_to:
            hello.proxy_to_broker_url = self._proxied_to
        self.write(encode(pb.BaseCommand(type=Kind.CONNECT, connect=hello)))
        self._timer = self._loop.call_later(self._options.keep_alive_s, self._check_alive)

    def data_received(self, data: bytes) -> None:
        """Pass every frame to its receiver."""
        self._received_at_s = self._loop.time()
        try:
            for frame in self._decoder.feed(data):
                self._dispatch(frame)
        except PeerProtocolError as error:
            self.fail(ConnectionLostError(f"the broker violated the protocol: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting requests."""
        self.fail(ConnectionLostError("the broker closed the connection" + (f": {exc}" if exc else "")))

    def pause_writing(self) -> None:
        """Let producers wait."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Let producers go on."""
        self.is_writable = True
        for call in list(self.on_writable.values()):
            call()

    def _check_alive(self) -> None:
        assert self._transport is not None
        silent_s, limit_s = self._loop.time() - self._received_at_s, self._options.keep_alive_s
        if silent_s >= 2 * limit_s:
            self.fail(ConnectionLostError(f"the broker was silent for {silent_s:.0f} s"))
            return
        if silent_s >= limit_s:
            self.write(commands.PING)
        self._timer = self._loop.call_later(limit_s, self._check_alive)

    def _dispatch(self, frame: Frame) -> None:
        if isinstance(frame, MessageFrame):
            self._call_back(Kind.MESSAGE, frame.command.message.consumer_id, frame)
        elif isinstance(frame, SendRun | AckRun):
            raise PeerProtocolError("the broker sent SEND or ACK, which only clients send")
        elif (numbered := _NUMBERED.get(frame.type)) is not None:
            body = getattr(frame, numbered[0])
            self._call_back(frame.type, getattr(body, numbered[1]), body)
        elif frame.type in _REPLIES:
            self._answer(getattr(frame, _REPLIES[Kind(frame.type)]))
        elif frame.type == Kind.PING:
            self.write(commands.PONG)
        elif frame.type == Kind.CONNECTED and not self.connected.done():
            self.message_bytes_max = frame.connected.max_message_size or self.message_bytes_max
            self.connected.set_result(self.message_bytes_max)
        elif frame.type == Kind.AUTH_CHALLENGE:
            self._prove_again()

    def _prove_again(self) -> None:
        try:
            method, data = self._access().shown
        except QuireError as error:
            self.fail(ConnectionLostError(f"the broker wants fresh credentials: {error}"))
            return
        answer = pb.CommandAuthResponse(client_version=VERSION, protocol_version=PROTOCOL_VERSION)
        answer.response.auth_method_name, answer.response.auth_data = method, data.encode()
        self.write(encode(pb.BaseCommand(type=Kind.AUTH_RESPONSE, auth_response=answer)))

    def _call_back(self, kind: int, number: int, what: Any) -> None:
        if (receiver := self.on_frame.get((kind, number))) is not None:
            receiver(what)

    def _answer(self, reply: Any) -> None:
        refused = isinstance(reply, pb.CommandError)
        if refused and not self.connected.done():
            self.fail(error_of(reply.error, reply.message))
            return
        future = self._waiting.pop(reply.request_id, None)
        if future is None or future.done():
            return
        if refused:
            future.set_exception(error_of(reply.error, reply.message))
        else:
            future.set_result(reply)

    # ---- called by the client
    def fail(self, error: BrokerRefusedError) -> None:
        """End the connection with this reason for all that wait. A second call does nothing."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        for future in [self.connected, *self._waiting.values()]:
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark as retrieved: not every future is awaited
        self._waiting.clear()
        lost = list(self.on_lost.values())
        for callbacks in (self.on_lost, self.on_writable, self.on_frame):
            cast(dict[Any, Any], callbacks).clear()
        for call in lost:
            call(error)

    def write(self, data: bytes) -> None:
        """Send bytes; after the end of the connection they are dropped, and `on_lost` was called."""
        if self._transport is not None and self._error is None:
            self._transport.write(data)

    def write_all(self, parts: Iterable[Buffer]) -> None:
        """Do the same for the parts of frames."""
        if self._transport is not None and self._error is None:
            self._transport.writelines(parts)

    def next_id(self) -> int:
        """Return a number that is unique on this connection, for requests, producers and consumers."""
        self._next_id += 1
        return self._next_id

    def begin(self, kind: Kind, field: str, body: Any) -> "asyncio.Future[Any]":
        """Send a request that has a `request_id`; the future gets the answer. BrokerRefusedError."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._error is not None:
            future.set_exception(ConnectionLostError(str(self._error)))
            return future
        body.request_id = self.next_id()
        self._waiting[body.request_id] = future
        command = pb.BaseCommand(type=kind)
        getattr(command, field).CopyFrom(body)
        self.write(encode(command))
        return future

    async def ask(self, kind: Kind, field: str, body: Any) -> Any:
        """Send a request and wait for its answer. BrokerRefusedError; UnconfirmedError if none comes in time."""
        future = self.begin(kind, field, body)
        try:
            return await asyncio.wait_for(future, self._options.answer_timeout_s)
        except TimeoutError as error:
            raise UnconfirmedError(
                f"the broker did not answer {kind.name} within {self._options.answer_timeout_s:.0f} s"
            ) from error
        finally:  # also if the caller is cancelled
            self._waiting.pop(body.request_id, None)

    def close(self) -> None:
        """Close the connection when all written bytes are sent; requests without an answer fail."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        self.fail(ConnectionLostError("the connection is closed"))
