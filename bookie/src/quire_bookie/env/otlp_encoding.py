"""Encodes spans in OpenTelemetry's protocol (OTLP 1, protocol buffers). Pure.

    ExportTraceServiceRequest  1 resource spans: 1 resource (1 attribute...), 2 spans of a scope...
    spans of a scope           1 scope (1 name), 2 span...
    span                       1 trace id, 2 span id, 4 parent, 5 name, 6 kind, 7 start, 8 end (ns, fixed64),
                               9 attribute..., 13 link (1 trace id, 2 span id, 6 flags)..., 15 status, 16 flags
    attribute                  1 key, 2 value (1 text, 3 integer, 4 double)
    status                     2 message, 3 code

By hand: the OpenTelemetry SDK takes ten times as long for a span, in a thread that keeps the interpreter from the event
loop meanwhile.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from quire_bookie.spans import Attribute, Span, TraceContext
from quire_bookie.varints import SMALL, encode_varint

_TIMES = struct.Struct("<BQBQ")
_START, _END = 0x39, 0x41
_DOUBLE = struct.Struct("<Bd")
_SAMPLED: Final = b"\x01\x00\x00\x00"
_SPAN_FLAGS: Final = b"\x85\x01" + _SAMPLED
_LINK_FLAGS: Final = b"\x35" + _SAMPLED
_ERROR: Final = b"\x18\x02"
_TEXT_MAX: Final = 1024
"""Characters of a text. What follows is cut off."""


def _field(tag: bytes, data: bytes) -> bytes:
    size = len(data)
    return tag + (SMALL[size] if size < 128 else encode_varint(size)) + data


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text[:_TEXT_MAX].encode(errors="replace"))


@lru_cache(maxsize=256)
def _key(key: str) -> bytes:
    return _text(b"\x0a", key)


def _attribute(key: str, value: Attribute) -> bytes:
    if isinstance(value, str):
        encoded = _text(b"\x0a", value)
    elif isinstance(value, int):
        encoded = b"\x18" + encode_varint(value)
    else:
        encoded = _DOUBLE.pack(0x21, value)
    return _key(key) + _field(b"\x12", encoded)


def _context(context: TraceContext) -> bytes:
    return b"\x0a\x10%b\x12\x08%b" % (context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"))


def encode_span(span: Span) -> bytes:
    """Return a span as a field of the spans of its scope."""
    parts = [_context(TraceContext(span.trace_id, span.span_id))]
    if span.parent:
        parts.append(b"\x22\x08" + span.parent.to_bytes(8, "big"))
    parts += (
        _text(b"\x2a", span.name),
        b"\x30",
        SMALL[span.kind],
        _TIMES.pack(_START, span.start_ns, _END, span.end_ns),
    )
    parts += [_field(b"\x4a", _attribute(key, value)) for key, value in span.attributes.items()]
    parts += [_field(b"\x6a", _context(link) + _LINK_FLAGS) for link in span.links]
    if span.error is not None:
        parts.append(_field(b"\x7a", _text(b"\x12", span.error) + _ERROR))
    parts.append(_SPAN_FLAGS)
    return _field(b"\x12", b"".join(parts))


def encode_resource(attributes: Mapping[str, Attribute]) -> bytes:
    """Return what made the spans, as a field of the resource spans."""
    return _field(b"\x0a", b"".join([_field(b"\x0a", _attribute(*each)) for each in attributes.items()]))


def encode_request(resource: bytes, spans: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the body of a request. `resource`: of `encode_resource`. `spans`: scopes, and results of `encode_span`."""
    by_scope: dict[str, list[bytes]] = {}
    for scope, encoded in spans:
        by_scope.setdefault(scope, []).append(encoded)
    return _field(b"\x0a", resource + b"".join(_scopes(by_scope)))


def _scopes(by_scope: Mapping[str, Sequence[bytes]]) -> Iterable[bytes]:
    for scope, spans in by_scope.items():
        yield _field(b"\x12", _field(b"\x0a", _text(b"\x0a", scope)) + b"".join(spans))
