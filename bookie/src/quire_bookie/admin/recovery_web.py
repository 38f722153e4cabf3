"""The HTTP server of an auto-recovery process: health, metrics, and the cluster's under-replication."""

import socket
from dataclasses import asdict

from aiohttp import web

from quire_bookie.admin.access import AdminAccess
from quire_bookie.admin.answers import errors, failure
from quire_bookie.admin.cluster_api import ClusterApi
from quire_bookie.admin.drain_api import DrainApi
from quire_bookie.admin.ledger_care import LedgerCare
from quire_bookie.admin.origin import from_no_other_site
from quire_bookie.admin.recovery_api import RecoveryApi
from quire_bookie.admin.routes import ROUTES, Need, Route, register
from quire_bookie.admin.serving import HttpServing
from quire_bookie.env.clock import WallClock
from quire_bookie.env.tls import ServedContext
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.recovery import RunningAutoRecovery
from quire_bookie.recovery.access import ClusterAccess

_STOP_TIMEOUT_S = 2.0
_PREFIX = "quire_autorecovery_"


class RecoveryWeb:
    """Serves from `open` to `close`."""

    def __init__(
        self, metadata: MetadataStore, running: RunningAutoRecovery, clock: WallClock, access: AdminAccess | None = None
    ) -> None:
        """`access`: the access rules; the default serves only this machine."""
        self._running = running
        access = access or AdminAccess()
        checked = access.middleware()
        app = self.app = web.Application(middlewares=[errors, from_no_other_site, checked])
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
        if self._running.failed.done():
            return failure(503, f"auto-recovery failed: {self._running.failed.result()}")
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        """Return counters since the start of the process, and the gauges of the last check of the marks."""
        auditor = self._running.auditor
        values = asdict(self._running.stats) | {
            "auditor": int(auditor is not None and auditor.leads),
            "ledgers_in_progress": len(self._running.workers.busy),
            "speculative_reads": self._running.access.pool.health.speculative_reads,
            "foreign_ledger_answers": self._running.access.pool.health.foreign_answers,
        }
        text = "".join(f"{_PREFIX}{name} {value}\n" for name, value in values.items())
        return web.Response(text=text, content_type="text/plain")
