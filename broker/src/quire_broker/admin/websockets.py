"""WebSocket producers, consumers and readers: their routes, and the credentials of their clients.

GET /ws/v2/producer/{domain}/{tenant}/{namespace}/{topic}
GET /ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}
GET /ws/v2/reader/{domain}/{tenant}/{namespace}/{topic}
GET /ws/v3/consumer/{subscription}?topics=A,B
GET /ws/v3/consumer/{subscription}?topicsPattern=TENANT/NAMESPACE/REGULAR_EXPRESSION

Credentials are in the header Authorization, or a token in the query parameter `token`, as browsers cannot set headers.
The service connects to brokers with them. A client's certificate cannot be passed on.
"""

from collections.abc import Iterable, Iterator

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.access import CLIENT, ROLES, credentials_in
from quire_broker.admin.context import broker_of, topic_name_of
from quire_broker.admin.descriptions import TEXT, Query, described
from quire_broker.admin.routes import Need, Reach, Route
from quire_broker.limits import WEBSOCKET_PARTITIONS_MAX
from quire_broker.names import parse_topic
from quire_broker.security.authorization import Rights
from quire_broker.security.credentials import CERTIFICATE
from quire_broker.websocket.parameters import CONSUMER_NAMES, PRODUCER_NAMES, READER_NAMES
from quire_broker.websocket.service import SocketClient, WebSocketService

WEBSOCKETS = web.AppKey("websockets", WebSocketService)

_PATHS = (
    "/ws/v2/producer/DOMAIN/TENANT/NAMESPACE/TOPIC",
    "/ws/v2/consumer/DOMAIN/TENANT/NAMESPACE/TOPIC/SUBSCRIPTION",
    "/ws/v2/reader/DOMAIN/TENANT/NAMESPACE/TOPIC",
    "/ws/v3/consumer/SUBSCRIPTION?topics=A,B",
    "/ws/v3/consumer/SUBSCRIPTION?topicsPattern=TENANT/NAMESPACE/PATTERN",
)
_PATTERN = "topicsPattern=TENANT/NAMESPACE/PATTERN"
_TOKEN = Query("token", TEXT, "the token of a client that cannot send headers")


def _queries(names: Iterable[str]) -> Iterator[Query]:
    yield _TOKEN
    for name in names:
        yield Query(name, TEXT, "see docs/websocket.md")


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
    yield Route("GET", f"/ws/v2/producer/{topic}", produce, Need.PRODUCE, Reach.SOCKETS)
    yield Route("GET", f"/ws/v2/consumer/{topic}/{{subscription}}", consume, Need.CONSUME, Reach.SOCKETS)
    yield Route("GET", f"/ws/v2/reader/{topic}", read, Need.CONSUME, Reach.SOCKETS)
    yield Route("GET", "/ws/v3/consumer/{subscription}", consume_topics, Need.A_ROLE, Reach.SOCKETS)
    yield Route("GET", "/ws/{rest:.*}", unknown, Need.A_ROLE, Reach.SOCKETS)


@described(*_queries(PRODUCER_NAMES))
async def produce(request: web.Request) -> web.StreamResponse:
    """Serve a producer."""
    return await _service(request).produce(request, topic_name_of(request), _client(request))


@described(*_queries(CONSUMER_NAMES))
async def consume(request: web.Request) -> web.StreamResponse:
    """Serve a consumer of one topic."""
    names, subscription = [topic_name_of(request)], request.match_info["subscription"]
    return await _service(request).consume(request, names, subscription, _client(request))


@described(*_queries(READER_NAMES))
async def read(request: web.Request) -> web.StreamResponse:
    """Serve a reader."""
    return await _service(request).read(request, topic_name_of(request), _client(request))


@described(
    Query("topics", TEXT, "full names, joined by commas"),
    Query("topicsPattern", TEXT, "tenant/namespace/ and a regular expression, instead of topics"),
    *_queries(CONSUMER_NAMES),
)
async def consume_topics(request: web.Request) -> web.StreamResponse:
    """Serve a consumer of several topics; the brokers check the permission for each. RefusedError 400."""
    service = _service(request)
    subscription, pattern = request.match_info["subscription"], request.query.get("topicsPattern")
    if (pattern is None) == ("topics" not in request.query):
        raise RefusedError(400, f"name the topics with either topics=A,B or {_PATTERN}")
    if pattern is not None:
        matched = parse_topic(pattern)
        if not matched.persistent:
            raise RefusedError(400, f"topicsPattern matches persistent topics only: {_PATTERN}")
        return await service.consume_matching(request, matched, subscription, _client(request))
    names = [
        parse_topic(text) for text in request.query.get("topics", "").split(",")[: WEBSOCKET_PARTITIONS_MAX + 1] if text
    ]
    if not names or len(set(names)) < len(names):
        raise RefusedError(400, "topics must name different topics: topics=A,B")
    return await service.consume(request, names, subscription, _client(request))


async def unknown(request: web.Request) -> web.StreamResponse:
    """Answer 404 with the paths that there are."""
    _service(request)
    raise RefusedError(404, f"{request.path[:100]} serves no WebSockets; the paths are {', '.join(_PATHS)}")


def _service(request: web.Request) -> WebSocketService:
    """Return the service. RefusedError 404 if it is off."""
    found = request.app[WEBSOCKETS]
    if not found.settings.enabled:
        raise RefusedError(404, "this broker serves no WebSockets: webSocketServiceEnabled=false")
    return found


def _client(request: web.Request) -> SocketClient:
    """Return the client with its credentials; empty: none. RefusedError 403."""
    client, shown = request.get(CLIENT), ("", "")
    if client is not None:
        if client.method == CERTIFICATE:
            raise RefusedError(
                403, "WebSocket sessions do not pass on a client's certificate: send a token or a password"
            )
        shown = credentials_in(request)
    return SocketClient(shown, Rights(broker_of(request).authorization, *request.get(ROLES, ("",))))
