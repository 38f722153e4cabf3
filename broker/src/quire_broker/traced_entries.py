"""Continues the traces of published entries: their deliveries and acknowledgements. Bounded; measures nothing itself.

    deliver       the span `publish` -> deliver        readable, until written to the consumer's connection
    acknowledge   deliver -> acknowledge               from there until the acknowledgement was taken

An entry is found by its position. Entries are remembered from their publish, or from a read of a chosen one, until
ENTRIES_MAX later ones were traced; deliveries until they are acknowledged, or DELIVERIES_MAX later ones were made.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from quire_bookie.env.tracing import Times, Tracing
from quire_bookie.spans import Attribute, Kind, TraceContext

ENTRIES_MAX: Final = 1024
DELIVERIES_MAX: Final = 4096


class Delivered(Protocol):
    """One entry sent to a consumer."""

    @property
    def position(self) -> tuple[int, int]:
        """Its ledger and entry."""
        ...

    @property
    def redelivery_count(self) -> int:
        """How often it was sent before."""
        ...


class _Entry(NamedTuple):
    publish: TraceContext
    readable_s: float


class _Awaited(NamedTuple):
    deliver: TraceContext
    sent_s: float
    attributes: dict[str, Attribute]


class TracedEntries:
    """The traced entries of a broker, and their deliveries that wait for an acknowledgement."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._by_ledger: dict[int, list[int]] = {}
        self._awaited: dict[object, dict[tuple[int, int], _Awaited]] = {}
        self._order: OrderedDict[tuple[object, tuple[int, int]], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def awaited(self) -> int:
        """The number of deliveries that wait for an acknowledgement."""
        return len(self._order)

    def add(self, ledger: int, entry: int, publish: TraceContext, readable_s: float) -> None:
        """Remember an entry. `readable_s`: since when it can be delivered."""
        position = (ledger, entry)
        if position in self._entries:
            return
        while len(self._entries) >= ENTRIES_MAX:
            self._forget(next(iter(self._entries)))
        self._entries[position] = _Entry(publish, readable_s)
        insort(self._by_ledger.setdefault(ledger, []), entry)

    def _forget(self, position: tuple[int, int]) -> None:
        del self._entries[position]
        ledger, entry = position
        ids = self._by_ledger[ledger]
        ids.remove(entry)
        if not ids:
            del self._by_ledger[ledger]

    # ---- called for each batch of deliveries and of acknowledgements
    def delivered(
        self,
        topic: object,
        subscription: str,
        key: object,
        consumer: str,
        deliveries: Sequence[Delivered],
        now_s: float,
    ) -> None:
        """Report the traced ones of the entries that have just been written to a consumer's connection.

        `key`: tells subscriptions apart. One batch is in ascending order, but for entries that are sent again.
        """
        first, last = deliveries[0].position, deliveries[-1].position
        ids = self._by_ledger.get(first[0])
        if ids is None:
            return
        end = last[1] if last[0] == first[0] else ids[-1]
        at = bisect_left(ids, min(first[1], end))
        if at == len(ids) or ids[at] > max(first[1], end):
            return
        for each in deliveries:
            found = self._entries.get(each.position)
            if found is not None:
                self._report(str(topic), subscription, key, consumer, each, found, now_s)

    def _report(
        self, topic: str, subscription: str, key: object, consumer: str, sent: Delivered, found: _Entry, now_s: float
    ) -> None:
        ledger, entry = sent.position
        attributes: dict[str, Attribute] = {
            "messaging.system": "pulsar",
            "messaging.destination.name": topic,
            "messaging.destination.subscription.name": subscription,
            "quire.consumer": consumer,
            "quire.ledger": ledger,
            "quire.entry": entry,
        }
        position = (ledger, entry)
        before = self._awaited.get(key, {}).get(position)
        start_s = min(now_s, found.readable_s if before is None else before.sent_s)
        sending: dict[str, Attribute] = {**attributes, "quire.redelivery_count": sent.redelivery_count}
        deliver, parent = TraceContext(found.publish.trace_id, self._tracing.new_id()), found.publish.span_id
        times = Times(start_s, now_s)
        self._tracing.defer(self._tracing.span, "deliver", Kind.PRODUCER, deliver, parent, times, sending)
        while len(self._order) >= DELIVERIES_MAX:
            self._end(*next(iter(self._order)))
        self._awaited.setdefault(key, {})[position] = _Awaited(deliver, now_s, attributes)
        self._order[key, position] = None

    def awaits(self, key: object) -> bool:
        """Return whether traced deliveries of the subscription wait for an acknowledgement."""
        return key in self._awaited

    def acknowledged(self, key: object, positions: Collection[tuple[int, int]], now_s: float) -> None:
        """Report the traced ones of these entries, which a consumer of the subscription has acknowledged."""
        awaited = self._awaited.get(key)
        if awaited is None:
            return
        for position in [position for position in positions if position in awaited]:
            self._acknowledge(key, position, now_s)

    def acknowledged_through(self, key: object, through: tuple[int, int], now_s: float) -> None:
        """Report the traced entries up to this one, which were acknowledged together."""
        for position in [position for position in self._awaited.get(key, ()) if position <= through]:
            self._acknowledge(key, position, now_s)

    def _acknowledge(self, key: object, position: tuple[int, int], now_s: float) -> None:
        deliver, sent_s, attributes = self._awaited[key][position]
        self._end(key, position)
        times = Times(sent_s, now_s)
        self._tracing.defer(self._tracing.below, deliver, "acknowledge", times, attributes, Kind.SERVER)

    def _end(self, key: object, position: tuple[int, int]) -> None:
        del self._order[key, position]
        awaited = self._awaited[key]
        del awaited[position]
        if not awaited:
            del self._awaited[key]


class Traces:
    """What the parts of a broker share to trace: which operations are traced, and the entries whose traces go on."""

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self.entries = TracedEntries(tracing)
