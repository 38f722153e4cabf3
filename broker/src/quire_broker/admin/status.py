"""/healthz, /readyz, /metrics and the status page: state and counters of the broker."""

import html
from collections.abc import Iterator

from aiohttp import web

from quire_bookie.admin.scraping import scraped
from quire_bookie.errors import MetadataError
from quire_bookie.exposition.rendering import Exposition
from quire_broker import __version__
from quire_broker.admin.context import broker_of, metadata_answers
from quire_broker.admin.counters import counters
from quire_broker.admin.descriptions import PLAIN, TEXT, described
from quire_broker.admin.routes import Need, Reach, Route
from quire_broker.topic.topic import Topic

TOPICS_SHOWN_MAX = 200
"""Topics on the status page, which browsers load every 5 s."""
EXPOSITION: web.AppKey[Exposition] = web.AppKey("exposition", Exposition)


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    yield Route("GET", "/healthz", healthz, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/readyz", readyz, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/metrics", metrics, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/metrics/", metrics, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/", page, Need.SUPER_USER)


@described(returns=TEXT, media=PLAIN)
async def healthz(request: web.Request) -> web.Response:
    """Return 200 and `ok` while the broker can serve; 503 with the reason while the metadata store does not answer."""
    try:
        await metadata_answers(broker_of(request))
    except MetadataError as error:
        return web.Response(status=503, text=f"metadata store: {error}\n")
    return web.Response(text="ok\n")


@described(returns=TEXT, media=PLAIN)
async def readyz(request: web.Request) -> web.Response:
    """Like /healthz, and 503 while a background task of the broker has failed and not recovered since."""
    down = broker_of(request).background.down
    if down:
        # Any client may ask, so the errors themselves are only in the log.
        return web.Response(status=503, text=f"failed and started again: {', '.join(sorted(down))}; see the log\n")
    return await healthz(request)


@described(returns=TEXT, media=PLAIN)
async def metrics(request: web.Request) -> web.Response:
    """Return the metrics of this broker, and of other services of the process."""
    return await scraped(request.app[EXPOSITION], request)


def _row(topic: Topic) -> str:
    backlogs = ", ".join(f"{name} ({found.cursor.backlog})" for name, found in topic.subscriptions.items())
    ledger = topic.ledger
    cells = (
        topic.name,
        topic.stats.messages_in,
        topic.stats.bytes_in,
        ledger.entries,
        ledger.size_bytes,
        len(topic.producers),
        backlogs,
    )
    return "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"


@described(returns=TEXT, media="text/html")
async def page(request: web.Request) -> web.Response:
    """Return a small status page."""
    broker = broker_of(request)
    shown = sorted(broker.topics.loaded[:TOPICS_SHOWN_MAX], key=lambda topic: str(topic.name))
    rows = "".join(_row(topic) for topic in shown)
    more = broker.topics.count - len(shown)
    if more > 0:
        rows += (
            f'<tr><td colspan="7">and {more} more: the console and <code>quire topic list</code> show them</td></tr>'
        )
    values = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in (await counters(broker)).items())
    console = '<a href="/console/">console</a>, ' if broker.settings.console.enabled else ""
    text = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Quire</title>
<meta http-equiv="refresh" content="5"><style>body{{font:15px sans-serif;margin:2em}}td,th{{padding:.2em .8em;
text-align:left;border-bottom:1px solid #ddd}}table{{border-collapse:collapse;margin-bottom:2em}}</style></head><body>
<h1>Quire {__version__}</h1><p>Pulsar clients connect to <code>{html.escape(broker.urls.clients)}</code>,
admin tools to <code>{html.escape(broker.urls.web)}</code>.
{console}<a href="/metrics">metrics</a></p>
<table><tr><th>topic</th><th>messages in</th><th>bytes in</th><th>entries kept</th><th>bytes kept</th>
<th>producers</th><th>subscriptions (backlog)</th></tr>{rows}</table><table>{values}</table></body></html>"""
    return web.Response(text=text, content_type="text/html")
