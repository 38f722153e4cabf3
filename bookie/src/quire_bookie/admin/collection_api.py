"""`/api/v1/bookie/gc...`: reports and controls garbage collection and compaction.

BookKeeper has no counterpart of fuse, hold and metadata doubt: `/api/v1/bookie/gc/fuse`, `/api/v1/bookie/gc/hold` and
`/api/v1/bookie/gc/metadata`.
"""

from collections.abc import Callable

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, json_object, truth
from quire_bookie.admin.routes import Need, Route
from quire_bookie.server.process import RunningBookie
from quire_bookie.settings.compaction import Kind

_ROOT = "/api/v1/bookie/gc"


class CollectionApi:
    """Handles the requests. `bookie` raises HTTP 503 while the bookie starts."""

    def __init__(self, bookie: Callable[[], RunningBookie]) -> None:
        self._bookie = bookie

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", _ROOT, self._is_forced, Need.READ),
            Route("PUT", _ROOT, self._force, Need.CHANGE),
            Route("GET", "/api/v1/bookie/gc_details", self._details, Need.READ),
            Route("GET", f"{_ROOT}/suspend_compaction", self._suspended, Need.READ),
            Route("PUT", f"{_ROOT}/suspend_compaction", self._suspend, Need.CHANGE),
            Route("GET", f"{_ROOT}/resume_compaction", self._suspended, Need.READ),
            Route("PUT", f"{_ROOT}/resume_compaction", self._resume, Need.CHANGE),
            Route("GET", f"{_ROOT}/fuse", self._fuse, Need.READ),
            Route("PUT", f"{_ROOT}/fuse", self._reset_fuse, Need.CHANGE),
            Route("GET", f"{_ROOT}/metadata", self._metadata, Need.READ),
            Route("GET", f"{_ROOT}/hold", self._hold, Need.READ),
            Route("PUT", f"{_ROOT}/hold", self._set_hold, Need.CHANGE),
        ]

    async def _is_forced(self, _: web.Request) -> web.Response:
        """Return whether a forced garbage collection is waiting or running."""
        bookie = self._bookie()
        forced = bookie.garbage_collection.is_running or bookie.compaction.status().force_compacting
        return web.json_response({"is_in_force_gc": str(forced).lower()})

    async def _force(self, request: web.Request) -> web.Response:
        """Search for deleted ledgers now, then compact; without a body both kinds of compaction."""
        body = await json_object(request)
        bookie = self._bookie()
        minor, major = truth(body, "forceMinor", default=True), truth(body, "forceMajor", default=True)
        bookie.garbage_collection.force(then=lambda: bookie.compaction.force(minor=minor, major=major))
        return web.json_response({"triggered": True, "forceMinor": minor, "forceMajor": major})

    async def _details(self, _: web.Request) -> web.Response:
        """Return a list, because BookKeeper has one entry per collector."""
        status = self._bookie().compaction.status()
        return web.json_response(
            [
                {
                    "forceCompacting": status.force_compacting,
                    "majorCompacting": status.major_compacting,
                    "minorCompacting": status.minor_compacting,
                    "lastMajorCompactionTime": status.last_major_compaction_time_ms,
                    "lastMinorCompactionTime": status.last_minor_compaction_time_ms,
                    "majorCompactionCounter": status.major_compaction_counter,
                    "minorCompactionCounter": status.minor_compaction_counter,
                }
            ]
        )

    async def _suspended(self, _: web.Request) -> web.Response:
        """Return whether minor and major compaction are suspended."""
        compaction = self._bookie().compaction
        return web.json_response(
            {
                "isMajorGcSuspended": str(compaction.is_suspended(Kind.MAJOR)).lower(),
                "isMinorGcSuspended": str(compaction.is_suspended(Kind.MINOR)).lower(),
            }
        )

    async def _suspend(self, request: web.Request) -> web.Response:
        """Suspend minor or major compaction, or both."""
        body = await json_object(request)
        self._bookie().compaction.suspend(
            minor=truth(body, "suspendMinor", default=False), major=truth(body, "suspendMajor", default=False)
        )
        return await self._suspended(request)

    async def _resume(self, request: web.Request) -> web.Response:
        """Resume minor or major compaction, or both."""
        body = await json_object(request)
        self._bookie().compaction.resume(
            minor=truth(body, "resumeMinor", default=False), major=truth(body, "resumeMajor", default=False)
        )
        return await self._suspended(request)

    async def _fuse(self, _: web.Request) -> web.Response:
        """Return whether the fuse of garbage collection has blown, and why."""
        collection = self._bookie().garbage_collection
        await collection.fuse.load()
        blown = collection.fuse.blown
        if blown is None:
            return web.json_response({"blown": False})
        return web.json_response(
            {
                "blown": True,
                "reason": blown.reason,
                "missing": blown.missing,
                "held": blown.held,
                "since": blown.since_ms,
            }
        )

    async def _reset_fuse(self, request: web.Request) -> web.Response:
        """Handle `{"reset": true}`: the missing ledgers may be deleted."""
        if not truth(await json_object(request), "reset"):
            raise RefusedError(400, 'a fuse can only be reset: send {"reset": true}')
        await self._bookie().garbage_collection.reset_fuse()
        return await self._fuse(request)

    async def _metadata(self, _: web.Request) -> web.Response:
        """Report whether the metadata went back in time, and what this bookie remembers of ledger ids."""
        bookie = self._bookie()
        marks, reason = bookie.storage.id_marks, bookie.metadata_doubt.reason
        return web.json_response(
            {
                "inDoubt": reason is not None,
                "reason": reason or "",
                "epoch": marks.seen.epoch,
                "counter": marks.seen.short,
                "longCounter": marks.seen.long,
                "highestLedger": marks.short,
                "highestLongLedger": marks.long,
            }
        )

    async def _hold(self, _: web.Request) -> web.Response:
        """Return the hold that keeps garbage collection from deleting."""
        fuse = self._bookie().garbage_collection.fuse
        await fuse.load()
        return web.json_response({"hold": fuse.hold is not None, "reason": fuse.hold or ""})

    async def _set_hold(self, request: web.Request) -> web.Response:
        """Handle `{"hold": true, "reason": "..."}`: delete nothing here until the hold is lifted; survives restarts."""
        body = await json_object(request)
        reason = str(body.get("reason", "")) if truth(body, "hold") else None
        await self._bookie().garbage_collection.fuse.set_hold(reason)
        return await self._hold(request)
