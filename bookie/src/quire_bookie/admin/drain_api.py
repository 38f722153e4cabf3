"""`/api/v1/autorecovery/decommission` and `/api/v1/quire/drains`: starts, cancels and reports drains of bookies.

Writes requests and reads the auditor's progress; the auditor and the replication workers do the work in any process.
"""

from dataclasses import asdict
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, json_object
from quire_bookie.admin.routes import Need, Route
from quire_bookie.env.clock import WallClock
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import CookieInUseError, Cookies
from quire_bookie.metadata.drains import Drain, Drains, Wish
from quire_bookie.metadata.election import current_leader
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import BookieId, LedgerId

_DRAINS = "/api/v1/quire/drains"
_NO_AUDITOR = "no auditor is running: start `quire autorecovery`, or a bookie with autoRecoveryDaemonEnabled=true"


class DrainApi:
    """Handles the requests. Every process can answer, because all state is in the metadata store."""

    def __init__(self, store: MetadataStore, clock: WallClock) -> None:
        self._store = store
        self._clock = clock
        self._drains = Drains(store)
        self._notes = UnrecoverableLedgers(store)

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("PUT", "/api/v1/autorecovery/decommission", self._decommission, Need.CHANGE),
            Route("GET", _DRAINS, self._list, Need.READ),
            Route("GET", f"{_DRAINS}/{{bookie}}", self._one, Need.READ),
            Route("PUT", f"{_DRAINS}/{{bookie}}", self._wish, Need.CHANGE),
            Route("DELETE", f"{_DRAINS}/{{bookie}}", self._cancel, Need.CHANGE),
            Route("PUT", "/api/v1/quire/unrecoverable/accept", self._accept, Need.CHANGE),
        ]

    async def _decommission(self, request: web.Request) -> web.Response:
        """Serve BookKeeper's path. Unlike there, the bookie may still be running: it is drained first."""
        bookie = (await json_object(request)).get("bookie_src")
        if not isinstance(bookie, str) or not bookie:
            raise RefusedError(400, 'the body needs "bookie_src": the id of the bookie')
        return await self._request(BookieId(bookie), Wish.DECOMMISSION)

    async def _wish(self, request: web.Request) -> web.Response:
        """Ask the auditor to drain a bookie, or to decommission it."""
        wish = (await json_object(request)).get("wish")
        if wish not in (Wish.DRAIN.value, Wish.DECOMMISSION.value):
            raise RefusedError(400, f'"wish": {wish!r}: unknown; give "drain" or "decommission"')
        return await self._request(BookieId(request.match_info["bookie"]), Wish(wish))

    async def _request(self, bookie: BookieId, wish: Wish) -> web.Response:
        if not await self._is_known(bookie):
            known = ", ".join(sorted(await Cookies(self._store).bookies())) or "none"
            raise RefusedError(404, f"there is no bookie {bookie}; the known bookies are: {known}")
        await self._drains.wish(bookie, wish, self._clock.now_ms())
        return web.json_response(await self._shown(bookie))

    async def _cancel(self, request: web.Request) -> web.Response:
        """Cancel the drain of a bookie."""
        bookie = BookieId(request.match_info["bookie"])
        if all(drain.bookie != bookie for drain in await self._drains.read()):
            raise RefusedError(404, f"bookie {bookie} is not drained")
        await self._drains.wish(bookie, Wish.CANCEL, self._clock.now_ms())
        return web.json_response(await self._shown(bookie))

    async def _list(self, _: web.Request) -> web.Response:
        """Return all drains with their progress."""
        drains = await self._drains.read()
        leader = await current_leader(self._store)
        return web.json_response([await self._described(drain, leader) for drain in drains])

    async def _one(self, request: web.Request) -> web.Response:
        """Return the drain of a bookie; without one, whether the bookie belongs to the cluster."""
        return web.json_response(await self._shown(BookieId(request.match_info["bookie"])))

    async def _shown(self, bookie: BookieId) -> dict[str, Any]:
        """Describe a drain, or, without one, whether the bookie still belongs to the cluster."""
        for drain in await self._drains.read():
            if drain.bookie == bookie:
                return await self._described(drain, await current_leader(self._store))
        return {"bookie": bookie, "wish": None, "state": "member" if await self._is_known(bookie) else "forgotten"}

    async def _described(self, drain: Drain, leader: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {"bookie": drain.bookie, "wish": drain.wish.value, "since_ms": drain.since_ms}
        seen = await self._drains.progress_of(drain.bookie)
        if seen is None or seen.at_ms < drain.since_ms:
            found |= {"state": "waiting", "blocked_by": []}
        else:
            found |= asdict(seen) | {"blocked_by": list(seen.blocked_by)}
        if drain.wish is Wish.CANCEL:
            found["state"] = "cancelling"
        if leader is None:
            found["blocked_by"].insert(0, _NO_AUDITOR)
        return found

    async def _is_known(self, bookie: BookieId) -> bool:
        """Return whether it has a cookie, is registered, or a ledger names it: the cookie may be removed too early."""
        if await self._store.get(layout.cookie_path(bookie)) is not None:
            return True
        try:
            await Cookies(self._store).check_free(bookie)
        except CookieInUseError:
            return True
        return False

    async def _accept(self, request: web.Request) -> web.Response:
        """Record that the operator accepts the loss of a ledger's entries that no replica can serve."""
        ledger = (await json_object(request)).get("ledger")
        if isinstance(ledger, bool) or not isinstance(ledger, int) or not 0 <= ledger < layout.LEDGER_IDS_END:
            raise RefusedError(400, 'the body needs "ledger": the id of the ledger')
        if await self._notes.read(LedgerId(ledger)) is None:
            raise RefusedError(
                409,
                f"ledger {ledger} is not on the list of unrecoverable ledgers, so no loss is known",
            )
        note = await self._notes.accept(LedgerId(ledger), self._clock.now_ms())
        return web.json_response({"ledger": ledger, "reason": note.reason, "accepted_ms": note.accepted_ms})
