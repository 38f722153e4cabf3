"""Helpers for all handlers: the broker, the names in the path, and the check that this broker owns the topic."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_bookie.errors import MetadataUnavailableError
from quire_broker.admin.answers import flag
from quire_broker.admin.forwarding import ElsewhereError, is_forwarded
from quire_broker.errors import (
    NotAllowedError,
    NotFoundError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from quire_broker.limits import HEALTH_S, OWNER_SETTLES_S
from quire_broker.names import NamespaceName, TopicName, parse_namespace, topic_of
from quire_broker.ownership.owners import Bundle, Owner
from quire_broker.policies.store import Json
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.subscription import Subscription
from quire_broker.topic.topic import Topic

BROKER: web.AppKey[RunningBroker] = web.AppKey("broker", RunningBroker)
AUTHORITATIVE: Final = "authoritative"
"""Query parameter of a request that was redirected by another broker, as in Pulsar."""
SETTLE_PAUSE_S = 0.1
MISDIRECTED: Final = 421
"""Status of a forwarded request that reached a broker which does not own its topic: nothing was done."""


def broker_of(request: web.Request) -> RunningBroker:
    """Return the broker that serves this request."""
    return request.app[BROKER]


async def metadata_answers(broker: RunningBroker) -> None:
    """Return if the metadata store answers soon. MetadataError: without it no topic can be opened."""
    try:
        async with asyncio.timeout(HEALTH_S):
            await broker.metadata.get("/admin/clusters")
    except TimeoutError as error:
        raise MetadataUnavailableError(
            f"no response in {HEALTH_S:.0f} s: open topics are served, but none is opened or assigned"
        ) from error


def namespace_of(request: web.Request) -> NamespaceName:
    """Return `{tenant}/{namespace}` of the path."""
    return parse_namespace(f"{request.match_info['tenant']}/{request.match_info['namespace']}")


async def policies_of(request: web.Request) -> Json:
    """Return the policies of the path's namespace. NotFoundError."""
    found = await broker_of(request).policies.policies(namespace_of(request))
    if found is None:
        raise NotFoundError("Namespace does not exist")
    return found


async def bundles_of(request: web.Request) -> list[Bundle]:
    """Return the namespace's bundles, or the one of the path. NotFoundError."""
    namespace = namespace_of(request)
    found = await broker_of(request).policies.bundles(namespace)
    wanted = request.match_info.get("bundle")
    if found is None or wanted not in (None, *found.names):
        raise NotFoundError("Namespace does not exist" if found is None else f"{namespace} has no bundle {wanted}")
    return [Bundle(namespace, name) for name in found.names if wanted in (None, name)]


def topic_name_of(request: web.Request) -> TopicName:
    """Return the topic of the path. aiohttp has already decoded %XX; `+` stays a plus in a path."""
    domain = request.match_info.get("domain", "persistent")
    return topic_of(domain, namespace_of(request), request.match_info["topic"])


async def owned_topic(request: web.Request, *, create: bool = False) -> Topic:
    """Return the loaded topic. Redirects (307) to another broker that owns it; TopicNotFoundError."""
    name = topic_name_of(request)
    await require_owner(request, name)
    return await topic_here(broker_of(request), name, create=create)


async def plain_topic(request: web.Request, remedy: str) -> Topic:
    """Return the loaded topic as `owned_topic` does. NotAllowedError with the remedy for a partitioned one."""
    await require_plain(request, topic_name_of(request), remedy)
    return await owned_topic(request)


async def require_plain(request: web.Request, name: TopicName, remedy: str) -> None:
    """Raise NotAllowedError with the remedy for a partitioned topic, which stores nothing itself."""
    if name.partition < 0 and await broker_of(request).policies.partitions(name):
        raise NotAllowedError(f"{name} is partitioned: {remedy}")


def subscription_of(request: web.Request, topic: Topic) -> Subscription:
    """Return the subscription of the path. SubscriptionNotFoundError."""
    found = topic.subscriptions.get(request.match_info["subscription"])
    if found is None:
        raise SubscriptionNotFoundError("Subscription not found")
    return found


async def topic_here(broker: RunningBroker, name: TopicName, *, create: bool = False) -> Topic:
    """Return the loaded topic, which this broker owns. TopicNotFoundError; NotAllowedError for one without storage."""
    if not name.persistent:
        raise NotAllowedError(f"this needs stored messages, and {name} is non-persistent")
    if not create and not await broker.topics.exists(name):
        raise TopicNotFoundError(f"Topic {name} not found")
    return await broker.topics.get(name, create=create)


async def require_owner(request: web.Request, name: TopicName) -> None:
    """Redirect (307) unless this broker owns the topic's bundle, or could take it now. ServiceNotReadyError.

    A client that was redirected once is not redirected again: ElsewhereError lets the owner answer through this broker.
    """
    owner = await settled(lambda: broker_of(request).parts.lookups.find(name))
    if owner is not None and not owner.ours:
        go_to(request, owner, str(name))


async def settled(find: Callable[[], Awaitable[Owner | None]]) -> Owner | None:
    """Return the owner; wait a few seconds while it changes. ServiceNotReadyError if it keeps changing."""
    until_s = asyncio.get_running_loop().time() + OWNER_SETTLES_S
    while True:
        try:
            return await find()
        except ServiceNotReadyError:
            if asyncio.get_running_loop().time() >= until_s:
                raise
            await asyncio.sleep(SETTLE_PAUSE_S)


def base_of(request: web.Request, owner: Owner, what: str) -> str:
    """Return the base URL of the owner's REST. ServiceNotReadyError if it has none that is safe."""
    base = owner.urls.http_tls if request.secure else owner.urls.web
    if not base:  # never go from TLS to a plaintext port: it would receive the client's token
        raise ServiceNotReadyError(f"the broker that owns {what} has no {'https' if request.secure else 'http'} port")
    return base


def misdirected(what: str, base: str) -> RefusedError:
    """Return the error for a forwarded request that reached another broker than the owner."""
    return RefusedError(MISDIRECTED, f"{what} is owned by the broker at {base}: its owner has just changed, try again")


def go_to(request: web.Request, owner: Owner, what: str) -> NoReturn:
    """Let another broker answer: by a redirect, or by forwarding if the client was redirected before."""
    base = base_of(request, owner, what)
    if is_forwarded(request):
        raise misdirected(what, base)
    if flag(request, AUTHORITATIVE):
        raise ElsewhereError(base)
    path = request.path_qs
    raise web.HTTPTemporaryRedirect(f"{base}{path}{'&' if '?' in path else '?'}{AUTHORITATIVE}=true")
