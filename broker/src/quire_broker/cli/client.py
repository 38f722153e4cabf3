"""A small Pulsar client on our own wire module, for `quire produce` and `quire consume`. One connection per broker.

It supports lookup, partitions, producing with a window of unanswered messages, and reading from the start or
with a subscription. It must not grow into a client library: programs use Pulsar's own clients.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from quire_bookie.cli.client_access import client_access
from quire_bookie.cli.refusals import DeniedError, MissingError, NoAnswerError, RefusedError
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError, PeerProtocolError, QuireError
from quire_bookie.model import Buffer
from quire_broker.errors import ServerError
from quire_broker.managed_ledger.cursors.ack_set import unacked_mask
from quire_broker.wire import commands
from quire_broker.wire.entry import peek, seal
from quire_broker.wire.frames import AckRun, Frame, FrameDecoder, MessageFrame, SendRun, encode
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import PROTOCOL_VERSION, InitialPosition, Kind, LookupType, SubscriptionType
from quire_broker.wire.payload import Message, batch_of, messages_of
from quire_broker.wire.proto import pulsar_pb2 as pb

ANSWER_TIMEOUT_S = 30.0
FRAME_BYTES_MAX = 16 * 1024 * 1024
MESSAGE_BYTES_MAX = 5 * 1024 * 1024
"""Of a broker that does not name its limit."""
WINDOW_ENTRIES = 1000
WINDOW_BYTES = 16 * 1024 * 1024
REDIRECTS_MAX = 20
_TLS_SCHEME = "pulsar+ssl"
_AFTER_ALL = (1 << 63) - 1

_REPLIES = {
    Kind.SUCCESS: "success",
    Kind.ERROR: "error",
    Kind.PRODUCER_SUCCESS: "producer_success",
    Kind.PARTITIONED_METADATA_RESPONSE: "partition_metadata_response",
    Kind.LOOKUP_RESPONSE: "lookup_response",
    Kind.GET_LAST_MESSAGE_ID_RESPONSE: "get_last_message_id_response",
}


class BrokerRefusedError(RefusedError):
    """The broker answered with an error, or the connection broke; the message has the reason."""


class NoBrokerError(BrokerRefusedError, NoAnswerError):
    """No broker answers at the address."""


class DeniedByBrokerError(BrokerRefusedError, DeniedError):
    """The broker does not know the role, or the role may not do this."""


class NotThereError(BrokerRefusedError, MissingError):
    """The broker names an object that does not exist, such as the namespace of a topic."""


class NoSuchTopicError(NotThereError):
    """The topic does not exist, although its namespace does."""


def _refusal(topic: str, code: int, message: str) -> BrokerRefusedError:
    """Return the error for a code that a broker answered about a topic."""
    if code == ServerError.TOPIC_NOT_FOUND:
        if message:  # it names the missing object
            return NotThereError(f"{topic}: TOPIC_NOT_FOUND {message}")
        return NoSuchTopicError(f"topic {topic} does not exist")
    return _error_of(code, f"{topic}: {ServerError(code).name} {message}".rstrip())


def _error_of(code: int, text: str) -> BrokerRefusedError:
    denied = (ServerError.AUTHENTICATION, ServerError.AUTHORIZATION)
    return (DeniedByBrokerError if code in denied else BrokerRefusedError)(text)


@dataclass(frozen=True, slots=True)
class Received:
    """A message with its position. `ends_entry`: no message of the same batch follows."""

    ledger_id: int
    entry_id: int
    partition: int
    message: Message
    ends_entry: bool


def received_of(ledger_id: int, entry_id: int, partition: int, entry: Buffer, ack_set: Sequence[int]) -> list[Received]:
    """Unpack the messages of an entry. `ack_set`: of a batch only those whose bits are set; empty: all.

    PeerProtocolError if the entry cannot be unpacked.
    """
    left = unacked_mask(ack_set) if ack_set else -1
    messages = [each for each in messages_of(entry) if each.batch_index < 0 or left >> each.batch_index & 1]
    return [Received(ledger_id, entry_id, partition, each, each is messages[-1]) for each in messages]


class Connection(asyncio.Protocol):
    """Owns one connection: passes answers to requests by id, and other commands to callbacks."""

    def __init__(self, shown: tuple[str, str] = ("", "")) -> None:
        """`shown`: the method and the credentials of CONNECT; empty: none."""
        self._shown = shown
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next_id = 0
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.connected: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.on_frame: dict[tuple[int, int], Callable[[Any], None]] = {}
        self.on_lost: list[Callable[[], None]] = []

    # ---- asyncio's protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT at once."""
        self._transport = cast(asyncio.Transport, transport)  # that of TLS does not inherit from it
        hello = pb.CommandConnect(client_version="quire-cli", protocol_version=PROTOCOL_VERSION)
        method, data = self._shown
        if method:
            hello.auth_method_name, hello.auth_data = method, data.encode()
        self._transport.write(encode(pb.BaseCommand(type=Kind.CONNECT, connect=hello)))

    def data_received(self, data: bytes) -> None:
        """Pass every frame to its receiver."""
        try:
            for frame in self._decoder.feed(data):
                self._dispatch(frame)
        except PeerProtocolError as error:
            self._fail(BrokerRefusedError(f"the broker violated the protocol: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting requests."""
        self._fail(BrokerRefusedError("the broker closed the connection" + (f": {exc}" if exc else "")))

    def _fail(self, error: QuireError) -> None:
        if self._transport is not None:
            self._transport.abort()
        for future in [self.connected, *self._waiting.values()]:
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark as retrieved: not every future is awaited
        self._waiting.clear()
        for lost in self.on_lost:
            lost()

    def _dispatch(self, frame: Frame) -> None:
        if isinstance(frame, MessageFrame):
            self._call_back(Kind.MESSAGE, frame.command.message.consumer_id, frame)
        elif isinstance(frame, SendRun | AckRun):
            raise PeerProtocolError("the broker sent SEND or ACK, which only clients send")
        elif frame.type == Kind.PING:
            self.write(commands.PONG)
        elif frame.type == Kind.CONNECTED:
            self.message_bytes_max = frame.connected.max_message_size or self.message_bytes_max
            self.connected.set_result(self.message_bytes_max)
        elif frame.type == Kind.SEND_RECEIPT:
            self._call_back(Kind.SEND_RECEIPT, frame.send_receipt.producer_id, frame.send_receipt)
        elif frame.type == Kind.SEND_ERROR:
            self._call_back(Kind.SEND_ERROR, frame.send_error.producer_id, frame.send_error)
        elif frame.type == Kind.CLOSE_PRODUCER:
            self._fail(BrokerRefusedError("the broker closed the producer"))
        elif frame.type == Kind.CLOSE_CONSUMER:
            self._fail(BrokerRefusedError("the broker closed the consumer"))
        elif frame.type in _REPLIES:
            self._answer(getattr(frame, _REPLIES[Kind(frame.type)]))

    def _call_back(self, kind: Kind, number: int, what: Any) -> None:
        if receiver := self.on_frame.get((kind, number)):
            receiver(what)

    def _answer(self, reply: Any) -> None:
        if isinstance(reply, pb.CommandError) and not self.connected.done():
            self._fail(_error_of(reply.error, f"{ServerError(reply.error).name}: {reply.message}"))
            return
        future = self._waiting.pop(reply.request_id, None)
        if future is None or future.done():
            return
        if isinstance(reply, pb.CommandError):
            future.set_exception(_error_of(reply.error, f"{ServerError(reply.error).name}: {reply.message}"))
        else:
            future.set_result(reply)

    # ---- called by the client
    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None
        self._transport.write(data)

    def next_id(self) -> int:
        """Return a number that is unique on this connection, for requests, producers and consumers."""
        self._next_id += 1
        return self._next_id

    async def ask(self, kind: Kind, field: str, body: Any) -> Any:
        """Send a request that has a `request_id` and wait for its answer."""
        body.request_id = self.next_id()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[body.request_id] = future
        command = pb.BaseCommand(type=kind)
        getattr(command, field).CopyFrom(body)
        self.write(encode(command))
        try:
            return await asyncio.wait_for(future, ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise BrokerRefusedError(
                f"the broker did not answer {kind.name} within {ANSWER_TIMEOUT_S:.0f} s"
            ) from error

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


class Client:
    """Finds the topics of one cluster, starting from one broker's address."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._access = client_access()
        self._connections: dict[str, Connection] = {}

    async def connection(self, url: str) -> Connection:
        """Return the connection to a broker, opening it if needed."""
        if url in self._connections:
            return self._connections[url]
        parts = urlsplit(url)
        try:
            port = parts.port or (6651 if parts.scheme == _TLS_SCHEME else 6650)
        except ValueError:
            port = 0
        if parts.scheme not in ("pulsar", _TLS_SCHEME) or not parts.hostname or not port:
            raise ConfigError(f"'{url}' is not a broker address; use pulsar://host:port or {_TLS_SCHEME}://host:port")
        tls = self._access.context() if parts.scheme == _TLS_SCHEME else None
        loop, shown = asyncio.get_running_loop(), self._access.shown
        try:
            _, protocol = await loop.create_connection(lambda: Connection(shown), parts.hostname, port, ssl=tls)
        except ssl.SSLError as error:
            raise BrokerRefusedError(f"no TLS with {url}: {error.reason or error}") from error
        except OSError as error:
            raise NoBrokerError(
                f"no broker answers at {url} ({error.strerror or error}); is `quire standalone` running?"
            ) from error
        try:
            await asyncio.wait_for(protocol.connected, ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            protocol.close()
            raise BrokerRefusedError(f"the server at {url} does not speak Pulsar's protocol") from error
        self._connections[url] = protocol
        return protocol

    async def partitions(self, topic: str, *, create: bool) -> list[str]:
        """Return the topics to use: the partitions, or the topic itself. NoSuchTopicError if it may not be created."""
        body = pb.CommandPartitionedTopicMetadata(topic=topic, metadata_auto_creation_enabled=create)
        reply = await (await self.connection(self._url)).ask(Kind.PARTITIONED_METADATA, "partition_metadata", body)
        if reply.response == 1:
            raise _refusal(topic, reply.error, reply.message)
        return [f"{topic}-partition-{k}" for k in range(reply.partitions)] or [topic]

    async def owner(self, topic: str) -> Connection:
        """Return the connection to the broker that owns a topic."""
        url, authoritative = self._url, False
        for _ in range(REDIRECTS_MAX):
            body = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            reply = await (await self.connection(url)).ask(Kind.LOOKUP, "lookup", body)
            if reply.response == LookupType.FAILED:
                raise _refusal(topic, reply.error, reply.message)
            url = reply.brokerServiceUrlTls
            if not self._url.startswith(_TLS_SCHEME):
                url = reply.brokerServiceUrl or url
            elif not url.startswith(_TLS_SCHEME):  # never redirect to a plaintext port: it would receive our token
                raise BrokerRefusedError(f"{topic}: its broker has no port with TLS")
            authoritative = reply.authoritative
            if reply.response == LookupType.CONNECT:
                return await self.connection(url)
        raise BrokerRefusedError(f"{topic}: redirected {REDIRECTS_MAX} times")

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()


class Producer:
    """Sends to one topic, with at most `WINDOW_ENTRIES` of together `WINDOW_BYTES` unanswered."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._id = connection.next_id()
        self._name = ""
        self._sequence = 0
        self._pending: deque[tuple[int, int]] = deque()
        self._pending_bytes = 0
        self._window_open = asyncio.Event()
        self._error: QuireError | None = None
        self.on_receipt: Callable[[], None] | None = None
        """Called for each stored entry, in the order of the sends."""
        connection.on_frame[(Kind.SEND_RECEIPT, self._id)] = self._on_receipt
        connection.on_frame[(Kind.SEND_ERROR, self._id)] = self._on_error
        connection.on_lost.append(lambda: self._stop(BrokerRefusedError("the connection broke while sending")))

    async def open(self, topic: str) -> None:
        """Register with the broker."""
        body = pb.CommandProducer(topic=topic, producer_id=self._id)
        reply = await self._connection.ask(Kind.PRODUCER, "producer", body)
        self._name, self._sequence = reply.producer_name, reply.last_sequence_id + 1

    async def send(
        self, payloads: Sequence[bytes], *, key: str | None, properties: dict[str, str], now_ms: int
    ) -> None:
        """Send messages as one entry, a batch if they are several; waits while the window is full, not for a receipt.

        Key and properties are those of each message.
        """
        while self._is_full and self._error is None:
            self._window_open.clear()
            await self._window_open.wait()
        if self._error is not None:
            raise self._error
        metadata = pb.MessageMetadata(producer_name=self._name, sequence_id=self._sequence, publish_time=now_ms)
        if key is not None:
            metadata.partition_key = key  # of a batch, too: Key_Shared reads no further
        if len(payloads) == 1:
            for name, value in properties.items():
                metadata.properties.add(key=name, value=value)
            entry = seal(metadata, payloads[0])
        else:
            metadata.num_messages_in_batch = len(payloads)
            metadata.highest_sequence_id = self._sequence + len(payloads) - 1
            entry = seal(metadata, batch_of(payloads, key=key, properties=properties))
        self._pending.append((self._sequence, len(entry)))
        self._pending_bytes += len(entry)
        self._connection.write(encode_send(self._id, self._sequence, entry, len(payloads)))
        self._sequence += len(payloads)

    @property
    def _is_full(self) -> bool:
        return len(self._pending) >= WINDOW_ENTRIES or self._pending_bytes >= WINDOW_BYTES

    async def flush(self) -> None:
        """Wait until every send has its receipt; raise an error of the broker."""
        while self._pending and self._error is None:
            self._window_open.clear()
            await self._window_open.wait()
        if self._error is not None:
            raise self._error

    def _on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        if self._pending and self._pending[0][0] == receipt.sequence_id:
            self._pending_bytes -= self._pending.popleft()[1]
            if self.on_receipt is not None:
                self.on_receipt()
        self._window_open.set()

    def _on_error(self, error: pb.CommandSendError) -> None:
        self._stop(BrokerRefusedError(f"{ServerError(error.error).name}: {error.message}"))

    def _stop(self, error: QuireError) -> None:
        self._error = self._error or error
        self._window_open.set()


class Consumer:
    """Reads one topic by a durable subscription, or by a temporary one."""

    PERMITS = 1000

    def __init__(self, connection: Connection, partition: int, queue: "asyncio.Queue[Any]") -> None:
        self._connection = connection
        self._id = connection.next_id()
        self._partition = partition
        self._queue = queue
        self._used = 0
        self._durable = False
        connection.on_frame[(Kind.MESSAGE, self._id)] = self._on_message
        connection.on_lost.append(lambda: queue.put_nowait(BrokerRefusedError("the connection broke while reading")))

    async def open(
        self, topic: str, subscription: str | None, *, earliest: bool = False, after: tuple[int, int] | None = None
    ) -> None:
        """Subscribe to a topic that exists, and ask for messages. `after`: a reader begins after this entry."""
        self._durable = subscription is not None
        body = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription or f"reader-quire-cli-{self._id}",
            subType=SubscriptionType.SHARED if self._durable else SubscriptionType.EXCLUSIVE,
            consumer_id=self._id,
            durable=self._durable,
            initialPosition=InitialPosition.EARLIEST if earliest else InitialPosition.LATEST,
            force_topic_creation=False,
        )
        if not self._durable:
            edge = -1 if earliest else _AFTER_ALL
            ledger_id, entry_id = (edge, edge) if after is None else after
            body.start_message_id.ledgerId, body.start_message_id.entryId = ledger_id, entry_id
        await self._connection.ask(Kind.SUBSCRIBE, "subscribe", body)
        self._flow(self.PERMITS)

    async def last_position(self) -> tuple[int, int]:
        """Return (ledger, entry) of the topic's last message; (-1, -1) if it is empty."""
        body = pb.CommandGetLastMessageId(consumer_id=self._id)
        reply = await self._connection.ask(Kind.GET_LAST_MESSAGE_ID, "get_last_message_id", body)
        last = reply.last_message_id
        return last.ledgerId, last.entryId

    def acknowledge(self, received: Received) -> None:
        """Acknowledge the entry of a message, if it is the last one of it; does nothing without a subscription."""
        if self._durable and received.ends_entry:
            body = pb.CommandAck(consumer_id=self._id, ack_type=0)
            body.message_id.add(ledgerId=received.ledger_id, entryId=received.entry_id)
            self._connection.write(encode(pb.BaseCommand(type=Kind.ACK, ack=body)))

    def _on_message(self, frame: MessageFrame) -> None:
        position = frame.command.message.message_id
        try:
            ids = (position.ledgerId, position.entryId, self._partition)
            found = received_of(*ids, frame.entry, frame.command.message.ack_set)
        except PeerProtocolError as error:
            self._queue.put_nowait(error)
            return
        for one in found:
            self._queue.put_nowait(one)
        self._used += peek(frame.entry).num_messages
        if self._used >= self.PERMITS // 2:
            self._flow(self._used)
            self._used = 0

    def _flow(self, permits: int) -> None:
        body = pb.CommandFlow(consumer_id=self._id, messagePermits=permits)
        self._connection.write(encode(pb.BaseCommand(type=Kind.FLOW, flow=body)))


@contextlib.asynccontextmanager
async def open_client(url: str) -> AsyncIterator[Client]:
    """Open a client and close it at the end."""
    client = Client(url)
    try:
        await client.connection(url)
        yield client
    finally:
        client.close()
