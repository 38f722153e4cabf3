"""`/api/v1/bookie/...`: reports this bookie's state, space and files, and executes operator requests."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, json_object, truth
from quire_bookie.admin.load_window import Counters, LoadWindow
from quire_bookie.admin.routes import Need, Route
from quire_bookie.client import LedgerClient
from quire_bookie.env.disk import Disk
from quire_bookie.env.machine import process_cpu_s
from quire_bookie.errors import QuireError
from quire_bookie.model import EntryId
from quire_bookie.server.process import BookieState, RunningBookie

_log = logging.getLogger("quire.admin")
SANITY_ENTRIES = 10
SANITY_TIMEOUT_S = 30.0


class BookieApi:
    """Handles the requests. `bookie` raises HTTP 503 while the bookie starts."""

    def __init__(
        self, bookie: Callable[[], RunningBookie], disk: Disk, open_client: Callable[[], Awaitable[LedgerClient]]
    ) -> None:
        self._bookie = bookie
        self._disk = disk
        self._open_client = open_client
        self._window = LoadWindow()

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", "/api/v1/bookie/info", self._info, Need.READ),
            Route("GET", "/api/v1/bookie/state", self._state, Need.READ),
            Route("GET", "/api/v1/bookie/state/readonly", self._read_only, Need.READ),
            Route("PUT", "/api/v1/bookie/state/readonly", self._set_read_only, Need.CHANGE),
            Route("GET", "/api/v1/bookie/load", self._load, Need.READ),
            Route("GET", "/api/v1/bookie/sanity", self._sanity, Need.CHANGE),
            Route("GET", "/api/v1/bookie/last_log_mark", self._mark, Need.READ),
            Route("GET", "/api/v1/bookie/list_disk_file", self._files, Need.READ),
            Route("GET", "/api/v1/bookie/scrub", self._scrub, Need.READ),
            Route("GET", "/api/v1/bookie/quarantine", self._quarantine, Need.READ),
            Route("PUT", "/api/v1/bookie/expand_storage", self._expand, Need.CHANGE),
        ]

    async def _info(self, _: web.Request) -> web.Response:
        """Return the free and the total bytes of the ledger folders."""
        monitor = self._bookie().disk_monitor
        total, free = (0, 0) if monitor is None else (monitor.total_bytes, monitor.free_bytes)
        return web.json_response({"freeSpace": free, "totalSpace": total})

    async def _state(self, _: web.Request) -> web.Response:
        """Return the state as BookKeeper's tools expect it."""
        bookie = self._bookie()
        state = bookie.state
        return web.json_response(
            {
                "running": state in (BookieState.WRITABLE, BookieState.READ_ONLY),
                "readOnly": state is not BookieState.WRITABLE,
                "shuttingDown": state is BookieState.STOPPED,
                "availableForHighPriorityWrites": bookie.read_only_mode.accepts_high_priority,
                "readOnlyReasons": sorted(reason.value for reason in bookie.read_only_mode.reasons),
                "inLimbo": bookie.storage.in_limbo,
                "scrubEndedMs": bookie.scrubbing.ended_ms,
                "scrubDamages": len(bookie.scrubbing.damage.findings),
            }
        )

    async def _load(self, _: web.Request) -> web.Response:
        """Report the load of about the last minute; null until a minute has passed since the first request."""
        bookie = self._bookie()
        stats, journal = bookie.bookie.stats, bookie.journal.stats
        now = Counters(
            asyncio.get_running_loop().time(),
            tuple(journal.write_seconds.counts),
            tuple(stats.add_seconds.counts),
            stats.add_bytes,
            stats.read_bytes,
            process_cpu_s(),
        )
        found = self._window.load(now)
        return web.json_response({"window": None if found is None else found.plain()})

    async def _read_only(self, _: web.Request) -> web.Response:
        """Return whether the bookie is read-only."""
        return web.json_response({"readOnly": self._bookie().state is not BookieState.WRITABLE})

    async def _set_read_only(self, request: web.Request) -> web.Response:
        """Make the bookie read-only, or end that."""
        bookie = self._bookie()
        await bookie.set_read_only(truth(await json_object(request), "readOnly"))
        return await self._read_only(request)

    async def _sanity(self, _: web.Request) -> web.Response:
        """Write a ledger to this bookie, read it back, and delete it."""
        bookie = self._bookie()
        read_only = bookie.state is not BookieState.WRITABLE
        passed = False
        try:
            async with asyncio.timeout(SANITY_TIMEOUT_S):
                passed = not read_only and await self._round_trip(bookie)
        except (QuireError, TimeoutError) as error:
            _log.warning("the sanity check failed: %s", error or "no response in time")
        return web.json_response({"passed": passed or read_only, "readOnly": read_only})

    async def _round_trip(self, bookie: RunningBookie) -> bool:
        client = await self._open_client()
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1, bookies=(bookie.bookie_id,))
        try:
            written = [b"sanity %d" % number for number in range(SANITY_ENTRIES)]
            for payload in written:
                await writer.append(payload)
            found = await writer.read(EntryId(0), EntryId(SANITY_ENTRIES - 1))
            await writer.close()
            return [bytes(entry.payload) for entry in found] == written
        finally:
            await client.delete_ledger(writer.ledger_id)

    async def _mark(self, _: web.Request) -> web.Response:
        """Return the position of the journal up to which the storage has flushed."""
        marks = {
            f"LastLogMark: Journal Id {mark.generation}({mark.generation:x}.txn)": f"Pos: {mark.offset}"
            for mark in self._bookie().journal.mark
        }
        return web.json_response(marks)

    async def _files(self, request: web.Request) -> web.Response:
        """List file names, one line per kind, as BookKeeper does; `file_type` selects kinds."""
        settings = self._bookie().settings
        kinds = {
            "journal": ("journal files", list(settings.journal_paths)),
            "entrylog": ("entrylog files", list(settings.ledger_paths)),
            "index": ("index files", [settings.index_path]),
        }
        wanted = request.query.get("file_type")
        found = {}
        for kind, (title, folders) in kinds.items():
            if wanted is None or kind in wanted.split(","):
                try:
                    names = [name for folder in folders for name in await self._disk.list_dir(folder)]
                except FileNotFoundError as error:
                    raise RefusedError(503, f"a folder of the bookie is missing: {error}; mount its volume") from None
                found[title] = " \t".join(name for name in names if kind == "index" or name.endswith(".log"))
        return web.json_response(found)

    async def _scrub(self, _: web.Request) -> web.Response:
        """Report the findings and the position of the background scrub. BookKeeper has no such path."""
        scrubbing = self._bookie().scrubbing
        position = scrubbing.position
        return web.json_response(
            {
                "rounds": scrubbing.stats.rounds,
                "log": None if position is None else position.log,
                "damages": [
                    {
                        "ledger": damage.ledger,
                        "first": damage.first,
                        "last": damage.last,
                        "path": damage.path,
                        "offset": damage.offset,
                        "what": damage.what,
                    }
                    for damage in scrubbing.damage.findings
                ],
            }
        )

    async def _quarantine(self, _: web.Request) -> web.Response:
        """List entry logs that cannot be trusted as a whole; their intact entries are served."""
        return web.json_response(
            [
                {"log": log.log, "path": log.path, "reason": log.reason, "since": log.since_ms}
                for log in self._bookie().storage.quarantined
            ]
        )

    async def _expand(self, _: web.Request) -> web.Response:
        """Refuse: BookKeeper records new folders for the next start here; our next start finds them itself."""
        raise RefusedError(
            409,
            "add the empty folders to journalDirectories or ledgerDirectories and restart the bookie with "
            "allowStorageExpansion=true",
        )
