"""Parts of Pulsar that are not part of Quire: their paths answer 501 with the reason, so that a tool shows it."""

from collections.abc import Iterator
from typing import Final

from aiohttp import web

from quire_broker.admin.answers import failure
from quire_broker.admin.descriptions import described
from quire_broker.admin.routes import Need, Route

WORKERS: Final = "functions, sources, sinks and packages are not part of Quire: run them in processes of their own"
_REASONS: Final = {
    "functions": WORKERS,
    "functions-metadata": WORKERS,
    "source": WORKERS,
    "sources": WORKERS,
    "sink": WORKERS,
    "sinks": WORKERS,
    "packages": WORKERS,
    "worker": WORKERS,
    "worker-stats": WORKERS,
    "transactions": "transactions are not served",
}
_NO_JAVA: Final = "this broker does not run in a Java VM; GET /metrics has its figures"
_METHODS: Final = ("GET", "POST", "PUT", "DELETE")


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    parts = "|".join(_REASONS)
    for method in _METHODS:
        for path in (f"/admin/{{api:v2|v3}}/{{part:{parts}}}", f"/admin/{{api:v2|v3}}/{{part:{parts}}}/{{rest:.*}}"):
            yield Route(method, path, refuse, Need.A_ROLE)
    for root in ("/admin/v2/broker-stats", "/admin/broker-stats"):
        yield Route("GET", f"{root}/mbeans", refuse_java, Need.SUPER_USER)
        yield Route("GET", f"{root}/allocator-stats/{{allocator}}", refuse_java, Need.SUPER_USER)


@described(refuses=True)
async def refuse(request: web.Request) -> web.Response:
    """Answer 501 with the reason."""
    part = request.match_info["part"]
    return failure(501, f"{part} is not supported by this broker: {_REASONS[part]}")


@described(refuses=True)
async def refuse_java(request: web.Request) -> web.Response:
    """Answer 501: stock brokers return figures of their Java VM here."""
    return failure(501, f"{request.path} is not supported by this broker: {_NO_JAVA}")
