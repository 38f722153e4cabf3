"""The WebSocket service of one broker: opens sessions, bounds them, ends them when the broker stops."""

import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_broker import limits
from quire_broker.errors import ServerError, ServiceNotReadyError
from quire_broker.names import TopicName, parse_topic
from quire_broker.security.authorization import Rights
from quire_broker.server.broker import RunningBroker
from quire_broker.server.broker_link import LinkTarget, RefusedByBrokerError
from quire_broker.server.budget import PublishBudget
from quire_broker.websocket.attachment import Links, hello
from quire_broker.websocket.consumer_session import ConsumerSession
from quire_broker.websocket.dead_letters import DeadLetters
from quire_broker.websocket.parameters import (
    ConsumerParameters,
    Query,
    consumer_parameters,
    producer_parameters,
    reader_parameters,
    require_few,
)
from quire_broker.websocket.pattern_session import PatternSession
from quire_broker.websocket.producer_session import ProducerSession
from quire_broker.websocket.session import GOING_AWAY, Session
from quire_broker.websocket.stats import SessionStats
from quire_broker.websocket.text_socket import TextSocket

_STATUS = {
    ServerError.AUTHENTICATION: 401,
    ServerError.AUTHORIZATION: 403,
    ServerError.TOPIC_NOT_FOUND: 404,
    ServerError.SUBSCRIPTION_NOT_FOUND: 404,
    ServerError.CONSUMER_BUSY: 409,
    ServerError.PRODUCER_BUSY: 409,
    ServerError.PRODUCER_FENCED: 409,
    ServerError.INCOMPATIBLE_SCHEMA: 409,
    ServerError.NOT_ALLOWED: 412,
    ServerError.INVALID_TOPIC_NAME: 412,
    ServerError.TOO_MANY_REQUESTS: 429,
    ServerError.PRODUCER_BLOCKED_QUOTA_ERROR: 503,
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEPTION: 503,
    ServerError.TOPIC_TERMINATED: 503,
    ServerError.SERVICE_NOT_READY: 503,
    ServerError.METADATA: 503,
}
"""HTTP codes of a broker's refusals, as of Pulsar where it has one."""
Tls = Callable[[], Awaitable[ssl.SSLContext]]
P = TypeVar("P")
_ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class SocketClient:
    """Who opens a session: the credentials that it shows to brokers, and its rights."""

    shown: tuple[str, str]
    rights: Rights


class WebSocketService:
    """Owns the sessions of a broker. `tls`: returns the context for connections to brokers."""

    def __init__(self, broker: RunningBroker, tls: Tls) -> None:
        self._broker = broker
        self._tls = tls
        self.settings = broker.settings.websocket
        self._budget = PublishBudget(limits.WEBSOCKET_BUFFER_BYTES)
        self.stats = SessionStats()
        self._sessions: set[Session] = set()
        self._seats = 0
        self._stopped = False

    @property
    def sessions(self) -> int:
        """The number of open sessions, with those that are being opened."""
        return self._seats

    async def produce(self, request: web.Request, name: TopicName, client: SocketClient) -> web.StreamResponse:
        """Serve a producer. RefusedError, QuireError."""
        wanted = _parsed(producer_parameters, request.query)
        with self._seat(request):
            topics = await self._topics_of([name], client.rights.require_produce)
            broker = self._broker
            session = ProducerSession(
                self.settings,
                self._links(client, secure=request.secure),
                topics,
                wanted,
                self._budget,
                self.stats,
                clock=broker.clock,
                chance=broker.chance,
                message_bytes_max=broker.settings.session.message_bytes_max,
            )
            return await self._serve(request, session)

    async def consume(
        self, request: web.Request, names: Sequence[TopicName], subscription: str, client: SocketClient
    ) -> web.StreamResponse:
        """Serve a consumer. RefusedError, QuireError."""
        wanted = _parsed(consumer_parameters, request.query)
        with self._seat(request):
            topics = await self._topics_of(names, lambda name: client.rights.require_subscribe(name, subscription))
            links = self._links(client, secure=request.secure)
            letters = wanted.dead_letter_topic or f"{names[0]}-{subscription}-DLQ"
            dead_letters = await self._dead_letters(client, links, letters, subscription, wanted)
            session = ConsumerSession(
                self.settings, links, topics, subscription, wanted, self._budget, self.stats, dead_letters
            )
            return await self._serve(request, session)

    async def consume_matching(
        self, request: web.Request, pattern: TopicName, subscription: str, client: SocketClient
    ) -> web.StreamResponse:
        """Serve a consumer of all topics that match; the local name is the pattern. RefusedError, QuireError."""
        wanted = _parsed(consumer_parameters, request.query)
        if wanted.redeliveries_max and not wanted.dead_letter_topic:
            raise RefusedError(400, "maxRedeliverCount with topicsPattern needs deadLetterTopic: the topics share it")
        with self._seat(request):
            links = self._links(client, secure=request.secure)
            dead_letters = await self._dead_letters(client, links, wanted.dead_letter_topic, subscription, wanted)
            session = PatternSession(
                self.settings, links, pattern, subscription, wanted, self._budget, self.stats, dead_letters
            )
            return await self._serve(request, session)

    async def read(self, request: web.Request, name: TopicName, client: SocketClient) -> web.StreamResponse:
        """Serve a reader. RefusedError, QuireError."""
        wanted = _parsed(reader_parameters, request.query)
        with self._seat(request):
            topics = await self._topics_of([name], lambda name: client.rights.require_subscribe(name, ""))
            links = self._links(client, secure=request.secure)
            subscription = f"reader-{self._broker.chance.token(5).hex()}"
            session = ConsumerSession(self.settings, links, topics, subscription, wanted, self._budget, self.stats)
            return await self._serve(request, session)

    async def close(self, _: object = None) -> None:
        """End all sessions, and open none."""
        self._stopped = True
        for session in self._sessions:
            session.end(GOING_AWAY, "the broker stops")

    @contextmanager
    def _seat(self, request: web.Request) -> Iterator[None]:
        """Count a session. RefusedError above the bound, and for a request that opens no WebSocket."""
        if request.method != "GET" or not web.WebSocketResponse().can_prepare(request).ok:
            raise RefusedError(400, "this path serves WebSockets: connect with a WebSocket client")
        if self._stopped:
            raise RefusedError(503, "the broker stops: connect again")
        if self.sessions >= self.settings.sessions_max:
            raise RefusedError(503, f"{self.sessions} WebSocket sessions are open (webSocketMaxSessions): try again")
        self._seats += 1
        try:
            yield
        finally:
            self._seats -= 1

    async def _serve(self, request: web.Request, session: Session) -> web.StreamResponse:
        socket = TextSocket(
            autoping=False, compress=False, max_msg_size=self.settings.text_bytes_max, timeout=limits.CLOSE_FLUSH_S
        )
        try:
            await session.open()
            await socket.prepare(request)
            self.stats.opened += 1
            self._sessions.add(session)
            if self._stopped:
                session.end(GOING_AWAY, "the broker stops")
            await session.run(socket)
            return socket
        except RefusedByBrokerError as error:
            self.stats.refused += 1
            raise RefusedError(_STATUS.get(error.code, 500), str(error)) from error
        finally:
            self._sessions.discard(session)
            session.close()

    async def _dead_letters(
        self, client: SocketClient, links: Links, topic: str, subscription: str, wanted: ConsumerParameters
    ) -> DeadLetters | None:
        """Return the publisher of dead letters; None if the client has not asked for one. QuireError."""
        if not wanted.redeliveries_max:
            return None
        places = await self._topics_of([parse_topic(topic)], client.rights.require_look_up)
        (place,) = self._broker.chance.sample(places, 1)
        return DeadLetters(links, place, subscription, wanted.redeliveries_max, self._broker.clock)

    def _links(self, client: SocketClient, *, secure: bool) -> Links:
        return Links(partial(self._target, secure=secure), hello(client.shown), self._broker.memory)

    async def _topics_of(
        self, names: Sequence[TopicName], require: Callable[[TopicName], Awaitable[None]]
    ) -> list[TopicName]:
        """Return the topics and the partitions of partitioned ones, which may be created. RefusedError for too many.

        `require` raises AuthorizationError before a topic is looked up that its client may not use.
        """
        found: list[TopicName] = []
        for name in names:
            await require(name)
            count = await self._broker.topics.partitions_for_client(name, auto_create=True)
            found += name.partitions(count) if count else [name]
        require_few(len(found))
        return found

    async def _target(self, topic: TopicName, *, secure: bool) -> LinkTarget:
        """Return the address of the owner. A client's token that came over TLS is sent on over TLS."""
        broker = self._broker
        owner = await broker.parts.lookups.find(topic)
        if owner is None:
            raise ServiceNotReadyError(f"no broker owns {topic}")
        urls = broker.ports.urls if owner.ours else owner.urls
        url = urls.native_tls if secure or not urls.native else urls.native
        if not url:
            raise ServiceNotReadyError(f"the broker that owns {topic} has no port with TLS")
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None, "registered by a broker"
        host = parts.hostname
        if owner.ours:
            listen = broker.settings.listen
            host = "127.0.0.1" if listen in _ANY else listen
        tls = await self._tls() if url.startswith("pulsar+ssl:") else None
        return LinkTarget(host, parts.port, tls, parts.hostname)


def _parsed(parse: Callable[[Query], P], query: Query) -> P:
    """Return the parameters of a request. RefusedError 400."""
    try:
        return parse(query)
    except PeerProtocolError as error:
        raise RefusedError(400, str(error)) from error
