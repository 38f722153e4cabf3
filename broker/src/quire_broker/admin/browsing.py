"""The stored messages of a topic, unpacked, for the web console. Reads, and acknowledges nothing.

GET /admin/quire/topics/T/messages?from=ledger:entry&count=n&key=k
    {"messages": [{"ledgerId", "entryId", "batchIndex", "payload": base64, ...}], "next": "ledger:entry" or null}

`from`: `earliest` (the default), `latest` (the last `count` entries), or an id. `key`: only messages with this key. One
request reads `BROWSED_ENTRIES_MAX` entries and `PEEK_BYTES_MAX` bytes at most; `next` continues, also after a search
that has found nothing yet. A partitioned topic has no messages itself: ask for each partition.
"""

import base64
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, whole_number
from quire_bookie.errors import PeerProtocolError
from quire_broker.admin.answers import answer
from quire_broker.admin.context import owned_topic
from quire_broker.admin.descriptions import INTEGER, OBJECT, TEXT, Query, described
from quire_broker.admin.routes import Need, Route
from quire_broker.limits import BROWSED_ENTRIES_MAX, BROWSED_MESSAGES_MAX, PEEK_BYTES_MAX
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.policies.fields import LONG_MAX
from quire_broker.wire.entry import peek
from quire_broker.wire.payload import messages_of


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "/admin/quire/topics/{domain:persistent}/{tenant}/{namespace}/{topic}"
    yield Route("GET", topic + "/messages", messages, Need.CONSUME)


@described(
    Query("count", INTEGER, "most messages"),
    Query("key", TEXT, "only messages with this key"),
    Query("from", TEXT, "earliest, latest or ledger:entry"),
    returns=OBJECT,
)
async def messages(request: web.Request) -> web.Response:
    """Return messages from a position on; see the module."""
    count = whole_number("count", request.query.get("count", "50"), 1, BROWSED_MESSAGES_MAX)
    key = request.query.get("key")
    topic = await owned_topic(request)
    position: Position | None = _start(request.query.get("from", "earliest"), topic.ledger, count)
    found: list[dict[str, Any]] = []
    read = size_bytes = 0
    while position is not None and len(found) < count and read < BROWSED_ENTRIES_MAX and size_bytes < PEEK_BYTES_MAX:
        wanted = BROWSED_ENTRIES_MAX - read if key is not None else min(count - len(found), BROWSED_ENTRIES_MAX - read)
        entries = await topic.ledger.read(position, entries_max=wanted, bytes_max=PEEK_BYTES_MAX - size_bytes)
        position = topic.ledger.next_position(entries[-1].position) if entries else None
        for number, entry in enumerate(entries):
            shown = [one for one in _shown(entry) if key is None or one.get("key") == key]
            found += shown
            read += 1
            size_bytes += len(entry.data) + sum(len(one.get("payload") or "") for one in shown)
            if (len(found) >= count or size_bytes >= PEEK_BYTES_MAX) and number + 1 < len(entries):
                position = entries[number + 1].position
                break
    if position is not None and position > topic.ledger.last_confirmed:
        position = None
    after = None if position is None else str(position)
    return answer({"messages": found, "next": after, "entriesRead": read})


def _start(text: str, ledger: ManagedLedger, count: int) -> Position:
    """Return the first position to read. RefusedError 400."""
    if text == "earliest":
        return ledger.first_position()
    if text == "latest":
        position = ledger.last_confirmed
        for _ in range(count - 1):
            position = ledger.previous_position(position)
        return max(position, ledger.first_position())
    numbers = text.split(":")
    if len(numbers) != 2:
        raise RefusedError(400, f"from={text[:100]!r}: give earliest, latest or ledger:entry")
    return Position(*(whole_number("from", each, 0, LONG_MAX) for each in numbers))


def _shown(entry: StoredEntry) -> list[dict[str, Any]]:
    """Return the messages of an entry; one without payload, with the reason, if it cannot be unpacked."""
    where = {"ledgerId": entry.position.ledger_id, "entryId": entry.position.entry_id}
    try:
        metadata = peek(entry.data).metadata
        unpacked = messages_of(entry.data)
    except PeerProtocolError as error:
        return [{**where, "batchIndex": -1, "payload": None, "unreadable": str(error)}]
    version = base64.b64encode(metadata.schema_version).decode()
    encrypted = len(metadata.encryption_keys) > 0
    return [
        {
            **where,
            "batchIndex": one.batch_index,
            "key": one.key,
            "properties": one.properties,
            "publishTimeMs": one.publish_time_ms,
            "eventTimeMs": one.event_time_ms,
            "producer": one.producer_name,
            "sequenceId": one.sequence_id,
            "chunk": f"{one.chunk_id + 1} of {one.num_chunks}" if one.num_chunks > 1 else None,
            "schemaVersion": version,
            "encrypted": encrypted,
            "payload": base64.b64encode(one.payload).decode(),
        }
        for one in unpacked
    ]
