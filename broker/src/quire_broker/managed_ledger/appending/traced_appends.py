"""Reports the spans of chosen appends of one managed ledger: see `env.tracing` for which ones are chosen.

    publish     the client's span -> publish               arrived, until the receipt was written
      limit     a rate of publishing held it back
      wait      there was no ledger to write to
      store     sent to the bookies, until an ack quorum of them had stored it
        bookie add   one for each bookie, until its response; bookies beyond the quorum may follow later
      receipt   from there until the receipts were written to the sockets

An append is chosen when it is submitted, for then the times of the bookies' responses can be noted. Nothing is kept
for the others. The bookies' own spans are in the trace of the entry, with the span `store` as parent: the same trace
if the client has none, otherwise one that `publish` links to.
"""

import asyncio
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.env.tracing import SPREAD, Times
from quire_bookie.errors import QuireError
from quire_bookie.model import BookieId
from quire_bookie.spans import Attribute, Kind, TraceContext, entry_context
from quire_broker.managed_ledger.appending.append_queue import AppendBatch, AppendTimes
from quire_broker.managed_ledger.ledger_port import Payload, Writer
from quire_broker.traced_entries import Traces
from quire_broker.wire.trace_context import context_in

_OPEN_MAX = 16
"""Appends of one ledger that are traced at a time."""


@dataclass(slots=True)
class _Open:
    """A chosen append. `parent`: its client's span, if it records it."""

    ledger: int
    entry: int
    size_bytes: int
    times: AppendTimes
    parent: TraceContext | None
    by_position: bool
    answered_s: dict[BookieId, float] = field(default_factory=dict)
    store: TraceContext | None = None
    """The span `store`, from the confirmation on."""
    reported: bool = False


class TracedAppends:
    """Reports the chosen appends of one managed ledger."""

    def __init__(self, traces: Traces, name: str) -> None:
        self._tracing = traces.tracing
        self._entries = traces.entries
        self._topic = name
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, _Open] = {}
        self._writer: Writer | None = None
        self._choosing: Writer | None = None
        """The writer of which `_spread` is the ledger's part in choosing entries."""
        self._spread = 0

    # ---- called by the appender
    def submitted(self, writer: Writer, batch: AppendBatch) -> None:
        """Choose at most one append of a batch that has just been submitted."""
        tracing, first = self._tracing, batch.first
        if writer is not self._choosing:
            self._choosing, self._spread = writer, writer.ledger_id * SPREAD
        # `chosen_in` without its call, which each batch would pay.
        ahead = -(first + self._spread) % tracing.stride
        entry = first + ahead if ahead < len(batch.dones) else None
        if entry is None and not tracing.may_look(batch.times.submitted_s):
            return
        at = 0 if entry is None else entry - first
        parent = context_in(batch.entries[at])
        if (entry is None and parent is None) or not tracing.admit():
            return
        if writer is not self._writer:
            self.dropped()
            self._writer = writer
        while len(self._open) >= _OPEN_MAX:
            del self._open[next(iter(self._open))]
        size_bytes = _size_of(batch.entries[at])
        opened = _Open(writer.ledger_id, first + at, size_bytes, batch.times, parent, entry is not None)
        self._open[first + at] = opened
        writer.watch_answers(self._stored)

    def confirmed(self, writer: Writer, last: int, now_s: float) -> None:
        """Report the chosen appends up to the entry `last`, which are being answered, after the receipts."""
        if not self._open or writer is not self._writer:
            return
        for each in [each for each in self._open.values() if each.entry <= last and each.store is None]:
            each.store = self._store_of(each)
            self._loop.call_soon(self._answered, each, now_s)

    def slow(self, writer: Writer, batch: AppendBatch, now_s: float) -> TraceContext | None:
        """Report a batch that took long, unless an append of it is traced anyway; return a context of its trace."""
        for entry, each in self._open.items():
            if batch.first <= entry <= batch.last:
                return each.parent or entry_context(each.ledger, entry)
        if not self._tracing.admit():
            return None
        parent = context_in(batch.entries[0])
        each = _Open(writer.ledger_id, batch.first, batch.size_bytes, batch.times, parent, by_position=False)
        each.store = self._store_of(each)
        self._loop.call_soon(self._answered, each, now_s)
        return each.store

    def failed(self, error: QuireError) -> None:
        """Report the chosen appends as failed."""
        now_s = self._loop.time()
        for each in [each for each in self._open.values() if each.store is None]:
            parent = each.parent or TraceContext(entry_context(each.ledger, each.entry).trace_id, 0)
            publish, times = TraceContext(parent.trace_id, self._tracing.new_id()), Times(each.times.began_s, now_s)
            attributes = self._attributes(each)
            self._tracing.span("publish", Kind.SERVER, publish, parent.span_id, times, attributes, error=str(error))
        self.dropped()

    def dropped(self) -> None:
        """Forget the chosen appends: they go to another ledger, or failed."""
        self._open.clear()
        if self._writer is not None:
            self._writer.watch_answers(None)
            self._writer = None

    # ---- inside
    def _stored(self, bookie: BookieId, first: int, count: int) -> None:
        now_s = self._loop.time()
        for each in [each for each in self._open.values() if first <= each.entry < first + count]:
            if bookie not in each.answered_s:
                each.answered_s[bookie] = now_s
                if each.reported:  # beyond the quorum
                    self._tracing.defer(self._bookie, each, bookie, now_s)
                    self._forget_if_complete(each)

    def _store_of(self, each: _Open) -> TraceContext:
        """Return the span `store`: that of the entry's own trace, unless the client's trace goes on."""
        if each.parent is None:
            return entry_context(each.ledger, each.entry)
        return TraceContext(each.parent.trace_id, self._tracing.new_id())

    def _answered(self, each: _Open, confirmed_s: float) -> None:
        assert each.store is not None
        publish = TraceContext(each.store.trace_id, self._tracing.new_id())
        answers = tuple(each.answered_s.items())
        self._tracing.defer(self._report, each, each.store, publish, confirmed_s, self._loop.time(), answers)
        each.reported = True
        self._entries.add(each.ledger, each.entry, publish, confirmed_s)
        self._forget_if_complete(each)

    def _report(
        self,
        each: _Open,
        store: TraceContext,
        publish: TraceContext,
        confirmed_s: float,
        written_s: float,
        answers: tuple[tuple[BookieId, float], ...],
    ) -> None:
        """Report an append whose receipts were written then. `answers`: the bookies' by then."""
        tracing, times = self._tracing, each.times
        parent = 0 if each.parent is None else each.parent.span_id
        storage = entry_context(each.ledger, each.entry)
        links = (storage,) if each.parent is not None and each.by_position else ()
        whole, attributes = Times(times.began_s, written_s), self._attributes(each)
        tracing.span("publish", Kind.SERVER, publish, parent, whole, attributes, links=links)
        limited_s, stored = times.began_s + times.held_s, Times(times.submitted_s, confirmed_s)
        tracing.part(publish, "limit", Times(times.began_s, limited_s))
        tracing.part(publish, "wait", Times(times.queued_s, times.submitted_s))
        tracing.span("store", Kind.CLIENT, store, publish.span_id, stored, self._position(each))
        if links:  # the parent of the bookies' spans, which is not in the client's trace
            tracing.span("store", Kind.CLIENT, storage, 0, stored, self._position(each), links=(publish,))
        tracing.part(publish, "receipt", Times(confirmed_s, written_s))
        for bookie, answered_s in answers:
            self._bookie(each, bookie, answered_s)

    def _forget_if_complete(self, each: _Open) -> None:
        """Forget an append once every bookie has answered. One that never does is pushed out by later appends."""
        writer = self._writer
        if writer is None or self._open.get(each.entry) is not each:
            return
        if len(each.answered_s) >= writer.metadata.write_quorum:
            del self._open[each.entry]
            if not self._open:
                writer.watch_answers(None)

    def _bookie(self, each: _Open, bookie: BookieId, answered_s: float) -> None:
        assert each.store is not None
        attributes = {"quire.bookie": str(bookie), **self._position(each)}
        times = Times(each.times.submitted_s, answered_s)
        self._tracing.below(each.store, "bookie response", times, attributes, Kind.CLIENT)

    def _position(self, each: _Open) -> dict[str, Attribute]:
        return {"quire.ledger": each.ledger, "quire.entry": each.entry}

    def _attributes(self, each: _Open) -> dict[str, Attribute]:
        return {
            "messaging.system": "pulsar",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": self._topic,
            "messaging.message.envelope.size": each.size_bytes,
            **self._position(each),
        }


def _size_of(payload: Payload) -> int:
    return sum(map(len, payload)) if isinstance(payload, tuple) else len(payload)
