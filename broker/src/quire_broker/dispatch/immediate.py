"""Chooses the consumer of an entry that is not stored, at once: one without permits, or with a full socket, gets none.

    InTurn     Shared                 the next ready consumer of the best priority level
    ToActive   Exclusive, Failover    the active consumer, chosen as for stored entries
    ByKey      Key_Shared             the owner of the key's slot

Nothing waits here: an entry without a ready consumer is dropped by the caller.
"""

from collections.abc import Sequence

from quire_broker.dispatch.choice import active_index, next_turn
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import KeyShared
from quire_broker.dispatch.slots import Slots, StickyRanges, slots_of
from quire_broker.wire.entry import EntrySummary
from quire_broker.wire.kinds import KeySharedMode


class InTurn:
    """Gives every entry to the next ready consumer. `consumers` are in the order in which they take turns."""

    mode: KeySharedMode | None = None
    sticky: StickyRanges[Consumer] | None = None
    active: Consumer | None = None

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self._last = -1

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. An error leaves the state unchanged."""
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer that left."""
        self.consumers.remove(consumer)

    def choose(self, summary: EntrySummary) -> Consumer | None:
        """Return the consumer that gets the entry; None if no consumer can take it now."""
        found = next_turn([(each.spec.priority_level, each.ready) for each in self.consumers], self._last)
        if found is None:
            return None
        self._last = found
        return self.consumers[found]


class ToActive(InTurn):
    """Gives every entry to the active consumer. On Failover all consumers learn which one that is."""

    def __init__(self, topic: str, partition_index: int, *, failover: bool) -> None:
        super().__init__()
        self._topic = topic
        self._partition_index = partition_index
        self.failover = failover

    def add(self, consumer: Consumer) -> None:
        """Add a consumer, and choose the active one again."""
        super().add(consumer)
        if not self._choose() and self.failover:
            consumer.link.active_changed(consumer.spec.consumer_id, False)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer. The next one takes over."""
        super().remove(consumer)
        if self.consumers:
            self._choose()
        else:
            self.active = None

    def _choose(self) -> bool:
        """Choose the active consumer. Return whether it changed."""
        ranked = [(each.spec.priority_level, each.spec.name) for each in self.consumers]
        chosen = self.consumers[active_index(ranked, self._topic, self._partition_index)]
        if chosen is self.active:
            return False
        self.active = chosen
        if self.failover:
            for each in self.consumers:
                each.link.active_changed(each.spec.consumer_id, each is chosen)
        return True

    def choose(self, summary: EntrySummary) -> Consumer | None:
        """Return the active consumer if it is ready."""
        return self.active if self.active is not None and self.active.ready else None


class ByKey(InTurn):
    """Gives every entry to the owner of its key. The first consumer determines `mode`."""

    def __init__(self, key_shared: KeyShared, *, consistent_hashing: bool) -> None:
        super().__init__()
        self.mode = key_shared.mode
        self._slots: Slots[Consumer]
        self._slots, self.sticky = slots_of(key_shared.mode, consistent_hashing=consistent_hashing)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer and assign slots to it. ConsumerAssignError if there are none to assign."""
        ranges: Sequence[tuple[int, int]] = consumer.spec.key_shared.ranges if consumer.spec.key_shared else ()
        self._slots.add(consumer, consumer.spec.name, ranges)
        super().add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer and assign its slots to others."""
        self._slots.remove(consumer)
        super().remove(consumer)

    def choose(self, summary: EntrySummary) -> Consumer | None:
        """Return the owner of the key's slot if it is ready."""
        owner = self._slots.owner(self._slots.slot_of(summary.sticky_key()))
        return owner if owner is not None and owner.ready else None
