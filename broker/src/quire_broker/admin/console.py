"""The web console: its files under /console/, which hold no data. The pages ask the admin API, with the user's token.

The files are built from `console/` of the repository, and read at the first request. A strict policy allows scripts,
styles and requests of this origin only.
"""

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Final

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_broker.admin.context import broker_of
from quire_broker.admin.routes import Need, Reach, Route

TYPES: Final = {"index.html": "text/html", "console.js": "text/javascript", "console.css": "text/css"}
"""The files of the console. No other is served."""
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def routes() -> Iterator[Route]:
    """Yield the routes of this module. The files are open: without a token they show nothing."""
    yield Route("GET", "/console", to_pages, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/console/", page, Need.NOTHING, Reach.PROBE)
    yield Route("GET", "/console/{file}", page, Need.NOTHING, Reach.PROBE)


@cache
def file_of(name: str) -> bytes:
    """Return the content of a file of the console."""
    return resources.files("quire_broker.admin").joinpath("console_files", name).read_bytes()


async def to_pages(request: web.Request) -> web.Response:
    """Redirect to the folder: the pages name their files relative to it."""
    _require_console(request)
    raise web.HTTPPermanentRedirect("/console/")


async def page(request: web.Request) -> web.Response:
    """Return a file of the console; 404 for another name, and if the console is off."""
    _require_console(request)
    name = request.match_info.get("file", "index.html")
    if name not in TYPES:
        raise RefusedError(404, f"the console has no file {name[:100]!r}: open /console/")
    return web.Response(body=file_of(name), content_type=TYPES[name], charset="utf-8", headers=HEADERS)


def _require_console(request: web.Request) -> None:
    if not broker_of(request).settings.console.enabled:
        raise RefusedError(404, "the web console is off: webConsoleEnabled=false")
