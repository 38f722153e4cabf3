"""Reads the trace context that a client put into the properties of a message. Pure, and bounded.

OpenTelemetry's instrumentation of Pulsar clients writes W3C `traceparent` as a property of each message. Of a batch
the first messages are read; a large compressed batch and an encrypted one are not.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_bookie.spans import TRACEPARENT, TraceContext, parse_traceparent
from quire_broker.compression import Codec
from quire_broker.wire.entry import EntrySummary, peek
from quire_broker.wire.payload import parts_of, plain_payload
from quire_broker.wire.proto.pulsar_pb2 import KeyValue

_BATCH_MESSAGES: Final = 16
"""Messages of a batch that are read."""
_WHOLE_BYTES_MAX: Final = 256 * 1024
"""Of a larger entry only the head is read, and no larger batch is decompressed."""
_HEAD_BYTES: Final = 16 * 1024
"""The part of a large entry that is read. In a batch without compression, the property must begin within it."""
_NAME: Final = TRACEPARENT.encode()


def context_in(payload: Buffer | tuple[Buffer, ...]) -> TraceContext | None:
    """Return the first context in an entry whose client records it, else None. Malformed ones are ignored."""
    entry = _read_part(payload)
    try:
        summary = peek(entry)
        if summary.is_plain and not summary.is_batch:
            return None  # it has no properties
        for context in _contexts(entry, summary):
            if context is not None and context.sampled:
                return context
    except PeerProtocolError:
        return None  # not stored by a Pulsar producer, damaged, or its metadata is longer than the head
    return None


def _read_part(payload: Buffer | tuple[Buffer, ...]) -> Buffer:
    """Return the entry, or the head of a large one."""
    parts = payload if isinstance(payload, tuple) else (payload,)
    if sum(map(len, parts)) <= _WHOLE_BYTES_MAX:
        return parts[0] if len(parts) == 1 else b"".join(parts)
    head = b""
    for part in parts:
        head += memoryview(part)[: _HEAD_BYTES - len(head)]
    return head


def _contexts(entry: Buffer, summary: EntrySummary) -> list[TraceContext | None]:
    found = [_parsed(each.value) for each in _properties(summary) if each.key == TRACEPARENT]
    if found or not summary.is_batch:
        return found
    metadata = summary.metadata
    if metadata.encryption_keys or metadata.uncompressed_size > _WHOLE_BYTES_MAX:
        return []
    if metadata.compression == Codec.NONE:
        head = bytes(memoryview(entry)[summary.payload_offset : summary.payload_offset + _HEAD_BYTES])
        if _NAME not in head:
            return []
    parts = islice(parts_of(plain_payload(entry, summary), summary.num_messages), _BATCH_MESSAGES)
    return [_parsed(each.value) for part in parts for each in part.single.properties if each.key == TRACEPARENT]


def _properties(summary: EntrySummary) -> Iterable[KeyValue]:
    return () if summary.is_plain else summary.metadata.properties


def _parsed(text: str | bytes) -> TraceContext | None:
    return parse_traceparent(text) if isinstance(text, str) else None
