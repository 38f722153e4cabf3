"""One client's session: defines the effect of each command in each state, and answers every request.

    state      command        effect
    NEW        CONNECT        -> CONNECTED, state READY; or ERROR and close, if the client does not authenticate
    NEW        anything else  close the connection
    READY      CONNECT        ERROR with the reason, close the connection
    READY      known command  according to the table `_commands`
    READY      unknown        ERROR with the reason, close the connection
    any        connection lost: producers and consumers leave their topics

A request that must wait runs as a separate task; SEND, ACK, FLOW and other ordered commands run at once. If it takes
longer than its limit, the client gets an error, and what the request does afterwards is not answered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError, QuireError
from quire_bookie.limits import WAITING_REQUEST_BYTES
from quire_broker.errors import ServerError, ServiceNotReadyError, server_error_of
from quire_broker.limits import CLIENT_VERSION_CHARACTERS_MAX
from quire_broker.security.authorization import Rights
from quire_broker.server import discovery, schemas
from quire_broker.server.admission import Admission
from quire_broker.server.connection import Connection
from quire_broker.server.consuming import Consuming
from quire_broker.server.list_watching import ListWatching
from quire_broker.server.parts import BrokerParts
from quire_broker.server.permission_watch import Opened
from quire_broker.server.producing import Producing
from quire_broker.wire import commands
from quire_broker.wire.frames import AckRun, Frame, SendRun
from quire_broker.wire.kinds import PROTOCOL_VERSION, Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

log = logging.getLogger("quire.broker.session")
Refuse = Callable[[int, ServerError, str], bytes]


def _nothing() -> None:
    """Leave what a late request does: it attaches nothing to the connection."""


@dataclass(slots=True)
class _Answer:
    """The answer to one request, until it is given."""

    request_id: int
    what: str
    refuse: Refuse
    abandon: Callable[[], None]
    given: bool = False


class _State(Enum):
    NEW = auto()
    ASKED = auto()
    """CONNECT has arrived; its credentials are being checked."""
    READY = auto()


class Session:
    """Handles the commands of one connection."""

    def __init__(self, parts: BrokerParts, connection: Connection, on_lost: "Callable[[Session], None]") -> None:
        self._parts = parts
        self._connection = connection
        self._on_lost = on_lost
        self._state = _State.NEW
        self._running = 0
        self._frame: pb.BaseCommand | None = None
        """The command being handled."""
        self._admission = Admission(parts, connection)
        call_soon = asyncio.get_running_loop().call_soon
        self.producing = Producing(parts, connection, call_soon, self._rights)
        self.consuming = Consuming(parts, connection, self._rights)
        self.watching = ListWatching(parts, connection, self._rights)
        self._commands: dict[int, Callable[[pb.BaseCommand], None]] = {
            Kind.ACK: lambda command: self.consuming.acknowledge(command.ack),
            Kind.FLOW: lambda command: self.consuming.flow(command.flow),
            Kind.PING: self._ping,
            Kind.PONG: self._pong,
            Kind.PRODUCER: self._producer,
            Kind.SUBSCRIBE: self._subscribe,
            Kind.CLOSE_PRODUCER: lambda command: connection.write(self.producing.close(command.close_producer)),
            Kind.CLOSE_CONSUMER: self._close_consumer,
            Kind.REDELIVER: lambda command: self.consuming.redeliver(command.redeliver),
            Kind.UNSUBSCRIBE: self._unsubscribe,
            Kind.SEEK: self._seek,
            Kind.GET_LAST_MESSAGE_ID: self._last_message_id,
            Kind.CONSUMER_STATS: lambda command: connection.write(self.consuming.stats(command.consumer_stats)),
            Kind.PARTITIONED_METADATA: self._partitions,
            Kind.LOOKUP: self._lookup,
            Kind.GET_TOPICS_OF_NAMESPACE: self._topics,
            Kind.GET_SCHEMA: self._get_schema,
            Kind.GET_OR_CREATE_SCHEMA: self._get_or_create_schema,
            Kind.AUTH_RESPONSE: lambda command: self._admission.answered(command.auth_response),
            Kind.WATCH_TOPIC_LIST: self._watch_topics,
            Kind.WATCH_TOPIC_LIST_CLOSE: lambda command: connection.write(
                self.watching.close(command.watch_topic_list_close)
            ),
        }

    def handle(self, frame: Frame) -> None:
        """Handle one frame, in the order of arrival."""
        if isinstance(frame, SendRun):
            self._require_ready("SEND")
            self.producing.publish(frame)
            return
        if isinstance(frame, AckRun):
            self._require_ready("ACK")
            self.consuming.acknowledge_entries(frame)
            return
        if not isinstance(frame, pb.BaseCommand):
            raise PeerProtocolError("MESSAGE is for clients only")
        if frame.type == Kind.CONNECT:
            self._connect(frame.connect)
            return
        if self._state is not _State.READY:
            self._require_ready(str(frame.type))
        self._frame = frame
        command = self._commands.get(frame.type)
        if command is not None:
            command(frame)
            return
        refused = commands.transaction_failed(frame, ServerError.NOT_ALLOWED, "transactions are not supported yet")
        if refused is None:
            raise PeerProtocolError(f"unknown command type {frame.type}")
        self._connection.write(refused[1])

    def last_bytes(self, error: PeerProtocolError) -> bytes:
        """Return an ERROR with the reason; nothing for a client that is not admitted."""
        if self._state is not _State.READY:
            return b""
        return commands.error(commands.NO_REQUEST, server_error_of(error), str(error))

    def lost(self) -> None:
        """Remove producers and consumers: the connection is gone."""
        self._admission.lost()
        self.producing.lost()
        self.consuming.lost()
        self.watching.lost()
        self._on_lost(self)

    @property
    def is_ready(self) -> bool:
        """Whether the client was admitted."""
        return self._state is _State.READY

    def close(self) -> None:
        """Disconnect the client."""
        self._connection.close()

    def give_way(self) -> None:
        """Disconnect the client to make space for another one."""
        self._connection.close()

    def check_credentials(self, *, keys_changed: bool) -> None:
        """Check whether the client's credentials are still valid."""
        self._admission.check(keys_changed)

    def opened(self) -> list[Opened]:
        """Return producers, consumers and watchers, for checks of their permissions."""
        return [*self.producing.opened(), *self.consuming.opened(), *self.watching.opened()]

    def _rights(self) -> Rights:
        return self._admission.rights

    def _require_ready(self, what: str) -> None:
        if self._state is not _State.READY:
            raise PeerProtocolError(f"command {what} before {'CONNECT' if self._state is _State.NEW else 'CONNECTED'}")

    def _connect(self, request: pb.CommandConnect) -> None:
        if self._state is not _State.NEW:
            raise PeerProtocolError("a second CONNECT")
        self._state = _State.ASKED
        self._admission.connect(request, partial(self._admitted, request))

    def _admitted(self, request: pb.CommandConnect) -> None:
        self._state = _State.READY
        version = min(PROTOCOL_VERSION, request.protocol_version)
        client = request.client_version[:CLIENT_VERSION_CHARACTERS_MAX]
        self.producing.client_version = client
        self.consuming.client_connected(client, version, request.feature_flags)
        settings = self._parts.settings
        self._connection.write(
            commands.connected(
                settings.server_version,
                version,
                settings.message_bytes_max,
                topic_watchers=settings.patterns_evaluated,
            )
        )

    def _ping(self, command: pb.BaseCommand) -> None:
        self._connection.write(commands.PONG)

    def _pong(self, command: pb.BaseCommand) -> None:
        """Do nothing: receiving any bytes already counts as a sign of life."""

    # requests with an id

    def _request(
        self,
        request_id: int,
        work: Awaitable[bytes | None],
        what: str,
        refuse: Refuse = commands.error,
        abandon: Callable[[], None] = _nothing,
    ) -> None:
        """Run `work` as a task; its result is the answer, and an exception becomes an error response.

        `abandon` is called when it takes too long.
        """
        self._parts.stats.requests += 1
        if self._running >= self._parts.settings.requests_max:
            self._parts.stats.requests_failed += 1
            if asyncio.iscoroutine(work):
                work.close()
            self._connection.write(refuse(request_id, ServerError.TOO_MANY_REQUESTS, "too many requests at once"))
            return
        self._running += 1
        # Twice, because a parsed command needs more memory than its bytes.
        size_bytes = WAITING_REQUEST_BYTES + (0 if self._frame is None else 2 * self._frame.ByteSize())
        self._parts.memory.hold(size_bytes)
        answer = _Answer(request_id, what, refuse, abandon)
        self._parts.background.start(self._work(answer, work, size_bytes), what)

    async def _work(self, answer: _Answer, work: Awaitable[bytes | None], size_bytes: int) -> None:
        limit_s = self._parts.settings.request_s
        timer = asyncio.get_running_loop().call_later(limit_s, self._give_up, answer, limit_s)
        try:
            data = await self._result(answer, work)
        finally:
            timer.cancel()
            self._running -= 1
            self._parts.memory.let_go(size_bytes)
        if data is not None and not answer.given:
            self._connection.write(data)

    async def _result(self, answer: _Answer, work: Awaitable[bytes | None]) -> bytes | None:
        try:
            return await work
        except PeerProtocolError as error:
            log.warning("%s is disconnected: %s", self._connection.peer, error)
            self._connection.write(self._refused(answer, error))
            self._connection.close()
            return None
        except QuireError as error:
            return self._refused(answer, error)
        except Exception as error:
            log.exception("%s of %s failed", answer.what, self._connection.peer)
            return self._refused(answer, error)

    def _give_up(self, answer: _Answer, limit_s: float) -> None:
        """Answer a request that takes too long. It goes on: other clients may wait for what it opens."""
        error = ServiceNotReadyError(
            f"{answer.what} took longer than {limit_s:g} s (brokerClientRequestTimeoutSeconds); try again"
        )
        log.warning("%s of %s took longer than %g s", answer.what, self._connection.peer, limit_s)
        self._connection.write(self._refused(answer, error))
        answer.given = True
        answer.abandon()

    def _refused(self, answer: _Answer, error: Exception) -> bytes:
        self._parts.stats.requests_failed += not answer.given
        log.debug("%s of %s is refused: %s", answer.what, self._connection.peer, error)
        message = str(error) if isinstance(error, QuireError) else f"internal error: {type(error).__name__}"
        return answer.refuse(answer.request_id, server_error_of(error), message)

    def _producer(self, command: pb.BaseCommand) -> None:
        request = command.producer
        abandon = partial(self.producing.abandon, request.producer_id)
        self._request(request.request_id, self.producing.create(request), "PRODUCER", abandon=abandon)

    def _subscribe(self, command: pb.BaseCommand) -> None:
        request = command.subscribe
        abandon = partial(self.consuming.abandon, request.consumer_id)
        self._request(request.request_id, self.consuming.subscribe(request), "SUBSCRIBE", abandon=abandon)

    def _close_consumer(self, command: pb.BaseCommand) -> None:
        request = command.close_consumer
        self._request(request.request_id, self.consuming.close(request), "CLOSE_CONSUMER")

    def _unsubscribe(self, command: pb.BaseCommand) -> None:
        request = command.unsubscribe
        self._request(request.request_id, self.consuming.unsubscribe(request), "UNSUBSCRIBE")

    def _seek(self, command: pb.BaseCommand) -> None:
        request = command.seek
        self._request(request.request_id, self.consuming.seek(request), "SEEK")

    def _last_message_id(self, command: pb.BaseCommand) -> None:
        request = command.get_last_message_id
        self._request(request.request_id, self.consuming.last_message_id(request), "GET_LAST_MESSAGE_ID")

    def _partitions(self, command: pb.BaseCommand) -> None:
        request = command.partition_metadata
        work = discovery.partitions(self._parts, self._rights(), request)
        self._request(request.request_id, work, "PARTITIONED_METADATA", commands.partitions_failed)

    def _lookup(self, command: pb.BaseCommand) -> None:
        request = command.lookup
        work = discovery.lookup(self._parts, self._rights(), request, self._connection.listener or "")
        self._request(request.request_id, work, "LOOKUP", commands.lookup_failed)

    def _topics(self, command: pb.BaseCommand) -> None:
        request = command.get_topics_of_namespace
        work = discovery.topics_of_namespace(self._parts, self._rights(), request)
        self._request(request.request_id, work, "GET_TOPICS_OF_NAMESPACE")

    def _get_schema(self, command: pb.BaseCommand) -> None:
        request = command.get_schema
        work = schemas.answer_get(self._parts, self._rights(), request)
        refuse = partial(commands.schema_failed, Kind.GET_SCHEMA_RESPONSE)
        self._request(request.request_id, work, "GET_SCHEMA", refuse)

    def _get_or_create_schema(self, command: pb.BaseCommand) -> None:
        request = command.get_or_create_schema
        work = schemas.answer_get_or_create(self._parts, self._rights(), request)
        refuse = partial(commands.schema_failed, Kind.GET_OR_CREATE_SCHEMA_RESPONSE)
        self._request(request.request_id, work, "GET_OR_CREATE_SCHEMA", refuse)

    def _watch_topics(self, command: pb.BaseCommand) -> None:
        request = command.watch_topic_list
        abandon = partial(self.watching.end, request.watcher_id)
        self._request(request.request_id, self.watching.watch(request), "WATCH_TOPIC_LIST", abandon=abandon)
