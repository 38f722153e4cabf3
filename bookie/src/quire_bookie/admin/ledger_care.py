"""`/admin/quire/ledgers`: serves `quire ledger` from the cluster's metadata and bookies.

    GET    /admin/quire/ledgers?after=<id>&limit=<n>       {"ledgers": [as `describe`], "next": id or null}
    GET    /admin/quire/ledgers/{id}                       as `describe`
    GET    /admin/quire/ledgers/{id}/entries?first=&last=  {"ledgerId", "lastAddConfirmed", "entries": [...]}
    GET    /admin/quire/ledgers/{id}/check                 JSON lines: {"done", "of"}, {"bookie", ...}, the sums
    PUT    /admin/quire/ledgers/{id}/recover               fences the writer and closes the ledger
    DELETE /admin/quire/ledgers/{id}                       the metadata; the bookies free the space later

Reading and checking never open a ledger with recovery: that would fence its writer.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, integer, whole_number
from quire_bookie.admin.routes import Need, Route
from quire_bookie.client.ledger_description import describe
from quire_bookie.client.reading.ledger_reader import LedgerReader
from quire_bookie.client.recovery import recover_ledger
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import MetadataFormatError, NoSuchEntryError, QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.restoration import read_restoration
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import EntryId, LedgerId, LedgerMetadata
from quire_bookie.quorum.wanted_copies import missing_copies
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.recovery.fragment_check import Health
from quire_bookie.recovery.ledger_folders import ledger_folders
from quire_bookie.recovery.ledger_report import Piece, report_on

PAGE_LEDGERS_MAX = 1000
PAGE_ENTRIES_MAX = 100
PAGE_BYTES_MAX = 5 * 1024 * 1024
CHECK_READS_S = 5000.0
"""Default rate of reads per second that one check sends to all bookies; the query's `rate` overrides it."""
SIGN_OF_LIFE_S = 10.0
"""Interval of progress lines while one piece of a check takes longer, e.g. due to a silent bookie or a low rate."""
ROOT = "/admin/quire/ledgers"
OpenAccess = Callable[[], Awaitable[ClusterAccess]]


class LedgerCare:
    """Handles the requests. `open_access` opens access to the cluster on first use."""

    def __init__(self, store: MetadataStore, open_access: OpenAccess) -> None:
        self._store = store
        self._open_access = open_access

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        one = f"{ROOT}/{{ledger:[0-9]+}}"
        return [
            Route("GET", ROOT, self._list, Need.READ),
            Route("GET", one, self._info, Need.READ),
            Route("GET", f"{one}/entries", self._entries, Need.READ),
            *self.acting_routes(),
        ]

    def acting_routes(self) -> list[Route]:
        """Return the routes that a broker does not have itself."""
        one = f"{ROOT}/{{ledger:[0-9]+}}"
        return [
            Route("GET", f"{one}/check", self._check, Need.READ),
            Route("PUT", f"{one}/recover", self._recover, Need.CHANGE),
            Route("DELETE", one, self._delete, Need.CHANGE),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        """Return a page of the ledgers of the cluster."""
        after, limit = integer(request, "after", -1), integer(request, "limit", 100)
        limit = max(1, min(limit, PAGE_LEDGERS_MAX))
        found: list[dict[str, Any]] = []
        async for ledger, metadata in _after(self._store, after):
            if len(found) == limit:
                return web.json_response({"ledgers": found, "next": found[-1]["ledgerId"]})
            found.append(_unreadable(ledger) if metadata is None else describe(ledger, metadata))
        return web.json_response({"ledgers": found, "next": None})

    async def _info(self, request: web.Request) -> web.Response:
        """Return the metadata of a ledger."""
        access, ledger = await self._open_access(), _ledger(request)
        return web.json_response(describe(ledger, (await access.nodes.read(ledger)).value))

    async def _entries(self, request: web.Request) -> web.Response:
        """Return up to 100 entries and 5 MiB, payloads in base64."""
        access, ledger = await self._open_access(), _ledger(request)
        metadata = (await access.nodes.read(ledger)).value
        first = integer(request, "first", 0)
        last = min(integer(request, "last", first + PAGE_ENTRIES_MAX - 1), first + PAGE_ENTRIES_MAX - 1)
        reader = await LedgerReader.open(access.handle(ledger, metadata), metadata)
        try:
            lac = reader.last_add_confirmed
            if lac < 0:
                raise NoSuchEntryError(f"ledger {ledger} has no confirmed entry that can be read yet")
            if not 0 <= first <= min(last, lac):
                raise NoSuchEntryError(f"ledger {ledger} has entries 0 to {lac}; asked for {first} to {last}")
            entries = await reader.read(EntryId(first), EntryId(min(last, lac)), bytes_max=PAGE_BYTES_MAX)
            shown = [
                {
                    "entryId": entry.entry_id,
                    "length": len(entry.payload),
                    "payload": b64encode(bytes(entry.payload)).decode(),
                }
                for entry in entries
            ]
        finally:
            await reader.close()
        return web.json_response({"ledgerId": ledger, "lastAddConfirmed": lac, "entries": shown})

    async def _check(self, request: web.Request) -> web.StreamResponse:
        """Check every replica of every entry; one line per finding. A failed check ends with {"error": ...}."""
        access, ledger = await self._open_access(), _ledger(request)
        rate = integer(request, "rate", int(CHECK_READS_S))
        missing = missing_copies((await access.nodes.read(ledger)).value)  # also returns 404 for a missing ledger
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        damages = unknown = 0
        try:
            async with aclosing(_with_signs_of_life(report_on(access, ledger, RateLimit(rate)))) as pieces:
                async for piece in pieces:
                    for damage in piece.damages:
                        unknown += damage.health is Health.UNKNOWN
                        damages += damage.health is not Health.UNKNOWN
                        found = {"bookie": damage.bookie, "first": damage.first, "last": damage.last}
                        await _line(answer, found | {"kind": damage.health.name.lower(), "reason": damage.reason})
                    await _line(answer, {"done": piece.entries_done, "of": piece.entries})
            await _line(answer, {"damages": damages, "unknown": unknown, "missingCopies": missing})
        except QuireError as error:
            await _line(answer, {"error": str(error)})
        await answer.write_eof()
        return answer

    async def _recover(self, request: web.Request) -> web.Response:
        """Fence and close a ledger."""
        access, ledger = await self._open_access(), _ledger(request)
        if await read_restoration(self._store) is not None:
            # With restored metadata, a recovery may end before entries that a later ensemble acknowledged.
            raise RefusedError(
                409, f"the metadata was restored and is under review: use `quire metadata orphans adopt {ledger}`"
            )
        stored = await access.nodes.read(ledger)
        closed = await recover_ledger(access.handle(ledger, stored.value), stored)
        return web.json_response(describe(ledger, closed.value))

    async def _delete(self, request: web.Request) -> web.Response:
        """Delete a ledger."""
        access, ledger = await self._open_access(), _ledger(request)
        await access.nodes.delete(ledger)
        return web.json_response({"deleted": ledger})


async def _line(answer: web.StreamResponse, value: dict[str, Any]) -> None:
    await answer.write(json.dumps(value).encode() + b"\n")


async def _with_signs_of_life(pieces: AsyncIterator[Piece]) -> AsyncGenerator[Piece, None]:
    """Yield the pieces; repeat the previous one while the next takes long, so that the client does not give up."""
    last = Piece(0, 0, ())
    step = asyncio.ensure_future(anext(pieces))
    try:
        while True:
            await asyncio.wait((step,), timeout=SIGN_OF_LIFE_S)
            if step.done():
                try:
                    last = step.result()
                except StopAsyncIteration:
                    return
                step = asyncio.ensure_future(anext(pieces))
            yield last
            last = replace(last, damages=())
    finally:
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)


async def _after(store: MetadataStore, after: int) -> AsyncIterator[tuple[LedgerId, LedgerMetadata | None]]:
    """Yield ledgers above an id, ascending, by folder: lower folders are not read. None: the metadata is unreadable."""
    async for folder in ledger_folders(store):
        if _highest(folder) <= after:
            continue
        async for page in store.scan(folder):
            for node in page:
                ledger = layout.ledger_of_path(node.key)
                if ledger is None or ledger <= after:
                    continue
                try:
                    metadata = decode_ledger_metadata(node.value)
                except MetadataFormatError:
                    yield ledger, None
                else:
                    yield ledger, metadata


def _unreadable(ledger: LedgerId) -> dict[str, Any]:
    nothing = (
        "ensembleSize",
        "writeQuorum",
        "ackQuorum",
        "wantedCopies",
        "digestType",
        "lastEntry",
        "entries",
        "length",
    )
    return {"ledgerId": ledger, "state": "UNREADABLE", **dict.fromkeys(nothing), "segments": [], "custom": {}}


def _highest(folder: str) -> int:
    return int(folder.removeprefix(layout.ROOT).replace("/", "") + "9999")


def _ledger(request: web.Request) -> LedgerId:
    return LedgerId(whole_number("ledger", request.match_info["ledger"], 0, layout.LEDGER_IDS_END - 1))
