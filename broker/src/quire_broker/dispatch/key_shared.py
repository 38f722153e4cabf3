"""Key_Shared: all entries of one key go to one consumer, in order, also while consumers come and go.

Each slot of the hash space belongs to a consumer (`slots`). One rule keeps the order when a slot changes its owner: as
long as a consumer holds unacknowledged entries of a slot, only that consumer may get more of it; for any other owner
the slot is draining. Entries that cannot be sent wait in the replay set, and later ones of their slot wait too. A bound
on the replay set (look-ahead) prevents that a slow consumer makes the broker read the whole topic.
"""

from collections.abc import Sequence

from quire_bookie.env.clock import WallClock
from quire_broker.dispatch.consumer import Consumer, Pending
from quire_broker.dispatch.delayed_index import DelayingCursor
from quire_broker.dispatch.delivery import EntryLedger, KeyShared
from quire_broker.dispatch.shared import Handout, SharedDispatcher
from quire_broker.dispatch.slots import Slots, StickyRanges, slots_of
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.settings.dispatch import KNOWN_KEY_BYTES_MAX, KNOWN_KEYS_MAX, DispatchSettings
from quire_broker.wire.entry import EntrySummary


class SlotHolders:
    """Tracks for each slot the consumer that holds unacknowledged entries of it, and their number. Pure."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Consumer, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def free_for(self, slot: int, consumer: Consumer) -> bool:
        """Return whether no other consumer holds entries of the slot."""
        held = self._held.get(slot)
        return held is None or held[0] is consumer

    def more(self, slot: int, consumer: Consumer) -> None:
        """Count one more entry of the consumer. With out-of-order delivery several may hold entries.

        The latest is kept.
        """
        held = self._held.get(slot)
        count = held[1] if held is not None and held[0] is consumer else 0
        self._held[slot] = (consumer, count + 1)

    def fewer(self, slot: int, consumer: Consumer) -> None:
        """Count one entry of the consumer less."""
        held = self._held.get(slot)
        if held is None or held[0] is not consumer:
            return
        assert held[1] > 0, "a slot without entries has no holder"
        if held[1] == 1:
            del self._held[slot]
        else:
            self._held[slot] = (consumer, held[1] - 1)


class KeySharedDispatcher(SharedDispatcher):
    """Dispatches by key. The first consumer determines `mode` and `allow_out_of_order`."""

    wants_keys = True

    def __init__(
        self,
        cursor: DelayingCursor,
        ledger: EntryLedger,
        settings: DispatchSettings,
        clock: WallClock,
        key_shared: KeyShared,
    ) -> None:
        super().__init__(cursor, ledger, settings, clock)
        self.mode = key_shared.mode
        self.allow_out_of_order = key_shared.allow_out_of_order
        self.slots: Slots[Consumer]
        self.sticky: StickyRanges[Consumer] | None
        self.slots, self.sticky = slots_of(self.mode, consistent_hashing=settings.key_shared_consistent_hashing)
        self.delayed.slots = type(self.slots).__name__
        self.holders = SlotHolders()
        self._known_slots: dict[bytes, int] = {}

    def _slot_of(self, key: bytes) -> int:
        """Return the slot of a key. Recent keys are cached, because hashing is the main cost here and keys repeat."""
        slot = self._known_slots.get(key)
        if slot is None:
            slot = self.slots.slot_of(key)
            if len(self._known_slots) >= KNOWN_KEYS_MAX:
                self._known_slots.clear()
            if len(key) <= KNOWN_KEY_BYTES_MAX:
                self._known_slots[key] = slot
        return slot

    def _slot_for(self, summary: EntrySummary) -> int:
        return self._slot_of(summary.sticky_key())

    def add(self, consumer: Consumer) -> None:
        """Add a consumer and assign slots to it. ConsumerAssignError if there are none to assign."""
        ranges = consumer.spec.key_shared.ranges if consumer.spec.key_shared else ()
        self.slots.add(consumer, consumer.spec.name, ranges)
        super().add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer and assign its slots to others; it holds no entries any more."""
        self.slots.remove(consumer)
        super().remove(consumer)

    def _release_entry(self, consumer: Consumer, position: Position) -> Pending:
        pending = super()._release_entry(consumer, position)
        self.holders.fewer(pending.slot, consumer)
        return pending

    def _slots_released(self, consumer: Consumer, released: Sequence[tuple[int, int]]) -> None:
        fewer = self.holders.fewer
        for _, slot in released:
            fewer(slot, consumer)

    def _open_to(self, slot: int) -> Consumer | None:
        """Return the consumer that may get an entry of the slot now, regardless of earlier entries that wait."""
        owner = self.slots.owner(slot)
        if owner is None or not owner.ready:
            return None
        return owner if self.allow_out_of_order or self.holders.free_for(slot, owner) else None

    def _replayable(self, count: int) -> list[tuple[Position, int]]:
        known: dict[int, bool] = {}

        def allowed(slot: int) -> bool:
            answer = known.get(slot)
            if answer is None:
                answer = known[slot] = self._open_to(slot) is not None
            return answer

        return self.replay.first(count, allowed)

    def _assign(self, entries: list[StoredEntry], handout: Handout, replayed: bool) -> int:
        """Assign every entry to the owner of its slot or to the replay set. Stops only if no consumer can take more."""
        stuck: set[int] = set()
        taken = 0
        limit = self._look_ahead()
        filtering = self.filtering
        for entry in entries:
            if self.blocked or (filtering and self.filters_are_spent) or (not replayed and len(self.replay) >= limit):
                break
            taken += 1
            messages, key = entry.messages, entry.key
            if filtering or messages <= 0 or key is None:
                summary = self.summary_of(entry, handout.skipped)
                if summary is None:
                    continue
                messages, key = summary.num_messages, summary.sticky_key()
                if not summary.is_plain and self._delay(entry, summary, self._slot_of(key)):
                    continue
            slot = self._slot_of(key)
            target = None if slot in stuck or self._waits_behind(slot, replayed) else self._open_to(slot)
            if target is not None:
                self.give(target, entry, messages, slot, handout, replayed)
                continue
            if not self.allow_out_of_order:
                stuck.add(slot)
            if not replayed:
                self.replay.add(entry.position, slot)
        return taken

    def _waits_behind(self, slot: int, replayed: bool) -> bool:
        return not replayed and not self.allow_out_of_order and self.replay.has_slot(slot)

    def give(
        self, consumer: Consumer, entry: StoredEntry, messages: int, slot: int, handout: Handout, replayed: bool
    ) -> int:
        """Assign as on Shared; the consumer then holds the slot."""
        self.holders.more(slot, consumer)
        return super().give(consumer, entry, messages, slot, handout, replayed)
