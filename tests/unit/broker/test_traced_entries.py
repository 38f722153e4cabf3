from dataclasses import dataclass

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tracing import Tracing
from quire_bookie.settings.traces import TraceSettings
from quire_bookie.spans import Attribute, TraceContext
from quire_broker.traced_entries import DELIVERIES_MAX, ENTRIES_MAX, TracedEntries
from tests.support.kept_spans import KeptSpans


@dataclass
class Sent:
    position: tuple[int, int]
    redelivery_count: int = 0


class Traced(KeptSpans):
    """Entries, and the spans that they made."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = TracedEntries(Tracing(TraceSettings(), self, "test", SystemClock(), SystemChance()))

    def deliver(self, *positions: tuple[int, int], key: str = "s") -> None:
        self.entries.delivered("t", key, key, "c", [Sent(position) for position in positions], 5.0)

    def made(self) -> list[tuple[str, Attribute]]:
        made, self.taken = [(span.name, span.attributes["quire.entry"]) for span in self.taken], []
        return made


async def test_traced_entries_of_a_batch_are_delivered_and_acknowledged_once() -> None:
    traced = Traced()
    traced.entries.add(3, 7, TraceContext(1, 2), 4.0)
    traced.entries.add(3, 9, TraceContext(1, 3), 4.0)
    traced.deliver((3, 5), (3, 6))
    traced.deliver((4, 7), (4, 9))
    assert traced.made() == []
    traced.deliver((3, 6), (3, 7), (3, 8), (3, 9))
    assert traced.made() == [("deliver", 7), ("deliver", 9)]
    traced.entries.acknowledged("another", [(3, 7)], 6.0)
    traced.entries.acknowledged("s", [(3, 6), (3, 8)], 6.0)
    assert traced.made() == []
    traced.entries.acknowledged("s", [(3, 6), (3, 7)], 6.0)
    traced.entries.acknowledged("s", [(3, 7)], 6.0)
    assert traced.made() == [("acknowledge", 7)]
    traced.entries.acknowledged_through("s", (3, 8), 6.0)
    assert traced.made() == []
    traced.entries.acknowledged_through("s", (4, 0), 6.0)
    assert traced.made() == [("acknowledge", 9)] and traced.entries.awaited == 0


async def test_an_entry_is_delivered_to_each_subscription_and_again() -> None:
    traced = Traced()
    traced.entries.add(3, 7, TraceContext(1, 2), 4.0)
    for key in ("a", "b", "a"):
        traced.deliver((3, 8), (3, 7), key=key)  # sent again, behind a later one
    assert traced.made() == [("deliver", 7)] * 3 and traced.entries.awaited == 2


async def test_entries_and_deliveries_are_bounded() -> None:
    traced = Traced()
    for entry in range(ENTRIES_MAX + 10):
        traced.entries.add(entry % 7, entry, TraceContext(1, 2), 4.0)
    assert len(traced.entries) == ENTRIES_MAX
    traced.deliver((0, 0))
    assert traced.made() == [], "the oldest are forgotten"
    for subscription in range(DELIVERIES_MAX // 100):
        traced.entries.delivered("t", "s", subscription, "c", [Sent((e % 7, e)) for e in range(500, 700)], 5.0)
    assert traced.entries.awaited <= DELIVERIES_MAX
