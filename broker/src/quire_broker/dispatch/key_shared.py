"""Key_Shared: all entries of one key go to one consumer, in order, also while consumers come and go.

Each slot of the hash space belongs to a consumer (`slots`). One rule keeps the order when a slot changes its owner: as
long as a consumer holds unacknowledged entries of a slot, only that consumer may get more of it; for any other owner
the slot is draining. Entries that cannot be sent wait in the replay set, and later ones of their slot wait too. A bound
on the replay set (look-ahead) prevents that a slow consumer makes the broker read the whole topic.
"""

from collections.abc import Collection, Iterable, Sequence

from quire_bookie.env.clock import WallClock
from quire_broker.dispatch.consumer import Consumer, Pending
from quire_broker.dispatch.delayed_index import DelayingCursor
from quire_broker.dispatch.delivery import EntryLedger, KeyShared
from quire_broker.dispatch.shared import Handout, SharedDispatcher
from quire_broker.dispatch.slots import Slots, StickyRanges, slots_of
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.settings.dispatch import KNOWN_KEY_BYTES_MAX, KNOWN_KEYS_MAX, DispatchSettings
from quire_broker.wire.entry import EntrySummary


class _Holder:
    """A consumer that holds entries of a slot."""

    __slots__ = ("consumer", "entries")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.entries = 1


class SlotHolders:
    """Tracks for each slot the consumer that holds unacknowledged entries of it, and their number. Pure."""

    def __init__(self) -> None:
        self._held: dict[int, _Holder] = {}

    def __len__(self) -> int:
        return len(self._held)

    def free_for(self, slot: int, consumer: Consumer) -> bool:
        """Return whether no other consumer holds entries of the slot."""
        held = self._held.get(slot)
        return held is None or held.consumer is consumer

    def more(self, slot: int, consumer: Consumer) -> None:
        """Count one more entry of the consumer. With out-of-order delivery several may hold entries.

        The latest is kept.
        """
        held = self._held.get(slot)
        if held is not None and held.consumer is consumer:
            held.entries += 1
        else:
            self._held[slot] = _Holder(consumer)

    def fewer(self, slots: Iterable[int], consumer: Consumer) -> None:
        """Count one entry of the consumer less for each of the slots."""
        known = self._held
        for slot in slots:
            held = known.get(slot)
            if held is None or held.consumer is not consumer:
                continue
            held.entries -= 1
            assert held.entries >= 0, "a slot without entries has no holder"
            if not held.entries:
                del known[slot]


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
        self._known: dict[bytes, tuple[int, Consumer | None]] = {}

    def _slot_and_owner(self, key: bytes) -> tuple[int, Consumer | None]:
        """Return the slot of a key, and its owner.

        Recent keys are cached until slots change their owners: keys repeat, and hashing them is the main cost here.
        """
        found = self._known.get(key)
        if found is None:
            slot = self.slots.slot_of(key)
            found = slot, self.slots.owner(slot)
            if len(self._known) >= KNOWN_KEYS_MAX:
                self._known.clear()
            if len(key) <= KNOWN_KEY_BYTES_MAX:
                self._known[key] = found
        return found

    def _slot_for(self, summary: EntrySummary) -> int:
        return self._slot_and_owner(summary.sticky_key())[0]

    def add(self, consumer: Consumer) -> None:
        """Add a consumer and assign slots to it. ConsumerAssignError if there are none to assign."""
        ranges = consumer.spec.key_shared.ranges if consumer.spec.key_shared else ()
        self.slots.add(consumer, consumer.spec.name, ranges)
        self._known.clear()
        super().add(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer and assign its slots to others; it holds no entries any more."""
        self.slots.remove(consumer)
        self._known.clear()
        super().remove(consumer)

    def _release_entry(self, consumer: Consumer, position: Position) -> Pending:
        pending = super()._release_entry(consumer, position)
        self.holders.fewer((pending.slot,), consumer)
        return pending

    def _slots_released(self, consumer: Consumer, released: Sequence[tuple[int, int]]) -> None:
        self.holders.fewer([slot for _, slot in released], consumer)

    def _ready(self) -> set[Consumer]:
        """Return the consumers that may get an entry now. No socket becomes full while entries are only assigned."""
        return {consumer for consumer in self.consumers if consumer.ready}

    def _open_to(self, slot: int, owner: Consumer | None, ready: set[Consumer]) -> Consumer | None:
        """Return the consumer that may get an entry of the slot now, regardless of earlier entries that wait."""
        if owner is None or owner not in ready:
            return None
        return owner if self.allow_out_of_order or self.holders.free_for(slot, owner) else None

    def _replayable(self, count: int) -> list[tuple[Position, int]]:
        known: dict[int, bool] = {}
        ready = self._ready()

        def allowed(slot: int) -> bool:
            answer = known.get(slot)
            if answer is None:
                answer = known[slot] = self._open_to(slot, self.slots.owner(slot), ready) is not None
            return answer

        return self.replay.first(count, allowed)

    def _assign(self, entries: list[StoredEntry], handout: Handout) -> int:
        """Assign every entry to the owner of its slot or to the replay set. Stops only if no consumer can take more."""
        replayed, filtering = handout.replayed, self.filtering
        waiting, stuck = self._waiting_slots(replayed), set[int]()
        ready, limit, taken = self._ready(), self._look_ahead(), 0
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
                if not summary.is_plain and self._delay(entry, summary, self._slot_for(summary)):
                    continue
            slot, owner = self._slot_and_owner(key)
            target = None if slot in waiting or slot in stuck else self._open_to(slot, owner, ready)
            if target is not None:
                self.holders.more(slot, target)
                self.give(target, entry, messages, slot, handout)
                if target.permits <= 0 or target.blocked:
                    ready.discard(target)
                continue
            if not self.allow_out_of_order:
                stuck.add(slot)
            if not replayed:
                self.replay.add(entry.position, slot)
        return taken

    def _waiting_slots(self, replayed: bool) -> Collection[int]:
        """Return the slots whose new entries wait behind older ones."""
        return () if replayed or self.allow_out_of_order else self.replay.slots
