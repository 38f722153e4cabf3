"""Helpers for all handlers: the broker, the names in the path, and the check that this broker owns the topic."""

from aiohttp import web

from quire_broker.errors import ServiceNotReadyError, TopicNotFoundError
from quire_broker.names import NamespaceName, TopicName, parse_namespace, topic_of
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.topic import Topic

BROKER: web.AppKey[RunningBroker] = web.AppKey("broker", RunningBroker)


def broker_of(request: web.Request) -> RunningBroker:
    """Return the broker that serves this request."""
    return request.app[BROKER]


def namespace_of(request: web.Request) -> NamespaceName:
    """Return `{tenant}/{namespace}` of the path."""
    return parse_namespace(f"{request.match_info['tenant']}/{request.match_info['namespace']}")


def topic_name_of(request: web.Request) -> TopicName:
    """Return the topic of the path. aiohttp has already decoded %XX; `+` stays a plus in a path."""
    domain = request.match_info.get("domain", "persistent")
    return topic_of(domain, namespace_of(request), request.match_info["topic"])


async def owned_topic(request: web.Request, *, create: bool = False) -> Topic:
    """Return the loaded topic. Redirects (307) to another broker that owns it; TopicNotFoundError."""
    name = topic_name_of(request)
    broker = broker_of(request)
    await require_owner(request, name)
    if not create and not await broker.topics.exists(name):
        raise TopicNotFoundError(f"Topic {name} not found")
    return await broker.topics.get(name, create=create)


async def require_owner(request: web.Request, name: TopicName) -> None:
    """Redirect (307) unless this broker owns the topic's bundle, or could take it now. ServiceNotReadyError."""
    owner = await broker_of(request).parts.lookups.find(name)
    if owner is None or owner.ours:
        return
    urls = owner.urls
    base = urls.http_tls if request.secure else urls.web
    if not base:  # never redirect from TLS to a plaintext port: it would receive the client's token
        raise ServiceNotReadyError(f"the broker that owns {name} has no {'https' if request.secure else 'http'} port")
    raise web.HTTPTemporaryRedirect(f"{base}{request.path_qs}")
