"""GET .../{topic}/internal-info: the nodes of a managed ledger and its cursors, as they are stored. Loads no topic.

    {"version", "creationDate", "modificationDate", "ledgers": [...], "terminatedPosition", "properties",
     "cursors": {name: {"version", ..., "cursorsLedgerId", "markDelete", "individualDeletedMessages", "properties"}}}

A partitioned topic has {"version", "partitions": {topic: as above}}. The store keeps no times of nodes: dates are null.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import unquote_plus

from aiohttp import web

from quire_broker.admin.answers import answer
from quire_broker.admin.context import broker_of, topic_name_of
from quire_broker.admin.descriptions import OBJECT, described
from quire_broker.admin.routes import Need, Route
from quire_broker.errors import TopicNotFoundError
from quire_broker.limits import INFO_CURSORS_MAX, INFO_RANGES_MAX
from quire_broker.managed_ledger.cursors.cursor_state import decode_node
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.managed_ledger.position import Position
from quire_broker.names import TopicName

_NO_DATES = {"creationDate": None, "modificationDate": None}


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    path = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}/internal-info"
    yield Route("GET", path, info, Need.NAMESPACE)


@described(returns=OBJECT)
async def info(request: web.Request) -> web.Response:
    """Return the stored state of a topic, or of each partition that was used."""
    name = topic_name_of(request)
    count = await broker_of(request).policies.partitions(name, fresh=True)
    if count:
        found = {str(each): await _stored(request, each) for each in name.partitions(count)}
        return answer({"version": 0, "partitions": {key: value for key, value in found.items() if value is not None}})
    stored = await _stored(request, name)
    if stored is None:
        raise TopicNotFoundError(f"Topic {name} not found")
    return answer(stored)


async def _stored(request: web.Request, name: TopicName) -> dict[str, Any] | None:
    store, path = broker_of(request).metadata, node_path(name.ledger_name)
    node = await store.get(path)
    if node is None:
        return None
    found = decode_list(node.value)
    cursors: dict[str, Any] = {}
    async for page in store.scan(f"{path}/"):
        for cursor in page[: INFO_CURSORS_MAX - len(cursors)]:
            encoded = cursor.key.removeprefix(f"{path}/")
            if "/" not in encoded:
                cursors[unquote_plus(encoded)] = {"version": cursor.version, **_NO_DATES, **_cursor(cursor.value)}
        if len(cursors) >= INFO_CURSORS_MAX:
            break
    return {
        "version": node.version,
        **_NO_DATES,
        "ledgers": [_ledger(record) for record in found.ledgers],
        "terminatedPosition": None if found.terminated is None else _position(found.terminated),
        "cursors": cursors,
        "properties": dict(found.properties),
    }


def _ledger(record: LedgerRecord) -> dict[str, Any]:
    closed = record.closed_ms > 0
    return {
        "ledgerId": record.ledger_id,
        "entries": record.entries if closed else None,
        "size": record.size_bytes if closed else None,
        "timestamp": record.closed_ms if closed else None,
        "isOffloaded": record.offloaded,
    }


def _position(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


def _cursor(value: bytes) -> dict[str, Any]:
    node = decode_node(value)
    ranges = [
        {
            "from": _position(Position(one.ledger_id, one.first - 1)),
            "to": _position(Position(one.ledger_id, one.last)),
        }
        for one in islice(node.state.ranges, INFO_RANGES_MAX)
    ]
    return {
        "cursorsLedgerId": node.ledger_id,
        "markDelete": _position(node.state.mark_delete) if node.ledger_id < 0 else None,
        "individualDeletedMessages": ranges,
        "properties": dict(node.state.properties),
    }
