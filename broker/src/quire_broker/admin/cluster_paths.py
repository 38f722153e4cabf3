"""The bookies' HTTP paths that concern the whole cluster, for the HTTP server of a standalone.

Their answers come from the metadata store, or from bookies over BookKeeper's protocol, with the same errors
as a bookie's. Paths that concern one bookie are not included.
"""

from collections.abc import Awaitable, Callable
from functools import wraps

from aiohttp import web

from quire_bookie.admin.answers import Handler, errors
from quire_bookie.admin.cluster_api import ClusterApi
from quire_bookie.admin.drain_api import DrainApi
from quire_bookie.admin.ledger_care import LedgerCare
from quire_bookie.admin.recovery_api import RecoveryApi
from quire_bookie.admin.routes import Route
from quire_bookie.env.clock import WallClock
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.recovery.access import ClusterAccess


def cluster_routes(
    store: MetadataStore, clock: WallClock, open_access: Callable[[], Awaitable[ClusterAccess]]
) -> list[Route]:
    """Return these routes. `open_access`: opens the connections to the bookies when first needed."""
    routes = [
        *ClusterApi(store, open_access).routes(),
        *RecoveryApi(store, clock).routes(),
        *DrainApi(store, clock).routes(),
        *LedgerCare(store, open_access).acting_routes(),
    ]
    return [route._replace(handler=_as_a_bookie(route.handler)) for route in routes]


def _as_a_bookie(handler: Handler) -> Handler:
    @wraps(handler)
    async def handle(request: web.Request) -> web.StreamResponse:
        return await errors(request, handler)

    return handle
