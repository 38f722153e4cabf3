"""Single messages of a topic, and what a subscription has still to consume, at Pulsar's paths.

GET  .../subscription/{s}/position/{n}          the n-th entry that is not acknowledged
GET  .../examinemessage?initialPosition=earliest|latest&messagePosition=n
GET  .../ledger/{ledgerId}/entry/{entryId}
GET  .../messageid/{time in ms}                 the id of the first message published then or later
GET  .../getMessageIdByIndex?index=n            the id of the entry with the message of that index
PUT  .../backlogSize                            bytes stored after the message id in the body
POST .../subscription/{s}/analyzeBacklog        numbers of entries and messages of the backlog
POST .../trim                                   deletes the ledgers that are no longer needed

An entry is the body of the response, decompressed; a batch stays one, and the client unpacks it. Its metadata are
headers. An encrypted entry is sent as it is: only its readers have the key.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from quire_bookie.admin.answers import RefusedError, whole_number
from quire_bookie.model import Buffer
from quire_broker.admin.answers import answer, body_of, done
from quire_broker.admin.context import broker_of, plain_topic, subscription_of, topic_here
from quire_broker.admin.descriptions import BYTES, INTEGER, MESSAGE_ID, OBJECT, POSITION, TEXT, Query, described
from quire_broker.admin.routes import Need, Route
from quire_broker.admin.spreading import MISSING, at_owners
from quire_broker.admin.subscriptions import position_of
from quire_broker.compression import Codec, CompressionError, decompress
from quire_broker.dispatch.entry_filters import FilterCost, FilterStats
from quire_broker.errors import NotAllowedError, NotFoundError
from quire_broker.limits import BACKLOG_ENTRIES_ANALYZED_MAX, PEEK_BYTES_MAX, PEEK_ENTRIES_MAX
from quire_broker.managed_ledger.backlog_size import bytes_after
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.names import TopicName
from quire_broker.policies.fields import LONG_MAX
from quire_broker.topic.topic import Topic
from quire_broker.wire.entry import EntrySummary, entry_time_ms, peek, peek_broker_metadata
from quire_broker.wire.times import time_text

_PREFIX: Final = "X-Pulsar-"
_STEP_ENTRIES: Final = 1000


def routes() -> Iterator[Route]:
    """Yield the routes of this module."""
    topic = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"
    one = topic + "/subscription/{subscription}"
    yield Route("GET", one + "/position/{count}", nth_unacknowledged, Need.CONSUME)
    yield Route("POST", one + "/analyzeBacklog", analyze_backlog, Need.CONSUME)
    yield Route("GET", topic + "/examinemessage", examine, Need.CONSUME)
    yield Route("GET", topic + "/ledger/{ledger}/entry/{entry}", by_id, Need.CONSUME)
    yield Route("GET", topic + "/messageid/{time_ms}", id_at, Need.CONSUME)
    yield Route("GET", topic + "/getMessageIdByIndex", id_by_index, Need.CONSUME)
    yield Route("PUT", topic + "/backlogSize", backlog_size, Need.NAMESPACE)
    yield Route("POST", topic + "/trim", trim, Need.NAMESPACE)


async def _topic(request: web.Request) -> Topic:
    return await plain_topic(request, "ask for one of its partitions")


@described(returns=TEXT, media=BYTES)
async def nth_unacknowledged(request: web.Request) -> web.Response:
    """Return the n-th entry after the acknowledged ones; 404 if there are fewer."""
    count = whole_number("position", request.match_info["count"], 1, PEEK_ENTRIES_MAX)
    subscription = subscription_of(request, await _topic(request))
    entries = await subscription.peek(count, PEEK_BYTES_MAX)
    if len(entries) < count:
        if subscription.cursor.backlog >= count:
            raise NotAllowedError(f"entry {count} of the backlog is behind {PEEK_BYTES_MAX} bytes; get it by its id")
        raise NotFoundError("Message not found")
    return _message(entries[count - 1])


@described(
    Query("initialPosition", {"type": "string", "enum": ["earliest", "latest"]}, "counted from here"),
    Query("messagePosition", INTEGER, "the n-th entry, from 1"),
    returns=TEXT,
    media=BYTES,
)
async def examine(request: web.Request) -> web.Response:
    """Return the n-th entry, counted from the first or from the last one."""
    count = whole_number("messagePosition", request.query.get("messagePosition", "1"), 1, LONG_MAX)
    start = request.query.get("initialPosition", "latest").lower()
    if start not in ("earliest", "latest"):
        raise NotAllowedError(f"initialPosition is {start[:100]!r}; use earliest or latest")
    topic = await _topic(request)
    ledgers = [(record.ledger_id, record.entries) for record in topic.ledger.ledgers if record.entries]
    stored = sum(entries for _, entries in ledgers)
    if not stored:
        raise NotFoundError("Could not examine messages due to the total message is zero")
    left = min(count, stored) - 1
    for ledger_id, entries in ledgers if start == "earliest" else reversed(ledgers):
        if left < entries:
            position = Position(ledger_id, left if start == "earliest" else entries - 1 - left)
            return _message(await _entry(topic, position))
        left -= entries
    raise NotFoundError("Message not found")


@described(returns=TEXT, media=BYTES)
async def by_id(request: web.Request) -> web.Response:
    """Return the entry of a message id; 404 if it is not stored."""
    numbers = [whole_number(name, request.match_info[name], 0, LONG_MAX) for name in ("ledger", "entry")]
    return _message(await _entry(await _topic(request), Position(*numbers)))


async def _entry(topic: Topic, position: Position) -> StoredEntry:
    known = any(record.ledger_id == position.ledger_id for record in topic.ledger.ledgers)
    found = await topic.ledger.read(position, entries_max=1, bytes_max=1) if known else []
    if not found or found[0].position != position:
        raise NotFoundError("Message id not found")
    return found[0]


@described(returns=MESSAGE_ID)
async def id_at(request: web.Request) -> web.Response:
    """Return the id of the first message that was published at that time or later."""
    time_ms = whole_number("time_ms", request.match_info["time_ms"], 0, LONG_MAX)
    topic = await _topic(request)
    found = await topic.ledger.find_first(lambda entry: entry_time_ms(entry) >= time_ms)
    if found is None:
        found = topic.ledger.last_confirmed
    return _id(topic, found)


@described(Query("index", INTEGER, "index of a message"), returns=MESSAGE_ID)
async def id_by_index(request: web.Request) -> web.Response:
    """Return the id of the entry that holds the message of that index; 404 if none has it."""
    index = whole_number("index", request.query.get("index", ""), 0, LONG_MAX)
    topic = await _topic(request)

    def holds_it(entry: Buffer) -> bool:
        added = peek_broker_metadata(entry)  # none: stored before the broker added an index
        return added is not None and added.HasField("index") and added.index >= index

    found = await topic.ledger.find_first(holds_it)
    if found is None:
        raise NotFoundError(
            f"Message not found for index {index}; entries have one if brokerEntryMetadataInterceptors has "
            "AppendIndexMetadataInterceptor"
        )
    return _id(topic, found)


def _id(topic: Topic, position: Position) -> web.Response:
    return answer(
        {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": topic.name.partition}
    )


@described(body=POSITION, returns=INTEGER)
async def backlog_size(request: web.Request) -> web.Response:
    """Return the bytes stored after a message id, estimated inside its ledger by the mean size of its entries."""
    position = position_of(await body_of(request))
    topic = await _topic(request)
    return answer(bytes_after(topic.ledger.ledgers, position))


@described(returns=OBJECT)
async def analyze_backlog(request: web.Request) -> web.Response:
    """Read the backlog of a subscription, up to a bound, and return its numbers of entries and messages."""
    topic = await _topic(request)
    subscription = subscription_of(request, topic)
    entries = messages = markers = rejected = 0
    filters = replace(subscription.filters, stats=FilterStats(), cost=FilterCost())
    first = last = None
    position: Position | None = topic.ledger.next_position(subscription.cursor.mark_delete)
    aborted = False
    while position is not None and not aborted:
        found = await topic.ledger.read(position, entries_max=_STEP_ENTRIES, bytes_max=PEEK_BYTES_MAX)
        for entry in found:
            if subscription.cursor.is_acknowledged(entry.position):
                continue
            if entries >= BACKLOG_ENTRIES_ANALYZED_MAX:
                aborted = True
                break
            summary = peek(entry.data)
            entries += 1
            messages += summary.num_messages
            markers += summary.marker is not None
            if filters.filters and summary.marker is None:
                rejected += not filters.admits(summary)
                await asyncio.sleep(filters.cost.take_pause_s())
            first, last = first or entry.position, entry.position
        position = topic.ledger.next_position(found[-1].position) if found else None
    return answer(
        {
            "entries": entries,
            "messages": messages,
            "markerMessages": markers,
            "filterRejectedEntries": rejected,
            "filterAcceptedEntries": entries - rejected,
            "filterRescheduledEntries": 0,
            "filterRejectedMessages": filters.stats.rejected,
            "filterAcceptedMessages": messages - filters.stats.rejected,
            "filterRescheduledMessages": 0,
            "aborted": aborted,
            "firstMessageId": None if first is None else str(first),
            "lastMessageId": None if last is None else str(last),
        }
    )


async def trim(request: web.Request) -> web.Response:
    """Delete the consumed ledgers that retention does not keep, of a topic or of each partition."""

    async def one(name: TopicName) -> None:
        await (await topic_here(broker_of(request), name)).ledger.trim()

    await at_owners(request, one, fine=(MISSING,))
    return done()


def _message(entry: StoredEntry) -> web.Response:
    """Return an entry with the headers that stock clients read."""
    summary = peek(entry.data)
    metadata = summary.metadata
    payload = bytes(entry.data[summary.payload_offset :])
    if not metadata.encryption_keys:
        try:
            payload = decompress(payload, metadata.compression, metadata.uncompressed_size)
        except CompressionError as error:
            raise RefusedError(500, f"the entry {entry.position} cannot be decompressed: {error}") from error
    headers = _headers(summary, entry)
    return web.Response(body=payload, headers=headers, content_type="application/octet-stream")


def _headers(summary: EntrySummary, entry: StoredEntry) -> dict[str, str]:
    metadata = summary.metadata
    found: dict[str, Any] = {"Message-ID": str(entry.position)}
    found |= {"producer-name": metadata.producer_name, "sequence-id": metadata.sequence_id}
    found |= {"publish-time": time_text(metadata.publish_time)}
    if metadata.event_time:
        found["event-time"] = time_text(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        found["deliver-at-time"] = time_text(metadata.deliver_at_time)
    if metadata.properties:
        found["PROPERTY"] = json.dumps({each.key: each.value for each in metadata.properties})
    if metadata.HasField("num_messages_in_batch"):
        found["num-batch-message"] = metadata.num_messages_in_batch
        found["batch-size"] = len(entry.data) - summary.payload_offset
    if metadata.HasField("partition_key"):
        found["partition-key"] = metadata.partition_key
        found["partition-key-b64-encoded"] = json.dumps(metadata.partition_key_b64_encoded)
    if metadata.HasField("null_value"):
        found["null-value"] = json.dumps(metadata.null_value)
    if metadata.HasField("replicated_from"):
        found["replicated-from"] = metadata.replicated_from
    if metadata.HasField("chunk_id"):
        found |= {"chunk-id": metadata.chunk_id, "num-chunks-from-msg": metadata.num_chunks_from_msg}
        found |= {"uuid": metadata.uuid, "total-chunk-msg-size": metadata.total_chunk_msg_size}
    if metadata.encryption_keys:
        found |= {"is-encrypted": "true", "compression": Codec(metadata.compression).name}
        found["uncompressed-size"] = metadata.uncompressed_size
    added = peek_broker_metadata(entry.data)
    if added is not None:
        found |= {"Broker-Entry-METADATA-timestamp": added.broker_timestamp, "Broker-Entry-METADATA-index": added.index}
    return {_PREFIX + name: _line(str(value)) for name, value in found.items()}


def _line(text: str) -> str:
    """Return a text of a client without the characters that would end a header."""
    return text.replace("\r", " ").replace("\n", " ").replace("\0", " ")
