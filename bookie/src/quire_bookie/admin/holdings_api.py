"""`/api/v1/quire/holdings`: reports what this bookie stores, independent of the metadata; used after a restore.

    GET /api/v1/quire/holdings?after=&limit=   {"bookie", "ledgers": [{"ledger", "last", "fenced", "limbo"}], "next"}
                                               and "quarantinedMs" of a ledger in quarantine: since when
    GET /api/v1/quire/holdings/{ledger}        {"ledger", "last", "lac", "length", "lastWriteMs", "fenced", "limbo"}
    GET /api/v1/quire/cookie                   {"bookie", "cookie": the text of its VERSION file}

`last`: the highest entry stored; null if there is none or damage hides it. `length`: payload bytes of the ledger up to
that entry. `lastWriteMs`: time of the entry log with the last entry, so not before that entry was written; null while
it is in memory. Deleted ledgers are omitted. Changes nothing.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import integer, whole_number
from quire_bookie.admin.routes import Need, Route
from quire_bookie.env.disk import Disk
from quire_bookie.errors import DamagedError, NoSuchLedgerError, QuireError
from quire_bookie.metadata import layout
from quire_bookie.model import ENTRY_HEADER_BYTES, LedgerId
from quire_bookie.server.process import RunningBookie
from quire_bookie.server.start.storage_folders import CURRENT
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo

PAGE_LEDGERS_MAX = 20_000
"""A page iterates over the ids of all ledgers, so a few large pages cost less."""
_LENGTH = Struct(">q")
_LENGTH_OFFSET = 24


class HoldingsApi:
    """Handles the requests. `bookie` raises HTTP 503 while the bookie starts."""

    def __init__(self, bookie: Callable[[], RunningBookie], disk: Disk) -> None:
        self._bookie = bookie
        self._disk = disk

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", "/api/v1/quire/holdings", self._list, Need.READ),
            Route("GET", "/api/v1/quire/holdings/{ledger:[0-9]+}", self._one, Need.READ),
            Route("GET", "/api/v1/quire/cookie", self._cookie, Need.READ),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        """Return a page of the ledgers that this bookie holds."""
        after = integer(request, "after", -1)
        limit = max(1, min(integer(request, "limit", PAGE_LEDGERS_MAX), PAGE_LEDGERS_MAX))
        bookie = self._bookie()
        ids = [ledger for ledger in await bookie.storage.ledgers() if ledger > after]
        found = [await self._describe(bookie, ledger) for ledger in ids[:limit]]
        more = len(ids) > limit
        return web.json_response(
            {"bookie": bookie.bookie_id, "ledgers": found, "next": ids[limit - 1] if more else None}
        )

    async def _describe(self, bookie: RunningBookie, ledger: LedgerId) -> dict[str, Any]:
        try:
            info = await bookie.storage.load_ledger(ledger)
        except DamagedError as error:
            return {"ledger": ledger, "last": None, "fenced": True, "limbo": False, "problem": str(error)}
        if info is None:
            return _lost(ledger)
        known = bookie.storage.ledger_quarantine.get(ledger)
        if known is None or known.is_undeleted:
            return _seen(info)
        return _seen(info) | {"quarantinedMs": known.since_ms}

    async def _one(self, request: web.Request) -> web.Response:
        """Return what this bookie holds of a ledger."""
        number = whole_number("ledger", request.match_info["ledger"], 0, layout.LEDGER_IDS_END - 1)
        storage = self._bookie().storage
        info = await storage.load_ledger(LedgerId(number))
        if info is None and storage.is_limbo(LedgerId(number)):
            return web.json_response(_lost(number) | {"lac": -1, "length": None, "lastWriteMs": None})
        if info is None or info.deleted:
            raise NoSuchLedgerError(f"ledger {number} is not stored on this bookie")
        length = None
        if info.last_entry >= 0 and not info.last_unproven:
            try:
                body = await storage.read(info.ledger_id, info.last_entry)
            except QuireError:
                body = b""
            length = _LENGTH.unpack_from(body, _LENGTH_OFFSET)[0] if len(body) >= ENTRY_HEADER_BYTES else None
        written_ms = await self._written_ms(info)
        return web.json_response(_seen(info) | {"lac": info.lac, "length": length, "lastWriteMs": written_ms})

    async def _written_ms(self, info: LedgerInfo) -> int | None:
        if info.last_entry < 0:
            return None
        try:
            log = await self._bookie().storage.log_of(info.ledger_id, info.last_entry)
        except QuireError:
            return None
        return None if log is None else await self._disk.modified_ms(log)

    async def _cookie(self, _: web.Request) -> web.Response:
        """Return the cookie of this bookie's storage."""
        bookie = self._bookie()
        text = await self._disk.read_file(f"{bookie.settings.ledger_paths[0]}/{CURRENT}/VERSION")
        return web.json_response({"bookie": bookie.bookie_id, "cookie": text.decode()})


def _lost(ledger: int) -> dict[str, Any]:
    """Describe a ledger of a bookie in limbo: it is unknown which entries the bookie had."""
    return {"ledger": ledger, "last": None, "fenced": True, "limbo": True}


def _seen(info: LedgerInfo) -> dict[str, Any]:
    return {
        "ledger": info.ledger_id,
        "last": None if info.last_unproven or info.last_entry < 0 else info.last_entry,
        "fenced": info.fenced,
        "limbo": info.limbo,
    }
