"""Answers scrapes: the HTTP side of an `Exposition`. Serves `/metrics` of bookies, auto-recovery and brokers."""

from aiohttp import web

from quire_bookie.exposition.rendering import Exposition


async def scraped(exposition: Exposition, request: web.Request) -> web.Response:
    """Return the metrics in the format that the request accepts."""
    scrape = await exposition.scrape(",".join(request.headers.getall("Accept", ())))
    return web.Response(body=scrape.body, headers={"Content-Type": scrape.content_type})
