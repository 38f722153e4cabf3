"""`/api/v1/autorecovery/...` and `/api/v1/quire/...`: reports under-replication, and controls auto-recovery.

Every process can answer, because all state is in the metadata store. Paths and formats are BookKeeper's if it has one.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, flag, json_object
from quire_bookie.admin.routes import Need, Route
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import MetadataFormatError, NoSuchLedgerError
from quire_bookie.limits import NARROW_LISTED_MAX, NARROW_READS_AT_ONCE
from quire_bookie.metadata.election import current_leader
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.restoration import read_restoration
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import LedgerId
from quire_bookie.quorum.wanted_copies import missing_copies, wanted_copies
from quire_bookie.server.process import RunningBookie

_ROOT = "/api/v1/autorecovery"
_DELAY_S_MAX = 2**31 - 1


class RecoveryApi:
    """Handles the requests about the cluster's auto-recovery."""

    def __init__(self, store: MetadataStore, clock: WallClock) -> None:
        self._store = store
        self._controls = RecoveryControls(store)
        self._marks = UnderReplication(store, clock)
        self._notes = UnrecoverableLedgers(store)
        self._nodes = LedgerNodes(store)

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", f"{_ROOT}/status", self._status, Need.READ),
            Route("PUT", f"{_ROOT}/status", self._set_status, Need.CHANGE),
            Route("GET", f"{_ROOT}/list_under_replicated_ledger", self._marked, Need.READ),
            Route("GET", f"{_ROOT}/who_is_auditor", self._auditor, Need.READ),
            Route("PUT", f"{_ROOT}/trigger_audit", self._audit, Need.CHANGE),
            Route("GET", f"{_ROOT}/lost_bookie_recovery_delay", self._delay, Need.READ),
            Route("PUT", f"{_ROOT}/lost_bookie_recovery_delay", self._set_delay, Need.CHANGE),
            Route("GET", "/api/v1/quire/under-replication", self._count, Need.READ),
            Route("GET", "/api/v1/quire/narrow-ledgers", self._narrow, Need.READ),
            Route("GET", "/api/v1/quire/unrecoverable", self._unrecoverable, Need.READ),
        ]

    async def _status(self, _: web.Request) -> web.Response:
        """Return whether auto-recovery is on."""
        return web.json_response({"enabled": await self._controls.is_enabled()})

    async def _set_status(self, request: web.Request) -> web.Response:
        """Turn auto-recovery on or off."""
        if "enabled" not in request.query:
            raise RefusedError(400, "the query parameter enabled is missing, e.g. ?enabled=false")
        if not flag(request, "enabled"):
            await self._controls.disable()
        elif await read_restoration(self._store) is not None:
            # With restored metadata it would close ledgers before entries that later ensembles acknowledged.
            raise RefusedError(
                409, "the metadata was restored and is under review: `quire metadata release-hold` turns it on again"
            )
        else:
            await self._controls.enable()
        return await self._status(request)

    async def _marked(self, request: web.Request) -> web.Response:
        """List ids, or with `print_missing_replica` the bookies of each; 404 if there are none, as in BookKeeper."""
        wanted = request.query.get("missingreplica")
        unwanted = request.query.get("excludingmissingreplica")
        found: dict[str, list[str]] = {}
        async for page in self._marks.marks():
            for mark in page:
                if (wanted is None or wanted in mark.bookies) and (unwanted is None or unwanted not in mark.bookies):
                    found[str(mark.ledger)] = list(mark.bookies)
        if not found:
            raise RefusedError(404, "No under replicated ledgers found")
        return web.json_response(found if flag(request, "print_missing_replica") else [int(key) for key in found])

    async def _count(self, _: web.Request) -> web.Response:
        """Count the ledgers that lack replicas, without accepted losses; cheap regardless of their number."""
        notes = [note async for page in self._notes.pages() for note in page]
        found = await self._marks.summary(note.ledger for note in notes if note.accepted_ms is not None)
        return web.json_response({"count": found.count, "oldest_ms": found.oldest_ms})

    async def _narrow(self, _: web.Request) -> web.Response:
        """List ledgers among the marked ones that were created with too few copies and not raised yet.

        `complete` is false if more ledgers are marked than one request examines.
        """
        found: list[dict[str, object]] = []
        examined = 0
        async for page in self._marks.marks():
            for at in range(0, len(page), NARROW_READS_AT_ONCE):
                if examined >= NARROW_LISTED_MAX:
                    return web.json_response({"ledgers": found, "complete": False})
                part = [mark.ledger for mark in page[at : at + NARROW_READS_AT_ONCE]]
                examined += len(part)
                found += [row for row in await asyncio.gather(*map(self._narrow_row, part)) if row is not None]
        return web.json_response({"ledgers": found, "complete": True})

    async def _narrow_row(self, ledger: LedgerId) -> dict[str, object] | None:
        try:
            metadata = (await self._nodes.read(ledger)).value
        except (NoSuchLedgerError, MetadataFormatError):
            return None
        if not missing_copies(metadata):
            return None
        copies = {"copies": metadata.write_quorum, "wantedCopies": wanted_copies(metadata)}
        return {"ledgerId": ledger, "state": metadata.state.name, **copies}

    async def _auditor(self, _: web.Request) -> web.Response:
        """Return which process is the auditor."""
        leader = await current_leader(self._store)
        if leader is None:
            raise RefusedError(404, "No auditor is elected; is auto-recovery running?")
        return web.json_response({"Auditor": leader})

    async def _audit(self, _: web.Request) -> web.Response:
        """Request an audit. Rewriting the delay does so for auditors of Quire and of BookKeeper."""
        if await current_leader(self._store) is None:
            raise RefusedError(409, "no auditor is running; start `quire autorecovery`")
        delay_s = await self._controls.lost_bookie_delay_s()
        await self._controls.set_lost_bookie_delay_s(0 if delay_s is None else delay_s)
        return web.json_response({"triggered": True})

    async def _delay(self, _: web.Request) -> web.Response:
        """Return how long a bookie may be away before it counts as lost."""
        delay_s = await self._controls.lost_bookie_delay_s()
        if delay_s is None:
            raise RefusedError(404, "no delay is set; the first auditor sets its default")
        return web.json_response({"delay_seconds": delay_s})

    async def _set_delay(self, request: web.Request) -> web.Response:
        """Set that time."""
        body = await json_object(request)
        delay_s = body.get("delay_seconds")
        if isinstance(delay_s, bool) or not isinstance(delay_s, int) or not 0 <= delay_s <= _DELAY_S_MAX:
            raise RefusedError(400, 'the body needs "delay_seconds": an integer number of seconds, at least 0')
        await self._controls.set_lost_bookie_delay_s(delay_s)
        return await self._delay(request)

    async def _unrecoverable(self, _: web.Request) -> web.Response:
        """List ledgers with entries that no replica could serve at the last attempt, with the reason."""
        found = [entry async for page in self._notes.pages() for entry in page]
        return web.json_response(
            [
                {
                    "ledger": entry.ledger,
                    "reason": entry.reason,
                    "since_ms": entry.since_ms,
                    "last_ms": entry.last_ms,
                    "attempts": entry.attempts,
                    "accepted_ms": entry.accepted_ms,
                }
                for entry in found
            ]
        )


class LimboApi:
    """`PUT /api/v1/quire/limbo/end {"ledger": id}`: this bookie again has all entries that it must have of a ledger.

    Sent by auto-recovery once every entry is durable here, or by an operator. Then a miss means *no such entry* again.
    """

    def __init__(self, bookie: Callable[[], RunningBookie]) -> None:
        self._bookie = bookie

    def routes(self) -> list[Route]:
        """Return path, method and handler of the route."""
        return [Route("PUT", "/api/v1/quire/limbo/end", self._end, Need.CHANGE)]

    async def _end(self, request: web.Request) -> web.Response:
        """End the limbo of this bookie."""
        body = await json_object(request)
        ledger = body.get("ledger")
        if isinstance(ledger, bool) or not isinstance(ledger, int) or not 0 <= ledger < 2**63:
            raise RefusedError(400, 'the body needs "ledger": the id of the ledger')
        storage = self._bookie().storage
        await storage.end_limbo(LedgerId(ledger))
        return web.json_response({"ledger": ledger, "inLimbo": storage.in_limbo})
