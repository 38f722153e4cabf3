"""Writes one line for each request that may change something: who, from where, what, and its outcome.

The logger is `quire.audit`. Each message is a JSON object of bounded size:

    {"role": "admin", "via": "proxy", "client": "10.0.0.7", "method": "PUT", "path": "/admin/v2/tenants/t",
     "status": 204}

`role`: null without authentication, and for a client that was not admitted. `via`, only of a proxy: its role.
`forwarded`, only if true: a broker says that it sent the request on. `status`: null if the client left before the
answer. Bodies, queries and headers are never written: they may hold secrets. Publishing is not administration.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from quire_bookie.admin.routes import route_of
from quire_broker.admin.access import ROLES
from quire_broker.admin.context import broker_of
from quire_broker.admin.forwarding import is_forwarded
from quire_broker.admin.routes import READS, ROUTES, Need
from quire_broker.limits import AUDIT_CHARACTERS_MAX

log = logging.getLogger("quire.audit")


@web.middleware
async def audited(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer the request, and write its line."""
    if request.method in READS or not broker_of(request).access.settings.audit:
        return await handler(request)
    route = route_of(request, ROUTES)
    if route is not None and route.need is Need.PRODUCE:
        return await handler(request)
    status: int | None = None
    try:
        response = await handler(request)
        status = response.status
        return response
    except web.HTTPException as answer:
        status = answer.status
        raise
    finally:
        log.info("%s", json.dumps(_entry(request, status)))


def _entry(request: web.Request, status: int | None) -> dict[str, Any]:
    *proxies, role = request.get(ROLES, ()) or (None,)
    found: dict[str, Any] = {"role": _bounded(role)}
    if proxies:
        found["via"] = _bounded(proxies[0])
    if is_forwarded(request):
        found["forwarded"] = True
    return found | {
        "client": request.remote,
        "method": _bounded(request.method),
        "path": _bounded(request.rel_url.raw_path),
        "status": status,
    }


def _bounded(text: str | None) -> str | None:
    return text if text is None or len(text) <= AUDIT_CHARACTERS_MAX else f"{text[:AUDIT_CHARACTERS_MAX]}..."
