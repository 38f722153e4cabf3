"""Owns the HTTP server of a broker: routes, serves, stops. The other modules of this package handle the paths."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable, Iterator

from aiohttp import web

from quire_bookie.admin.bounded_http import BoundedHttp
from quire_bookie.admin.origin import from_no_other_site
from quire_bookie.admin.routes import register
from quire_bookie.admin.scraping import measure_stalls
from quire_bookie.admin.slow_requests import slow_requests
from quire_bookie.env.background import Background
from quire_bookie.exposition.rendering import Collector, Exposition
from quire_bookie.settings.http import HttpLimits
from quire_broker.admin import (
    anti_affinity,
    backlog_quotas,
    balancing,
    bookie_affinity,
    broker_config,
    brokers,
    browsing,
    cluster_links,
    clusters,
    compaction,
    console,
    internal_info,
    isolated_brokers,
    ledgers,
    live_rates,
    messages,
    metadata_nodes,
    namespace_properties,
    namespaces,
    offload,
    openapi,
    overview,
    peeking,
    permissions,
    policy_origins,
    properties,
    publishing,
    racks,
    resource_groups,
    resource_quotas,
    schemas,
    shadow_topics,
    status,
    subscriptions,
    topic_policies,
    topics,
    unserved,
    websockets,
)
from quire_broker.admin.access import authorized
from quire_broker.admin.answers import BODY_BYTES_MAX, errors_as_json
from quire_broker.admin.audit import audited
from quire_broker.admin.broker_collector import BrokerCollector
from quire_broker.admin.context import BROKER
from quire_broker.admin.forwarding import FORWARDING, Forwarding, forwarded_to_owner
from quire_broker.admin.outage import LEFT_RUNNING, answered_without_metadata
from quire_broker.admin.routes import ROUTES, Need, Route
from quire_broker.admin.websocket_collector import WebSocketCollector
from quire_broker.limits import METADATA_SCANS_MAX, PUBLISHED_BY_HTTP_MAX
from quire_broker.server.broker import RunningBroker
from quire_broker.websocket.service import WebSocketService

log = logging.getLogger("quire.broker.admin")
PARTS = (
    balancing,
    broker_config,
    brokers,
    racks,
    resource_groups,
    resource_quotas,
    bookie_affinity,
    isolated_brokers,
    clusters,
    cluster_links,
    unserved,
    anti_affinity,
    permissions,
    backlog_quotas,
    offload,
    compaction,
    namespace_properties,
    namespaces,
    topic_policies,
    shadow_topics,
    topics,
    internal_info,
    subscriptions,
    peeking,
    messages,
    properties,
    schemas,
    ledgers,
    metadata_nodes,
    overview,
    policy_origins,
    browsing,
    publishing,
    console,
    live_rates,
    openapi,
    status,
    websockets,
)


def all_routes() -> Iterator[Route]:
    """Yield the routes of a broker. Of two that match a path, the first one serves it."""
    for part in PARTS:
        yield from part.routes()


def make_app(broker: RunningBroker, collectors: Iterable[Collector] = ()) -> web.Application:
    """Return an application with all routes of a broker. `collectors`: metrics of other services in this process."""
    slow = slow_requests(lambda: broker.parts.slow)
    checks = [
        slow,
        audited,
        errors_as_json,
        from_no_other_site,
        answered_without_metadata,
        authorized,
        forwarded_to_owner,
    ]
    app = web.Application(middlewares=checks, client_max_size=BODY_BYTES_MAX)
    app[BROKER] = broker
    app[publishing.PUBLISHING] = asyncio.Semaphore(PUBLISHED_BY_HTTP_MAX)
    app[metadata_nodes.SCANS] = asyncio.Semaphore(METADATA_SCANS_MAX)
    app[LEFT_RUNNING] = left = Background(log)
    app.on_cleanup.append(lambda _: left.close())
    app[FORWARDING] = forwarding = Forwarding(broker)
    app.on_cleanup.append(forwarding.close)
    app[websockets.WEBSOCKETS] = service = WebSocketService(broker, forwarding.context)
    app.on_shutdown.append(service.close)
    if broker.settings.console.enabled:
        app[live_rates.LIVE] = rates = live_rates.LiveRates(broker)
        app.cleanup_ctx.append(rates.running)
        app.on_shutdown.append(rates.end)
    app[status.EXPOSITION] = exposition = Exposition()
    measure_stalls(app, exposition)
    exposition.registry.register(WebSocketCollector(service))
    for collector in (BrokerCollector(broker), *collectors):
        exposition.registry.register(collector)
    of_others = (Route(one.method, one.path, one.handler, Need.SUPER_USER) for one in broker.more_routes())
    register(app, ROUTES, [*all_routes(), *of_others])
    return app


class WebServer:
    """Serves an application of a broker or a proxy on ports that were bound before."""

    def __init__(self, app: web.Application, bounds: HttpLimits) -> None:
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        self._bounds = bounds
        self._bounded: BoundedHttp | None = None

    async def serve(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Answer requests from now on, including waiting ones; `close` closes the socket."""
        if self._bounded is None:
            await self._runner.setup()
            self._bounded = BoundedHttp(self._runner, self._bounds)
        self._bounded.listen(listening, tls)

    async def close(self) -> None:
        """Stop listening and end running requests."""
        if self._bounded is not None:
            await self._bounded.close()
        await self._runner.cleanup()
