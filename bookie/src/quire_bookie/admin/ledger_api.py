"""`/api/v1/ledger/...`: lists ledgers by their metadata, and reads entries like any reader.

Never opens a ledger with recovery, which would fence its writer. A deletion removes the metadata; the bookies' garbage
collection frees the space later.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, flag, integer
from quire_bookie.admin.routes import Need, Route
from quire_bookie.client import LedgerClient
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId, LedgerMetadata

LEDGERS_PER_PAGE = 100
"""With metadata; ids alone are listed completely unless a page is requested."""
ENTRIES_PER_PAGE = 1000
OpenClient = Callable[[], Awaitable[LedgerClient]]


def metadata_text(metadata: LedgerMetadata) -> str:
    """Return one line of text in BookKeeper's format. Never includes the password."""
    segments = "".join(
        f"{'' if index == 0 else ', '}{segment.first_entry}=[{', '.join(segment.ensemble)}]"
        for index, segment in enumerate(metadata.segments)
    )
    closed = f", lastEntryId={metadata.last_entry}, length={metadata.length}" if metadata.state == 3 else ""
    custom = ", ".join(f"{key}={value!r}" for key, value in metadata.custom.items())
    return (
        f"LedgerMetadata{{formatVersion={metadata.format_version}, ensembleSize={metadata.ensemble_size}, "
        f"writeQuorumSize={metadata.write_quorum}, ackQuorumSize={metadata.ack_quorum}, "
        f"state={metadata.state.name}{closed}, digestType={metadata.digest_type.name}, password=OMITTED, "
        f"ensembles={{{segments}}}, customMetadata={{{custom}}}}}"
    )


class LedgerApi:
    """Handles the requests."""

    def __init__(self, store: MetadataStore, open_client: OpenClient) -> None:
        self._nodes = LedgerNodes(store)
        self._open_client = open_client

    def routes(self) -> list[Route]:
        """Return the routes with their permissions."""
        return [
            Route("GET", "/api/v1/ledger/list", self._list, Need.READ),
            Route("GET", "/api/v1/ledger/metadata", self._metadata, Need.READ),
            Route("GET", "/api/v1/ledger/read", self._read, Need.READ),
            Route("DELETE", "/api/v1/ledger/delete", self._delete, Need.CHANGE),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        """List ids with null or with their metadata; `page` starts at 1."""
        with_metadata = flag(request, "print_metadata")
        page = integer(request, "page", 1 if with_metadata else 0)
        if page < 0:
            raise RefusedError(400, f"page={page}: pages start at 1")
        ids: list[LedgerId] = []
        wanted = page * LEDGERS_PER_PAGE if page else None
        async for some in self._nodes.ids():
            ids += some
            if wanted is not None and len(ids) >= wanted:
                break
        if page:
            ids = ids[(page - 1) * LEDGERS_PER_PAGE : wanted]
        found: dict[str, str | None] = {str(ledger): None for ledger in ids}
        if with_metadata:
            for ledger in ids:
                found[str(ledger)] = metadata_text((await self._nodes.read(ledger)).value)
        return web.json_response(found)

    async def _metadata(self, request: web.Request) -> web.Response:
        """Return the metadata of a ledger."""
        ledger = _ledger(request)
        return web.json_response({str(ledger): metadata_text((await self._nodes.read(ledger)).value)})

    async def _read(self, request: web.Request) -> web.Response:
        """Return entries as text, by id. Without recovery: of an open ledger only the confirmed entries."""
        ledger = _ledger(request)
        metadata = (await self._nodes.read(ledger)).value
        client = await self._open_client()
        reader = await client.open_ledger(ledger, password=metadata.password, recover=False)
        try:
            last_there = reader.last_add_confirmed
            first = integer(request, "start_entry_id", 0)
            last = integer(request, "end_entry_id", -1)
            page = integer(request, "page", 1)
            if first < 0 or page < 1:
                raise RefusedError(400, f"start_entry_id={first}, page={page}: entries start at 0, pages at 1")
            last = last_there if last == NO_ENTRY else min(last, last_there)
            first += (page - 1) * ENTRIES_PER_PAGE
            last = min(last, first + ENTRIES_PER_PAGE - 1)
            entries = await reader.read(EntryId(first), EntryId(last)) if first <= last else []
            return web.json_response(
                {str(entry.entry_id): bytes(entry.payload).decode("utf-8", "replace") for entry in entries}
            )
        finally:
            await reader.close()

    async def _delete(self, request: web.Request) -> web.Response:
        """Delete a ledger."""
        ledger = _ledger(request)
        await self._nodes.read(ledger)
        await self._nodes.delete(ledger)
        return web.json_response({"deleted": ledger})


def _ledger(request: web.Request) -> LedgerId:
    ledger = integer(request, "ledger_id")
    if ledger < 0:
        raise RefusedError(400, f"ledger_id={ledger}: ledger ids are not negative")
    return LedgerId(ledger)
