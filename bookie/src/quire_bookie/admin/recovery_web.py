"""The HTTP server of an auto-recovery process: health, metrics, and the cluster's under-replication."""

import socket

from aiohttp import web

from quire_bookie.admin.access import AdminAccess
from quire_bookie.admin.answers import errors, failure
from quire_bookie.admin.cluster_api import ClusterApi
from quire_bookie.admin.drain_api import DrainApi
from quire_bookie.admin.ledger_care import LedgerCare
from quire_bookie.admin.origin import from_no_other_site
from quire_bookie.admin.recovery_api import RecoveryApi
from quire_bookie.admin.recovery_collector import RecoveryCollector
from quire_bookie.admin.routes import ROUTES, Need, Route, register
from quire_bookie.admin.scraping import measure_stalls, scraped
from quire_bookie.admin.serving import HttpServing
from quire_bookie.env.clock import WallClock
from quire_bookie.env.tls import ServedContext
from quire_bookie.exposition.rendering import Exposition
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.recovery import RunningAutoRecovery
from quire_bookie.recovery.access import ClusterAccess

_STOP_TIMEOUT_S = 2.0


class RecoveryWeb:
    """Serves from `open` to `close`."""

    def __init__(
        self, metadata: MetadataStore, running: RunningAutoRecovery, clock: WallClock, access: AdminAccess | None = None
    ) -> None:
        """`access`: the access rules; the default serves only this machine."""
        self._running = running
        self._exposition = Exposition()
        self._exposition.registry.register(RecoveryCollector(running))
        access = access or AdminAccess()
        checked = access.middleware()
        app = self.app = web.Application(middlewares=[errors, from_no_other_site, checked])
        measure_stalls(app, self._exposition)
        routes = [
            Route("GET", "/healthz", self._health, Need.NOTHING),
            Route("GET", "/readyz", self._health, Need.NOTHING),
            Route("GET", "/metrics", self._metrics, Need.METRICS),
            *RecoveryApi(metadata, clock).routes(),
            *DrainApi(metadata, clock).routes(),
            *LedgerCare(metadata, self._access).routes(),
            *ClusterApi(metadata, self._access).routes(),
        ]
        register(app, ROUTES, routes)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_TIMEOUT_S)
        self._serving_http = HttpServing(runner, access.bounds)

    async def open(self, listening: socket.socket, tls: ServedContext | None = None) -> None:
        """Serve on a socket opened by `listening.listen`; it is closed with the server."""
        await self._serving_http.open(listening, tls)

    async def close(self) -> None:
        """Stop listening."""
        await self._serving_http.close()

    async def _access(self) -> ClusterAccess:
        return self._running.access

    async def _health(self, _: web.Request) -> web.Response:
        """Return 200 while auto-recovery runs."""
        if self._running.failed.done():
            return failure(503, f"auto-recovery failed: {self._running.failed.result()}")
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        """Return the metrics of this process."""
        return await scraped(self._exposition, request)
