"""Spans of traces as values, and the W3C context of a trace. Pure: no clock, no randomness, no library.

BookKeeper's protocol V2 has no place for a trace. What a bookie must share with brokers is therefore computed from
the ids of the ledger and of the entry: `entry_context`, the trace in which bookies report what they do for an entry.
"""

import re
from collections.abc import Mapping
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

TRACEPARENT = "traceparent"
"""The property of a message that carries the context."""
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_TEXT_MAX = 256
_SAMPLED = 1
Attribute: TypeAlias = str | int | float


class TraceContext(NamedTuple):
    """Ids of a trace and of one span in it. `sampled`: their maker records the trace."""

    trace_id: int
    span_id: int
    sampled: bool = True

    @property
    def trace_text(self) -> str:
        """The id of the trace as collectors show it."""
        return f"{self.trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """The text of the property."""
        return f"00-{self.trace_text}-{self.span_id:016x}-{int(self.sampled):02x}"


class Kind(IntEnum):
    """The kinds of spans, with their numbers in the OpenTelemetry protocol."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class Span(NamedTuple):
    """A finished operation. Times are ns since the epoch; `parent`: the id of a span in the same trace, 0 for none."""

    scope: str
    name: str
    kind: Kind
    trace_id: int
    span_id: int
    parent: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    links: tuple[TraceContext, ...] = ()
    error: str | None = None


def parse_traceparent(text: str) -> TraceContext | None:
    """Return the context in the text; None if it is malformed. Later versions may append fields."""
    found = _TRACEPARENT.fullmatch(text) if len(text) <= _TEXT_MAX else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return context if context.trace_id and context.span_id else None


def entry_context(ledger: int, entry: int) -> TraceContext:
    """Return the trace of an entry in its bookies, and the span that is the parent of theirs."""
    digest = blake2b(b"quire entry %d %d" % (ledger, entry), digest_size=24).digest()
    return TraceContext(int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1)
