"""The admin HTTP server of one bookie: assembles the routes and serves them. Handles no request itself."""

import asyncio
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from quire_bookie.admin.access import AdminAccess
from quire_bookie.admin.answers import errors
from quire_bookie.admin.bookie_api import BookieApi
from quire_bookie.admin.cluster_api import ClusterApi
from quire_bookie.admin.collection_api import CollectionApi
from quire_bookie.admin.config_api import ConfigApi
from quire_bookie.admin.drain_api import DrainApi
from quire_bookie.admin.holdings_api import HoldingsApi
from quire_bookie.admin.ledger_api import LedgerApi
from quire_bookie.admin.ledger_care import LedgerCare
from quire_bookie.admin.origin import from_no_other_site
from quire_bookie.admin.probes import Probes
from quire_bookie.admin.quarantine_api import QuarantineApi
from quire_bookie.admin.recovery_api import LimboApi, RecoveryApi
from quire_bookie.admin.routes import ROUTES, register
from quire_bookie.admin.serving import HttpServing
from quire_bookie.admin.slow_requests import slow_requests
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.env.tls import ServedContext
from quire_bookie.exposition.rendering import Collector
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.server.process import RunningBookie
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings

_STOP_TIMEOUT_S = 2.0
_BODY_BYTES_MAX = 1024 * 1024


class BookieWeb:
    """`open` serves the probes at once; the other routes answer once `serve` has set the bookie. `close` ends all."""

    def __init__(
        self,
        metadata: MetadataStore,
        disk: Disk,
        settings: Mapping[str, Any],
        *,
        clock: WallClock,
        chance: Chance,
        client_settings: ClientSettings | None = None,
        access: AdminAccess | None = None,
        collectors: Iterable[Collector] = (),
    ) -> None:
        """`access`: the access rules; the default serves only this machine. `collectors`: of the whole process."""
        self._metadata = metadata
        self._clock = clock
        self._chance = chance
        self._client_settings = client_settings
        self._bookie: RunningBookie | None = None
        self._client: LedgerClient | None = None
        self._access: ClusterAccess | None = None
        self._client_lock = asyncio.Lock()
        access = access or AdminAccess()
        checked = access.middleware()
        checks = [slow_requests(self._slow), errors, from_no_other_site, checked]
        app = self.app = web.Application(middlewares=checks, client_max_size=_BODY_BYTES_MAX)
        probes = Probes(lambda: self._bookie, collectors)
        probes.measure_stalls(app)
        routes = [
            *probes.routes(),
            *BookieApi(self._serving, disk, self._open_client).routes(),
            *CollectionApi(self._serving).routes(),
            *QuarantineApi(self._serving, clock).routes(),
            *HoldingsApi(self._serving, disk).routes(),
            *ClusterApi(metadata, self._open_access).routes(),
            *RecoveryApi(metadata, clock).routes(),
            *DrainApi(metadata, clock).routes(),
            *LimboApi(self._serving).routes(),
            *LedgerApi(metadata, self._open_client).routes(),
            *LedgerCare(metadata, self._open_access).routes(),
            *ConfigApi(settings).routes(),
        ]
        register(app, ROUTES, routes)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_TIMEOUT_S)
        self._serving_http = HttpServing(runner, access.bounds)

    async def open(self, listening: socket.socket, tls: ServedContext | None = None) -> None:
        """Serve on a socket opened by `listening.listen`; it is closed with the server."""
        await self._serving_http.open(listening, tls)

    def serve(self, bookie: RunningBookie) -> None:
        """Serve this bookie from now on; earlier requests receive 503, *starting*."""
        self._bookie = bookie

    async def close(self) -> None:
        """Stop listening."""
        await self._serving_http.close()
        if self._access is not None:
            await self._access.close()
        if self._client is not None:
            await self._client.close()

    def _slow(self) -> SlowLog | None:
        return None if self._bookie is None else self._bookie.bookie.slow

    def _serving(self) -> RunningBookie:
        if self._bookie is None:
            raise web.HTTPServiceUnavailable(reason="starting")
        return self._bookie

    async def _open_access(self) -> ClusterAccess:
        """Open access to the cluster for requests about ledgers, on first use."""
        async with self._client_lock:
            if self._access is None:
                self._access = await ClusterAccess.open(
                    self._metadata,
                    RecoverySettings(),
                    self._client_settings or ClientSettings(),
                    clock=self._clock,
                    chance=self._chance,
                )
            return self._access

    async def _open_client(self) -> LedgerClient:
        """Open the client for requests that read ledgers, on first use."""
        async with self._client_lock:
            if self._client is None:
                self._client = await LedgerClient.open(
                    self._metadata, self._client_settings, clock=self._clock, chance=self._chance
                )
            return self._client
