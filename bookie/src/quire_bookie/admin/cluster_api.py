"""`/api/v1/bookie/list_bookies`, `list_bookie_info`, `cluster_info`, `/api/v1/quire/places`: reports all bookies."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, flag
from quire_bookie.admin.routes import Need, Route
from quire_bookie.client.links.single_requests import BookieSpace
from quire_bookie.errors import LedgerError
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.layout import ROOT
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId
from quire_bookie.recovery.access import ClusterAccess

ASK_TIMEOUT_S = 5.0
_UNDER_REPLICATION = f"{ROOT}/underreplication"

OpenAccess: TypeAlias = Callable[[], Awaitable[ClusterAccess]]
"""Opens access to the bookies, with the security that they require. MetadataUnavailableError, ConfigError."""


class ClusterApi:
    """Handles the requests. Each response is read from the metadata: operators, not monitors, send them."""

    def __init__(self, store: MetadataStore, access: OpenAccess) -> None:
        self._store = store
        self._access = access

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", "/api/v1/bookie/list_bookies", self._list, Need.READ),
            Route("GET", "/api/v1/bookie/list_bookie_info", self._space, Need.READ),
            Route("GET", "/api/v1/bookie/cluster_info", self._cluster, Need.READ),
            Route("GET", "/api/v1/quire/places", self._places, Need.READ),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        """Return {id: host:port}, with null values unless host names were requested."""
        kind = request.query.get("type", "rw")
        if kind not in ("rw", "ro"):
            raise RefusedError(400, f"type={kind}: unknown; give rw (writable) or ro (read-only)")
        registry = await BookieRegistry.open(self._store)
        try:
            with_names = flag(request, "print_hostnames")
            found: dict[str, str | None] = {}
            for bookie in sorted(registry.writable if kind == "rw" else registry.read_only):
                address = registry.address_of(bookie) if with_names else None
                found[bookie] = None if address is None else f"{address.host}:{address.port}"
            return web.json_response(found)
        finally:
            await registry.close()

    async def _space(self, _: web.Request) -> web.Response:
        """Return free and total bytes by bookie, requested from each bookie; the sums under ClusterInfo."""
        access = await self._access()
        bookies = sorted(access.registered)
        spaces = await asyncio.gather(*(self._ask(access, bookie) for bookie in bookies))
        found = {}
        free = total = 0
        for bookie, space in zip(bookies, spaces, strict=True):
            if space is None:
                found[str(bookie)] = ": no answer"
                continue
            free += space.free_bytes
            total += space.total_bytes
            found[str(bookie)] = f": {{Free: {space.free_bytes}, Total: {space.total_bytes}}}"
        found["ClusterInfo"] = f": {{Free: {free}, Total: {total}}}"
        return web.json_response(found)

    async def _ask(self, access: ClusterAccess, bookie: BookieId) -> BookieSpace | None:
        try:
            return await access.space_of(bookie, ASK_TIMEOUT_S)
        except LedgerError:
            return None

    async def _cluster(self, _: web.Request) -> web.Response:
        """Return the numbers of bookies and the sums of their disks."""
        registry = await BookieRegistry.open(self._store)
        try:
            writable, read_only = registry.writable, registry.read_only
        finally:
            await registry.close()
        known = set(await Cookies(self._store).bookies()) | writable | read_only
        leader = await self._store.get(f"{_UNDER_REPLICATION}/leader")
        auditor = None if leader is None else _auditor(leader.value)
        disabled = await self._store.get(f"{_UNDER_REPLICATION}/disable")
        return web.json_response(
            {
                "auditorElected": auditor is not None,
                "auditorId": auditor or "",
                "clusterUnderReplicated": await self._any_under_replicated(),
                "ledgerReplicationEnabled": disabled is None,
                "totalBookiesCount": len(known),
                "writableBookiesCount": len(writable),
                "readonlyBookiesCount": len(read_only),
                "unavailableBookiesCount": len(known - writable - read_only),
            }
        )

    async def _places(self, _: web.Request) -> web.Response:
        """Return the machine and the rack of each registered bookie, as placement sees them."""
        access = await self._access()
        cluster = access.cluster
        found = {
            str(bookie): {"machine": cluster.machine_of(bookie), "rack": cluster.rack_of(bookie)}
            for bookie in sorted(access.registered)
        }
        return web.json_response(found)

    async def _any_under_replicated(self) -> bool:
        async for page in self._store.scan(f"{_UNDER_REPLICATION}/ledgers/"):
            if page:
                return True
        return False


def _auditor(value: bytes) -> str | None:
    """Decode the id in the election's node, a JSON string."""
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
