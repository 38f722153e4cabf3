"""/admin/quire: our own endpoints, for `quire topic` and `quire ledger`.

    GET /admin/quire/ledgers?after=<id>&limit=<n>       {"ledgers": [{id, state, entries, length, custom}], "next": id}
    GET /admin/quire/ledgers/{id}                       the whole metadata
    GET /admin/quire/ledgers/{id}/entries?first=&last=  {"entries": [{id, length, payload (base64), ...}]}
    GET /admin/quire/topics                             loaded topics with their counters
    GET /admin/quire/stats                              the broker's counters

Reading never opens a ledger with recovery: that would fence its writer.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from quire_bookie.admin.answers import integer, whole_number
from quire_bookie.client.ledger_description import describe
from quire_bookie.errors import NoSuchEntryError, PeerProtocolError
from quire_bookie.model import EntryId, LedgerId
from quire_broker.admin.answers import answer, answer_list
from quire_broker.admin.context import broker_of
from quire_broker.admin.counters import counters
from quire_broker.admin.descriptions import INTEGER, OBJECT, Query, described
from quire_broker.admin.routes import Need, Route
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.server.broker import RunningBroker
from quire_broker.topic.topic import Topic
from quire_broker.wire.entry import peek

PAGE_LEDGERS_MAX = 1000
PAGE_ENTRIES_MAX = 100
PAGE_BYTES_MAX = 5 * 1024 * 1024


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    yield Route("GET", "/admin/quire/ledgers", list_ledgers, Need.SUPER_USER)
    yield Route("GET", "/admin/quire/ledgers/{ledger:[0-9]+}", ledger_info, Need.SUPER_USER)
    yield Route("GET", "/admin/quire/ledgers/{ledger:[0-9]+}/entries", read_entries, Need.SUPER_USER)
    yield Route("GET", "/admin/quire/topics", loaded_topics, Need.SUPER_USER)
    yield Route("GET", "/admin/quire/stats", stats, Need.SUPER_USER)


def _ledger(request: web.Request) -> LedgerId:
    return LedgerId(whole_number("ledger", request.match_info["ledger"], 0))


@described(
    Query("after", INTEGER, "id of the last ledger of the page before"),
    Query("limit", INTEGER, "most ledgers"),
    returns=OBJECT,
)
async def list_ledgers(request: web.Request) -> web.Response:
    """Return one page of ledgers, by id; `next` is the `after` of the next page, null at the end."""
    client = broker_of(request).ledger_client
    after, limit = integer(request, "after", -1), integer(request, "limit", 100)
    limit = max(1, min(limit, PAGE_LEDGERS_MAX))
    found: list[dict[str, Any]] = []
    last: int | None = None
    ids = sorted([ledger_id async for ledger_id in client.list_ledgers() if ledger_id > after])
    for ledger_id in ids[:limit]:
        found.append(describe(ledger_id, await client.read_metadata(ledger_id)))
        last = ledger_id
    return answer({"ledgers": found, "next": last if len(ids) > limit else None})


@described(returns=OBJECT)
async def ledger_info(request: web.Request) -> web.Response:
    """Return all metadata of a ledger."""
    ledger_id = _ledger(request)
    return answer(describe(ledger_id, await broker_of(request).ledger_client.read_metadata(ledger_id)))


def _written_here(broker: RunningBroker, ledger_id: LedgerId) -> ManagedLedger | None:
    """Return the managed ledger that writes this ledger now. It knows the last add before the bookies do."""
    for topic in broker.topics.loaded:
        if topic.ledger.last_confirmed.ledger_id == ledger_id:
            return topic.ledger
    return None


@described(
    Query("first", INTEGER, "id of the first entry"), Query("last", INTEGER, "id of the last entry"), returns=OBJECT
)
async def read_entries(request: web.Request) -> web.Response:
    """Return up to 100 entries and 5 MiB, payloads in base64, with the fields of Pulsar's metadata if present."""
    broker = broker_of(request)
    ledger_id = _ledger(request)
    first = integer(request, "first", 0)
    last = min(integer(request, "last", first + PAGE_ENTRIES_MAX - 1), first + PAGE_ENTRIES_MAX - 1)
    ours = _written_here(broker, ledger_id)
    if ours is not None:
        lac = ours.last_confirmed.entry_id
        _check_range(ledger_id, first, last, lac)
        wanted = min(last, lac) - first + 1
        stored = await ours.read(Position(ledger_id, first), entries_max=wanted, bytes_max=PAGE_BYTES_MAX)
        found = [_entry(entry.position.entry_id, bytes(entry.data)) for entry in stored]
    else:
        password = broker.settings.topics.ledger.password
        reader = await broker.ledger_client.open_ledger(
            ledger_id, password=password, recover=False, accept_stored=to_read
        )
        try:
            lac = reader.last_add_confirmed if reader.is_closed else await reader.read_last_add_confirmed()
            _check_range(ledger_id, first, last, lac)
            entries = await reader.read(EntryId(first), EntryId(min(last, lac)), bytes_max=PAGE_BYTES_MAX)
        finally:
            await reader.close()
        found = [_entry(entry.entry_id, bytes(entry.payload)) for entry in entries]
    return answer({"ledgerId": ledger_id, "lastAddConfirmed": lac, "entries": found})


def _check_range(ledger_id: LedgerId, first: int, last: int, lac: int) -> None:
    if lac < 0:
        raise NoSuchEntryError(f"ledger {ledger_id} has no confirmed entry that can be read yet")
    if not 0 <= first <= min(last, lac):
        raise NoSuchEntryError(f"ledger {ledger_id} has entries 0 to {lac}; asked for {first} to {last}")


def _entry(entry_id: int, payload: bytes) -> dict[str, Any]:
    value: dict[str, Any] = {"entryId": entry_id, "length": len(payload), "payload": b64encode(payload).decode()}
    try:
        summary = peek(payload)
    except PeerProtocolError:
        return value  # not a message: a cursor's state, or another program's ledger
    value["message"] = {
        "producer": summary.producer_name,
        "sequenceId": summary.sequence_id,
        "publishTime": summary.publish_time_ms,
        "messages": summary.num_messages,
        "key": summary.partition_key,
        "payloadOffset": summary.payload_offset,
    }
    return value


@described(returns={"type": "array", "items": OBJECT})
async def loaded_topics(request: web.Request) -> web.StreamResponse:
    """Return the loaded topics."""
    return await answer_list(request, map(_loaded, broker_of(request).topics.loaded))


def _loaded(topic: Topic) -> dict[str, Any]:
    return {
        "topic": str(topic.name),
        "messagesIn": topic.stats.messages_in,
        "bytesIn": topic.stats.bytes_in,
        "entries": topic.ledger.entries,
        "size": topic.ledger.size_bytes,
        "producers": len(topic.producers),
        "subscriptions": {name: found.cursor.backlog for name, found in topic.subscriptions.items()},
    }


@described(returns=OBJECT)
async def stats(request: web.Request) -> web.Response:
    """Return the counters by name."""
    return answer(await counters(broker_of(request)))
