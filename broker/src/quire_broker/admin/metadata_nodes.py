"""The nodes of the metadata store, for programs that reach this broker but not the store. Reads only.

    GET /admin/quire/metadata/nodes?key=K&key=...     [node or null, ...]: in order, all at one revision
    GET /admin/quire/metadata/children?key=K          ["name", ...]: the first component of the keys below K, sorted
    GET /admin/quire/metadata/scan?prefix=P/          all nodes whose key starts with P/, by key, at one revision

A node is {"key", "version", "value": base64}; with `keysOnly=true` a scan omits the values. A scan has a node in each
line, and last {"nodes": n}. A response without that line is incomplete: its last line is {"reason"}, or the connection
broke.

Only the folders of `READABLE` are served: what a reader of ledgers and topics needs. Ledgers' metadata contain their
passwords, so the routes are for super users. A scan of the embedded store keeps old pages of its database, so scans are
few at a time and end after `METADATA_SCAN_S`.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from typing import Any, Final

from aiohttp import web

from quire_bookie.admin.answers import RefusedError
from quire_bookie.errors import MetadataError
from quire_bookie.metadata import layout
from quire_bookie.metadata.contract import is_key
from quire_bookie.metadata.rack_map import RACK_MAP
from quire_bookie.metadata.restoration import RETURNING
from quire_bookie.metadata.store import Get, Node
from quire_broker.admin.answers import answer_list, flag
from quire_broker.admin.context import broker_of
from quire_broker.admin.descriptions import BOOLEAN, INTEGER, NAMES, TEXT, Query, described, fields
from quire_broker.admin.routes import Need, Route
from quire_broker.limits import METADATA_NODES_MAX, METADATA_SCAN_PAGE_NODES, METADATA_SCAN_S, METADATA_SCANS_MAX
from quire_broker.managed_ledger import list_store
from quire_broker.policies.store import PARTITIONED_TOPICS
from quire_broker.schemas import stored

SCANS: web.AppKey[asyncio.Semaphore] = web.AppKey("scans of metadata", asyncio.Semaphore)
READABLE: Final = (layout.ROOT, list_store.ROOT, stored.ROOT, PARTITIONED_TOPICS, RACK_MAP, RETURNING)
_LINES: Final = "application/x-ndjson"
_NODE: Final = fields(("key", "version"), key=TEXT, version=INTEGER, value=TEXT)


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    yield Route("GET", "/admin/quire/metadata/nodes", nodes, Need.SUPER_USER)
    yield Route("GET", "/admin/quire/metadata/children", children, Need.SUPER_USER)
    yield Route("GET", "/admin/quire/metadata/scan", scan, Need.SUPER_USER)


@described(
    Query("key", TEXT, "key of a node; may be repeated"),
    returns={"type": "array", "items": {"nullable": True, **_NODE}},
)
async def nodes(request: web.Request) -> web.StreamResponse:
    """Return the nodes with these keys, null for a missing one, all at one revision."""
    keys = request.query.getall("key", [])
    if not 0 < len(keys) <= METADATA_NODES_MAX:
        raise RefusedError(400, f"{len(keys)} keys: give 1 to {METADATA_NODES_MAX} by key=")
    found = await broker_of(request).metadata.read([Get(_readable(key)) for key in keys])
    return await answer_list(request, (_shown(read[0]) if read else None for read in found))


@described(Query("key", TEXT, "key above the children"), returns=NAMES)
async def children(request: web.Request) -> web.StreamResponse:
    """Return the names of the direct children of a key, sorted."""
    return await answer_list(
        request, await broker_of(request).metadata.children(_readable(request.query.get("key", "")))
    )


@described(
    Query("prefix", TEXT, "beginning of the keys, with / at its end"),
    Query("keysOnly", BOOLEAN, "without values"),
    returns=_NODE,
    media=_LINES,
)
async def scan(request: web.Request) -> web.StreamResponse:
    """Return all nodes under a prefix at one revision, as lines; see the module."""
    prefix = request.query.get("prefix", "")
    if not prefix.endswith("/"):
        raise RefusedError(400, f"prefix={prefix[:200]!r}: must end with /")
    _readable(prefix[:-1])
    gate = request.app[SCANS]
    if gate.locked():
        raise RefusedError(429, f"{METADATA_SCANS_MAX} scans of the metadata are running; try again")
    async with gate:
        return await _scan(request, prefix, keys_only=flag(request, "keysOnly"))


async def _scan(request: web.Request, prefix: str, *, keys_only: bool) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = _LINES
    try:
        # The deadline also ends a scan whose client reads nothing.
        async with asyncio.timeout(METADATA_SCAN_S), aclosing(_lines(request, prefix, keys_only=keys_only)) as pages:
            first = await anext(pages)  # an unavailable store is answered with a status
            await response.prepare(request)
            if request.method == "HEAD":
                return response
            with suppress(ConnectionError):  # the client has disconnected
                await response.write(first)
                async for page in pages:
                    await response.write(page)
                await response.write_eof()
    except MetadataError as error:
        if not response.prepared:
            raise
        with suppress(ConnectionError):
            await response.write_eof(_line({"reason": str(error)}))
    except TimeoutError:
        if not response.prepared:
            raise RefusedError(503, f"the metadata store did not answer within {METADATA_SCAN_S:.0f} s") from None
        if request.transport is not None:
            request.transport.abort()
    return response


async def _lines(request: web.Request, prefix: str, *, keys_only: bool) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a scan, a page at a time. MetadataError."""
    count = 0
    found = broker_of(request).metadata.scan(prefix, page_keys=METADATA_SCAN_PAGE_NODES, keys_only=keys_only)
    async for page in found:
        count += len(page)
        yield b"".join(_line(_shown(node, keys_only=keys_only)) for node in page)
    yield _line({"nodes": count})


def _readable(key: str) -> str:
    """Return the key if it is in a folder that is served. RefusedError 400 or 403."""
    if not is_key(key):
        raise RefusedError(400, f"key {key[:200]!r}: must begin with / and must not end with it")
    if not any(key == root or key.startswith(f"{root}/") for root in READABLE):
        raise RefusedError(403, f"key {key[:200]!r}: only keys under {', '.join(READABLE)} are served")
    return key


def _shown(node: Node, *, keys_only: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"key": node.key, "version": node.version}
    return found if keys_only else found | {"value": b64encode(node.value).decode()}


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
