"""Answers scrapes: the HTTP side of an `Exposition`. Serves `/metrics` of all processes but operators."""

from aiohttp import web

from quire_bookie.env.loop_stalls import LoopStalls
from quire_bookie.exposition.loop_stalls import StallCollector
from quire_bookie.exposition.rendering import Exposition


def measure_stalls(app: web.Application, exposition: Exposition) -> None:
    """Measure the stalls of the event loop while the application runs, and expose them."""
    stalls = LoopStalls()

    async def start(_: web.Application) -> None:
        stalls.start()

    async def stop(_: web.Application) -> None:
        stalls.stop()

    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    exposition.registry.register(StallCollector(stalls))


async def scraped(exposition: Exposition, request: web.Request) -> web.Response:
    """Return the metrics in the format that the request accepts."""
    scrape = await exposition.scrape(",".join(request.headers.getall("Accept", ())))
    return web.Response(body=scrape.body, headers={"Content-Type": scrape.content_type})
