"""The operator's HTTP port: `/healthz`, `/readyz`, `/metrics`. Responds from memory; never queries the API server.

Healthy: the event loop responds, the lease task makes progress, and no reconciliation hangs; otherwise a restart helps.
Ready: the API server responded recently. A replica that only waits for the lease is ready, too, so that a rollout of
two replicas completes.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import http_exceptions, web
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from quire_operator.errors import OperatorError
from quire_operator.monitoring.bounded import BoundedHttp, HttpBounds
from quire_operator.monitoring.measurements import HANGS_AFTER_S, Measurements

_log = logging.getLogger("quire.operator")
SILENT_AFTER_S = 60.0
"""The lease is checked every two seconds, and each check ends within its deadline of eight seconds."""
UNANSWERED_AFTER_S = 30.0


class LeaseState(Protocol):
    """State of the lease task. Times are the event loop's; None means not yet."""

    held: asyncio.Event
    turned_s: float | None
    """Start of its last iteration."""
    answered_s: float | None
    """Last response of the API server to it."""


@dataclass(slots=True)
class OperatorHealth:
    """Determines health and readiness. The checks return an error message, or None."""

    lease: LeaseState
    measurements: Measurements
    queue_length: Callable[[], int]
    wall_s: Callable[[], float]

    def ill(self, now_s: float) -> str | None:
        """Return why the process needs a restart, or None."""
        if self.lease.turned_s is not None and now_s - self.lease.turned_s > SILENT_AFTER_S:
            return f"the lease was last checked {now_s - self.lease.turned_s:.0f} s ago"
        longest_s = self.measurements.longest_pass_s(now_s)
        return f"a reconciliation has been running for {longest_s:.0f} s" if longest_s > HANGS_AFTER_S else None

    def not_ready(self, now_s: float) -> str | None:
        """Return why the process cannot work now, or None."""
        answered_s = self.lease.answered_s
        if answered_s is None:
            return "the API server has not responded yet"
        if now_s - answered_s > UNANSWERED_AFTER_S:
            return f"the API server last responded {now_s - answered_s:.0f} s ago"
        return None

    def families(self, now_s: float) -> Iterator[Metric]:
        """Yield all metrics but those of the process."""
        leads = self.lease.held.is_set()
        yield GaugeMetricFamily("quire_operator_leader", "1 if this process holds the lease.", leads)
        yield GaugeMetricFamily("quire_operator_queue_length", "Resources in the work queue.", self.queue_length())
        yield from self.measurements.families(now_s, self.wall_s())


class _HealthCollector:
    """Collects the metrics at each scrape, on the event loop."""

    def __init__(self, health: OperatorHealth) -> None:
        self._health = health

    def collect(self) -> Iterable[Metric]:
        return self._health.families(asyncio.get_running_loop().time())


def _negotiated(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return encoder and content type: OpenMetrics if the Accept header asks for it, else classic text."""
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # the library cannot compare a version such as `abc`
        return choose_encoder("")
    # The library repeats the version that the client sent.
    return (encode, content_type) if content_type.isascii() else choose_encoder("")


def application(health: OperatorHealth) -> web.Application:
    """Return the application with the three paths."""

    def probe(check: Callable[[float], str | None]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            wrong = check(asyncio.get_running_loop().time())
            return web.Response(text=f"{wrong or 'ok'}\n", status=503 if wrong else 200)

        return answer

    registry = CollectorRegistry()
    registry.register(_HealthCollector(health))
    ProcessCollector(registry=registry)

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = _negotiated(",".join(request.headers.getall("Accept", ())))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def last(_: web.Request, response: web.StreamResponse) -> None:
        response.force_close()  # see `bounded`
        response.headers["Connection"] = "close"

    app = web.Application()
    app.on_response_prepare.append(last)
    app.router.add_get("/healthz", probe(health.ill))
    app.router.add_get("/readyz", probe(health.not_ready))
    app.router.add_get("/metrics", metrics)
    return app


class _PlainConnection(web.RequestHandler):
    """A connection that never logs or returns any byte of an invalid HTTP request, which may contain a token."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, http_exceptions.HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        too_long = isinstance(exc, http_exceptions.LineTooLong)
        status, reason = (
            (431, "a line of the request is too long") if too_long else (400, "the request is not valid HTTP/1.1")
        )
        _log.warning("a request from %s is refused: HTTP %d, %s", request.remote, status, type(exc).__name__)
        answer = web.Response(status=status, text=f"{reason}\n")
        answer.force_close()
        return answer


def _connections(runner: web.AppRunner) -> Callable[[], asyncio.Protocol]:
    server, loop = runner.server, asyncio.get_running_loop()
    assert server is not None
    options: dict[str, Any] = {"access_log": None, "auto_decompress": False}
    return lambda: _PlainConnection(server, loop=loop, **options)


@contextlib.asynccontextmanager
async def serving(
    health: OperatorHealth, port: int, host: str = "0.0.0.0", bounds: HttpBounds | None = None
) -> AsyncIterator[int]:
    """Serve within the context; yields the port, which the system chooses for 0. OperatorError if it is in use.

    It listens on all addresses: probes come from the node, scrapes from other pods. Responses contain no secrets.
    """
    runner = web.AppRunner(application(health), access_log=None)
    await runner.setup()
    bounded = BoundedHttp(_connections(runner), bounds or HttpBounds())
    server: asyncio.Server | None = None
    try:
        try:
            server = await asyncio.get_running_loop().create_server(bounded, host, port)
        except OSError as error:
            raise OperatorError(f"cannot listen on port {port}: {error}; choose another --metrics-port") from error
        yield int(server.sockets[0].getsockname()[1])
    finally:
        if server is not None:
            server.close()
        await runner.cleanup()
