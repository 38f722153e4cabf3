"""The rates of a broker: a day of history, and the present ones as a stream of server-sent events.

GET /admin/quire/rates                                        of the broker
GET /admin/quire/rates/{tenant}/{namespace}                   of a namespace, at this broker
GET /admin/quire/rates/{domain}/{tenant}/{namespace}/{topic}  of a topic, at its owner
GET /admin/quire/live[/{tenant}/{namespace}]                  {"total", "namespaces", "topics": {name: [values]}}

Values are in the order of `COLUMNS`. A stream ends after `LIVE_STREAM_S`: its client connects again, so that a role
whose rights were withdrawn receives no more. All streams share one snapshot, half a `LIVE_STEP_S` old at most.
"""

import asyncio
import heapq
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.answers import answer
from quire_broker.admin.context import namespace_of, require_owner, topic_name_of
from quire_broker.admin.descriptions import OBJECT, TEXT, described
from quire_broker.admin.rate_history import (
    COLUMNS,
    NOTHING,
    RateHistory,
    Series,
    Values,
    namespace_of_topic,
    rates_of,
)
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import NotFoundError
from quire_broker.limits import LIVE_STEP_S, LIVE_STREAM_S, LIVE_STREAMS_MAX, LIVE_TOPICS_MAX, RATES_STEP_S
from quire_broker.server.broker import RunningBroker


class LiveRates:
    """Samples the rates of a broker, keeps their history, and counts the streams that show them."""

    def __init__(self, broker: RunningBroker) -> None:
        self.history = RateHistory()
        self.streams = 0
        self.ended = asyncio.Event()
        """Set when the server stops: the streams end."""
        self._broker = broker
        self._changed = broker.topics.changed()
        self._taken_s = -math.inf
        self._snapshot: dict[str, Values] = {}
        self._taking = asyncio.Lock()

    async def run(self) -> None:
        """Sample once a minute, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self.history.sample(self._changed, self._broker.clock.now_ms(), loop.time())
            await asyncio.sleep(RATES_STEP_S)

    async def snapshot(self) -> dict[str, Values]:
        """Return the present rates of the loaded topics, at most half a `LIVE_STEP_S` old."""
        async with self._taking:
            if asyncio.get_running_loop().time() - self._taken_s >= LIVE_STEP_S / 2:
                self._snapshot = {str(topic.name): rates_of(topic) async for topic in self._broker.topics.in_steps()}
                self._taken_s = asyncio.get_running_loop().time()
            return self._snapshot

    async def end(self, _: object = None) -> None:
        """End all streams."""
        self.ended.set()

    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Sample while the server runs; for `cleanup_ctx`."""
        self._broker.background.keep(self.run, "rates of the web console")
        yield


LIVE: web.AppKey[LiveRates] = web.AppKey("live rates", LiveRates)


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    rates = "/admin/quire/rates"
    yield Route("GET", rates, of_broker, Need.SUPER_USER)
    yield Route("GET", f"{rates}/{{tenant}}/{{namespace}}", of_namespace, Need.NAMESPACE)
    yield Route("GET", f"{rates}/{{domain:persistent}}/{{tenant}}/{{namespace}}/{{topic}}", of_topic, Need.LOOK_UP)
    yield Route("GET", "/admin/quire/live", live, Need.SUPER_USER)
    yield Route("GET", "/admin/quire/live/{tenant}/{namespace}", live, Need.NAMESPACE)


@described(returns=OBJECT)
async def of_broker(request: web.Request) -> web.Response:
    """Return the history of this broker."""
    history = _live(request).history
    return answer(history.shown(history.total))


@described(returns=OBJECT)
async def of_namespace(request: web.Request) -> web.Response:
    """Return the history of a namespace at this broker; 404 if it keeps none."""
    name, history = str(namespace_of(request)), _live(request).history
    return _shown(history, history.namespaces.get(name), name)


@described(returns=OBJECT)
async def of_topic(request: web.Request) -> web.Response:
    """Return the history of a topic at its owner; 404 if it keeps none."""
    name, history = topic_name_of(request), _live(request).history
    await require_owner(request, name)
    return _shown(history, history.topics.get(str(name)), str(name))


def _shown(history: RateHistory, series: Series | None, name: str) -> web.Response:
    if series is None:
        raise NotFoundError(f"no rates of {name} are kept: it had no traffic at this broker, or others had more")
    return answer(history.shown(series))


def _live(request: web.Request) -> LiveRates:
    """Return the rates of the broker. RefusedError 404 if the console is off."""
    found = request.app.get(LIVE)
    if found is None:
        raise RefusedError(404, "this broker keeps no rates: webConsoleEnabled=false")
    return found


def event_of(snapshot: dict[str, Values], namespace: str = "") -> dict[str, Any]:
    """Return an event: the busiest topics and the sums of their namespaces; `namespace`: only what belongs to it."""
    sums: dict[str, Values] = {}
    shown = {}
    for name, values in snapshot.items():
        own = namespace_of_topic(name)
        if namespace in ("", own):
            sums[own] = sums.get(own, NOTHING).plus(values)
            shown[name] = values
    busiest = heapq.nlargest(LIVE_TOPICS_MAX, shown, key=lambda name: (shown[name].activity, shown[name].backlog))
    namespaces = heapq.nlargest(LIVE_TOPICS_MAX, sums, key=lambda name: sums[name].activity)
    total = NOTHING
    for values in sums.values():
        total = total.plus(values)
    return {
        "columns": COLUMNS,
        "total": total,
        "namespaces": {name: sums[name] for name in namespaces},
        "topics": {name: shown[name] for name in busiest},
        "loaded": len(shown),
    }


@described(returns=TEXT, media="text/event-stream")
async def live(request: web.Request) -> web.StreamResponse:
    """Stream an event every `LIVE_STEP_S`. RefusedError 503 above `LIVE_STREAMS_MAX` streams."""
    rates = _live(request)
    namespace = str(namespace_of(request)) if "namespace" in request.match_info else ""
    if rates.streams >= LIVE_STREAMS_MAX:
        raise RefusedError(503, f"{rates.streams} consoles follow this broker, which is the limit: close one of them")
    rates.streams += 1
    try:
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        until_s = asyncio.get_running_loop().time() + LIVE_STREAM_S
        with suppress(ConnectionError):  # the console is closed
            while not rates.ended.is_set() and asyncio.get_running_loop().time() < until_s:
                event = event_of(await rates.snapshot(), namespace)
                await response.write(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")
                with suppress(TimeoutError):
                    await asyncio.wait_for(rates.ended.wait(), LIVE_STEP_S)
        return response
    finally:
        rates.streams -= 1
