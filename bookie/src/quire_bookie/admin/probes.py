"""Serves liveness, readiness and metrics, which are polled every few seconds. Answers from memory, changes nothing.

/healthz and /heartbeat fail if the process should be replaced; /readyz and /api/v1/bookie/is_ready fail while clients
should not choose this bookie for new ledgers. A read-only bookie is healthy but not ready.
"""

from collections.abc import Callable, Iterable

from aiohttp import web

from quire_bookie.admin.bookie_collector import BookieCollector
from quire_bookie.admin.routes import Need, Route
from quire_bookie.admin.scraping import measure_stalls, scraped
from quire_bookie.exposition.rendering import Collector, Exposition
from quire_bookie.server.process import BookieState, RunningBookie

CurrentBookie = Callable[[], RunningBookie | None]
"""Returns the bookie of the probes; None while it starts."""


class Probes:
    """Handles the requests."""

    def __init__(self, bookie: CurrentBookie, collectors: Iterable[Collector] = ()) -> None:
        """`collectors`: further metrics of the process."""
        self._bookie = bookie
        self._exposition = Exposition()
        for collector in (BookieCollector(self._running, own_memory=True), *collectors):
            self._exposition.registry.register(collector)

    def measure_stalls(self, app: web.Application) -> None:
        """Measure the stalls of the event loop while the application runs."""
        measure_stalls(app, self._exposition)

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", "/healthz", self._health, Need.NOTHING),
            Route("GET", "/heartbeat", self._heartbeat, Need.NOTHING),
            Route("GET", "/readyz", self._ready, Need.NOTHING),
            Route("GET", "/api/v1/bookie/is_ready", self._ready, Need.NOTHING),
            Route("GET", "/metrics", self._metrics, Need.METRICS),
        ]

    def _state(self) -> BookieState | None:
        bookie = self._bookie()
        return None if bookie is None else bookie.state

    async def _health(self, _: web.Request) -> web.Response:
        """Return 200 while the bookie serves."""
        return self._answer((BookieState.WRITABLE, BookieState.READ_ONLY), "ok\n")

    async def _heartbeat(self, _: web.Request) -> web.Response:
        """Return 200 while the bookie serves, as BookKeeper's tools ask."""
        return self._answer((BookieState.WRITABLE, BookieState.READ_ONLY), "OK\n")

    async def _ready(self, _: web.Request) -> web.Response:
        """Return 200 while the bookie accepts writes."""
        return self._answer((BookieState.WRITABLE,), "ok\n")

    def _answer(self, healthy: tuple[BookieState, ...], text: str) -> web.Response:
        state = self._state()
        if state in healthy:
            return web.Response(text=text)
        return web.Response(status=503, text=f"{'starting' if state is None else state.value}\n")

    def _running(self) -> tuple[RunningBookie, ...]:
        bookie = self._bookie()
        return () if bookie is None else (bookie,)

    async def _metrics(self, request: web.Request) -> web.Response:
        """Return the metrics of this bookie."""
        return await scraped(self._exposition, request)
