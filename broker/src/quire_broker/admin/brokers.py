"""/admin/v2/brokers and /lookup: list brokers, check health, find the broker of a topic; drain this one."""

from collections.abc import Iterator

from aiohttp import web

from quire_broker import __version__
from quire_broker.admin.answers import answer, done
from quire_broker.admin.clusters import require_own_cluster
from quire_broker.admin.context import broker_of, go_to, metadata_answers, topic_name_of
from quire_broker.admin.descriptions import BOOLEAN, NAMES, OBJECT, PLAIN, TEXT, Query, described
from quire_broker.admin.routes import Need, Reach, Route
from quire_broker.errors import ConflictError, NotFoundError, ServiceNotReadyError
from quire_broker.ownership.isolation import host_of, policy_for, urls_of
from quire_broker.ownership.owners import Owner
from quire_broker.ownership.registration import BROKERS, registered


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    for root in ("/admin/v2/brokers", "/admin/brokers"):
        yield Route("GET", f"{root}/health", health, Need.SUPER_USER, Reach.PROBE)
        yield Route("GET", f"{root}/ready", health, Need.SUPER_USER, Reach.PROBE)
        yield Route("GET", f"{root}/version", version, Need.A_ROLE)
        yield Route("GET", f"{root}", list_brokers, Need.SUPER_USER)
        yield Route("GET", f"{root}/backlog-quota-check", check_quotas, Need.SUPER_USER)
        yield Route("GET", f"{root}/{{cluster}}", list_brokers, Need.SUPER_USER)
        yield Route("GET", f"{root}/{{cluster}}/{{broker}}/ownedNamespaces", owned, Need.SUPER_USER)
    yield Route("GET", "/admin/quire/drain", drain_state, Need.SUPER_USER)
    yield Route("PUT", "/admin/quire/drain", drain, Need.SUPER_USER)
    path = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
    yield Route("GET", path, lookup, Need.LOOK_UP, Reach.CLIENTS)
    yield Route("GET", path + "/bundle", bundle, Need.LOOK_UP, Reach.CLIENTS)


@described(returns=TEXT, media=PLAIN)
async def health(request: web.Request) -> web.Response:
    """Return `ok` if the metadata store answers: without it no topic can be loaded."""
    await metadata_answers(broker_of(request))
    return web.Response(text="ok")


@described(returns=TEXT, media=PLAIN)
async def version(request: web.Request) -> web.Response:
    """Return our version as text."""
    return web.Response(text=f"quire-{__version__}")


@described(returns=NAMES)
async def list_brokers(request: web.Request) -> web.Response:
    """Return the ids of the available brokers."""
    broker = broker_of(request)
    cluster = request.match_info.get("cluster", broker.settings.cluster)
    if cluster not in await broker.policies.clusters():
        raise NotFoundError("Cluster does not exist")
    return answer(await broker.metadata.children(BROKERS))


async def check_quotas(request: web.Request) -> web.Response:
    """Check the backlog quotas of all topics of this broker now, instead of at the next interval."""
    await broker_of(request).parts.backlog_quotas.round()
    return done()


@described(returns=OBJECT)
async def owned(request: web.Request) -> web.Response:
    """Return the bundles of a broker, from that broker: `{bundle: {"broker_assignment", "is_controlled", ...}}`."""
    broker, wanted = broker_of(request), request.match_info["broker"]
    require_own_cluster(request)
    if wanted != broker.broker_id:
        data = await registered(broker.metadata, wanted) if "/" not in wanted else None
        if data is None:
            raise NotFoundError(f"{wanted[:100]} is not an available broker; GET /admin/v2/brokers lists them")
        go_to(request, Owner(urls_of(data), ours=False), f"the list of bundles of {wanted}")
    isolation, held = await broker.policies.isolation(), sorted(broker.owners.held, key=str)
    policies = {name: policy_for(name, isolation) for name in {str(bundle.namespace) for bundle in held}}
    found = {}
    for bundle in held:
        policy = policies[str(bundle.namespace)]
        first = policy is not None and policy.names_first(host_of(wanted))
        assignment = "shared" if policy is None else "primary" if first else "secondary"
        found[str(bundle)] = {"broker_assignment": assignment, "is_controlled": policy is not None, "is_active": True}
    return answer(found)


async def drain_state(request: web.Request) -> web.Response:
    """Return `{"draining", "moved", "bundles", "others"}`: bundles moved since the start, those left, and a successor.

    `others`: another broker takes bundles, so that a drain can begin.
    """
    broker = broker_of(request)
    return answer(
        {
            "draining": broker.owners.draining,
            "moved": broker.handover.moved,
            "bundles": broker.owners.left,
            "others": await broker.isolation.others_take_bundles(),
        }
    )


@described(Query("wait", BOOLEAN, "false: answer at once"))
async def drain(request: web.Request) -> web.Response:
    """Hand every bundle to other brokers: `{"moved": n, "bundles": n}`, `bundles` being those that are left here.

    409 if there is no other broker to take them: the drain cannot be withdrawn. With `?wait=false` the answer comes at
    once, and `drain_state` has the figures. A repeated request continues an earlier one.
    """
    broker = broker_of(request)
    if not await broker.isolation.others_take_bundles():
        raise ConflictError("no other broker takes bundles, so their topics would stop; start one, or stop this broker")
    before = broker.handover.moved
    if request.query.get("wait") == "false":
        broker.background.start(broker.drain(), "drain")
    else:
        await broker.drain()
    return answer({"moved": broker.handover.moved - before, "bundles": broker.owners.left})


@described(Query("listenerName", TEXT, "listener whose addresses are returned"), returns=OBJECT)
async def lookup(request: web.Request) -> web.Response:
    """Return the broker that serves a topic."""
    owner = await broker_of(request).parts.lookups.find(topic_name_of(request))
    if owner is None:
        raise ServiceNotReadyError("no broker owns the topic's bundle")
    name = request.query.get("listenerName") or request.headers.get("X-Pulsar-ListenerName") or ""
    urls = owner.urls.of_listener(name)
    found = {
        "brokerUrl": urls.native,
        "brokerUrlTls": urls.native_tls,
        "httpUrl": urls.http,
        "httpUrlTls": urls.http_tls,
        "nativeUrl": urls.native,
    }
    return answer({key: url for key, url in found.items() if url} | {"brokerUrlSsl": urls.native_tls})


@described(returns=TEXT, media=PLAIN)
async def bundle(request: web.Request) -> web.Response:
    """Return the range of the topic's bundle as text."""
    return web.Response(text=await broker_of(request).parts.lookups.bundle_range(topic_name_of(request)))
