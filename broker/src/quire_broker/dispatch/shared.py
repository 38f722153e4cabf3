"""Shared: each entry goes to one of the consumers, in turns; unacknowledged entries may go to another one later.

    cursor -> held -> consumer.pending -> acknowledged
                 \\       | nack, disconnect
       delayed <-- \\      v
            `-----> replay -> (read again) -> consumer.pending

An entry is in exactly one of these states. Replays go first. Positions are kept, not data: replays are read again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import new_tuple
from quire_broker.dispatch.choice import next_turn
from quire_broker.dispatch.consumer import Consumer, Pending
from quire_broker.dispatch.delayed_index import DelayedIndex, DelayingCursor
from quire_broker.dispatch.delivery import Delivery, EntryLedger
from quire_broker.dispatch.dispatcher import Dispatcher
from quire_broker.dispatch.permits import entries_to_read, entry_cost
from quire_broker.dispatch.redelivery import NO_SLOT, RedeliveryCounts, ReplaySet, runs
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.entry import EntrySummary, peek

log = logging.getLogger("quire.broker.dispatch")
DUE_AT_ONCE = 2_000
"""Delayed entries that one step looks at: up to 4 ms."""
RECHECK_MS = 60_000
"""Delayed entries are checked this often, because the wall clock may jump or the machine may have been suspended."""


class Handout:
    """Entries that one step assigned to consumers and has not sent yet: one delivery call per consumer."""

    __slots__ = ("batches", "has_ack_sets", "is_plain", "permits", "replayed", "skipped")

    def __init__(self, *, has_ack_sets: bool, replayed: bool, has_counts: bool) -> None:
        """Initialise. `has_ack_sets`: parts of batches are acknowledged; `has_counts`: entries were redelivered."""
        self.has_ack_sets = has_ack_sets
        self.replayed = replayed
        self.is_plain = not (has_ack_sets or replayed or has_counts)
        """Whether every entry is sent whole and for the first time."""
        self.batches: dict[Consumer, list[Delivery]] = {}
        self.permits: dict[Consumer, int] = {}
        """Those that each consumer had before it got the first entry."""
        self.skipped: list[Position] = []

    def begin(self, consumer: Consumer) -> list[Delivery]:
        """Return the batch of a consumer that has none yet."""
        batch = self.batches[consumer] = []
        self.permits[consumer] = consumer.permits
        return batch


class SharedDispatcher(Dispatcher):
    """Round robin. `unacked`: messages that all consumers hold; at the limit all wait until it is below half of it."""

    cursor: DelayingCursor

    def __init__(
        self, cursor: DelayingCursor, ledger: EntryLedger, settings: DispatchSettings, clock: WallClock
    ) -> None:
        super().__init__(cursor, ledger, settings, clock)
        self.replay = ReplaySet()
        self.counts = RedeliveryCounts()
        self.delayed = DelayedIndex(cursor, ledger, settings, clock, self._time_and_slot, self.wake)
        self.unacked = 0
        self.blocked = False
        self.paused = False
        """Whether nothing new is read until acks close gaps; see `DispatchSettings.pause_on_acks`."""
        self._last_turn = -1
        self._chunk_owners: dict[str, Consumer] = {}
        self._timer: asyncio.TimerHandle | None = None

    # consumers

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. The first one starts behind the mark-delete position."""
        if not self.consumers:
            self._forget_reads()
            self.rewind_wanted = True
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda known: known.spec.priority_level)
        self.roster += 1
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer. Its entries go to others; no count is raised, because no client requested a redelivery."""
        self.consumers.remove(consumer)
        consumer.removed = True
        for position in list(consumer.pending):
            self.replay.add(position, self._release_entry(consumer, position).slot)
        for uuid in [uuid for uuid, owner in self._chunk_owners.items() if owner is consumer]:
            del self._chunk_owners[uuid]
        self.roster += 1
        if not self.consumers:
            self._forget_reads()
            self.rewind_wanted = True  # a read may be in flight: its entries are read again for the next consumer
        self.wake()

    def _forget_reads(self) -> None:
        self.held.clear()
        self.replay.clear()
        self.close()

    def reset(self) -> None:
        """Drop the entries that were read, and the counts."""
        super().reset()
        self._forget_reads()
        self.delayed.clear()
        self.counts.clear()

    def close(self) -> None:
        """Cancel the timer of delayed entries."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def run(self) -> None:
        """Deliver until cancelled or retired."""
        try:
            await super().run()
        finally:
            await self.delayed.close()

    # acknowledgements and redelivery

    def _release_entry(self, consumer: Consumer, position: Position) -> Pending:
        """Take an entry from a consumer that holds it."""
        pending = consumer.release(position)
        assert pending is not None, "released from a consumer that did not hold it"
        self._fewer_unacked(pending.messages)
        return pending

    def _fewer_unacked(self, messages: int) -> None:
        self.unacked -= messages
        assert self.unacked >= 0, "consumers return no more messages than they hold"
        if self.blocked and self.unacked < self.settings.unacked_per_subscription_max / 2:
            self.blocked = False

    def _holder(self, consumer: Consumer, position: Position) -> Consumer | None:
        """Return the holder of an entry. Another consumer than the one that received it may acknowledge it."""
        if position in consumer.pending:
            return consumer
        return next((other for other in self.consumers if position in other.pending), None)

    def acknowledged(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Release acknowledged entries, whichever consumer holds them."""
        waiting = self.blocked or self.paused or len(self.replay) > 0
        was_blocked = consumer.blocked
        released, messages, others = consumer.release_all(positions)
        if released:
            waiting = waiting or was_blocked
            self._fewer_unacked(messages)
            self._slots_released(consumer, released)
        for position in others:
            holder = self._holder(consumer, position)
            if holder is not None:
                waiting = waiting or holder.blocked
                self._release_entry(holder, position)
            else:
                self.replay.discard(position)
        self.counts.forget_all(positions)
        consumer.stats.entries_acked += len(positions)
        if waiting:
            self.wake()

    def _slots_released(self, consumer: Consumer, released: Sequence[tuple[int, int]]) -> None:
        """Note that a consumer no longer holds entries: their messages, and slots on Key_Shared."""

    def partly_acknowledged(self, consumer: Consumer, position: Position, remaining: int) -> None:
        """Note that fewer messages of a batch are held."""
        holder = self._holder(consumer, position)
        if holder is not None:
            waiting = self.blocked or holder.blocked
            self._fewer_unacked(holder.shrink(position, remaining))
            if waiting:
                self.wake()

    def acknowledged_through(self, position: Position) -> None:
        """Release the entries that an administrator skipped from the consumers that hold them."""
        for consumer in self.consumers:
            for held in [known for known in consumer.pending if known <= position]:
                self._release_entry(consumer, held)
        self.replay.discard_through(position)
        self.delayed.drop_through(position)
        self.held = deque(entry for entry in self.held if entry.position > position)
        self.roster += 1  # a read in flight may return skipped entries
        self.counts.forget_through(position)
        self.wake()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Redeliver those of `positions` that the consumer holds (None: all that it holds), and count them."""
        asked = list(consumer.pending) if positions is None else dict.fromkeys(positions)
        again = [position for position in asked if position in consumer.pending]
        messages = 0
        for position in again:
            pending = self._release_entry(consumer, position)
            messages += pending.messages
            self.replay.add(position, pending.slot)
        self.counts.raise_all(again)
        consumer.stats.messages_redelivered += messages
        self.stats.messages_redelivered += messages
        if again:
            self.wake()

    # reading

    async def step(self) -> bool:
        """Send replays first; if none can be sent, read new entries unless too many wait already."""
        if self.rewind_wanted and self.consumers:
            self.rewind_wanted = False
            self.held.clear()
            self.cursor.rewind()
        ready = [] if self.blocked else [consumer for consumer in self.consumers if consumer.ready]
        if not ready:
            for consumer in self.consumers:
                consumer.wait_writable(self.wake)
            return False
        if not self.delayed.is_loaded:
            await self.delayed.load()
        self._take_due()
        count, mean = self._room_of(ready)
        self._arm_timer()
        progressed = bool(len(self.replay)) and await self._step_replay(count)
        if progressed or self.rewind_wanted:
            return True
        return await self._step_new(count, mean)

    async def read_new(self, entries_max: int) -> list[StoredEntry]:
        """Return the next entries of the cursor that are not delayed already."""
        self.stats.reads += 1
        bytes_max = self.ration.bytes_at_once(self.settings.read_batch_bytes)
        entries = await self.cursor.read(entries_max, bytes_max, self.delayed.waiting)
        self.note_heads(entries)
        return entries

    def _take_due(self) -> None:
        """Move delayed entries that are due to the replays, as far as those have room."""
        room = self._look_ahead() - len(self.replay)
        if room > 0:
            for position, slot in self.delayed.take_due(self.clock.now_ms(), room, DUE_AT_ONCE):
                if not self.cursor.is_acknowledged(position):
                    self.replay.add(position, slot)

    async def _step_new(self, count: int, mean: float) -> bool:
        if not self.held:
            if len(self.replay) >= self._look_ahead():
                return False
            if self.delayed.is_full or self._pauses():
                return False
            entries = await self.read_new(count)
            if self.rewind_wanted:
                return True
            if not entries:
                self.at_tail = True
                return False
            assert len(self.held) == 0, "entries are read only when none are held"
            self.held.extend(entries)
        return self._send_held(mean) and (bool(self.replay) or not self.has_sent_all())

    def _pauses(self) -> bool:
        """Return whether acks of the next entries could not all be saved, and note that: acks then wake the loop."""
        self.paused = self.settings.pause_on_acks and not self.cursor.keeps_all_acks
        return self.paused

    def send_cached(self) -> bool:
        """Read from the cache and send, if nothing else is due. Return whether everything is sent."""
        if self.blocked or self.rewind_wanted or self.held or len(self.replay) or self.delayed:
            return False
        if not self.delayed.is_loaded:
            return False
        ready = [consumer for consumer in self.consumers if consumer.ready]
        if not ready or self._pauses():
            return False
        count, mean = self._room_of(ready)
        self.held.extend(self.read_cached(count))
        if self.held:
            self._send_held(mean)
        return not self.replay and self.has_sent_all()

    def _room_of(self, ready: list[Consumer]) -> tuple[int, float]:
        """Return how many entries these consumers have permits for, and their mean number of messages."""
        permits = sum([consumer.permits for consumer in ready])
        mean = sum([consumer.messages_per_entry.mean for consumer in ready]) / len(ready)
        return self.ration.entries(entries_to_read(permits, mean, self.settings.read_batch_entries), mean), mean

    def _send_held(self, mean: float) -> bool:
        """Send the entries that were read, as far as the permits allow. Return whether any is settled."""
        entries = list(self.held)
        taken = self._hand_out(entries[: self.ration.entries(len(entries), mean)], replayed=False)
        if taken == len(entries):
            self.held.clear()
        else:
            for _ in range(taken):
                self.held.popleft()
        self._arm_timer()
        return taken > 0

    def _look_ahead(self) -> int:
        per_consumer = self.settings.look_ahead_per_consumer * len(self.consumers)
        return max(1, min(per_consumer, self.settings.look_ahead_max))

    async def _step_replay(self, count: int) -> bool:
        """Read entries of the replay set again and send them. Return whether any could be sent."""
        wanted = self._replayable(count)
        found: list[StoredEntry] = []
        budget = self.ration.bytes_at_once(self.settings.read_batch_bytes)
        roster = self.roster
        positions = {position for position, _ in wanted}
        for first, length in runs([position for position, _ in wanted], self.settings.read_batch_entries):
            self.stats.reads += 1
            entries = await self.ledger.read(first, entries_max=length, bytes_max=budget)
            if roster != self.roster or self.rewind_wanted:
                return True  # consumers changed: choose again which entries to send to whom
            if not entries or entries[0].position != first:
                log.warning("entry %s of %s no longer exists and cannot be delivered again", first, self.ledger.name)
                self.replay.discard(first)
            self.note_heads(entries)
            found += [entry for entry in entries if entry.position in positions]
            budget -= sum([len(entry.data) for entry in entries])
            if budget <= 0 or len(entries) < length:
                break  # later entries may have the key of a missing one: keep the order
        before = len(self.replay)
        self._hand_out([entry for entry in found if entry.position in self.replay], replayed=True)
        return len(self.replay) < before or (bool(wanted) and not found)

    def _replayable(self, count: int) -> list[tuple[Position, int]]:
        return self.replay.first(count)

    def _arm_timer(self) -> None:
        """Start a timer for the next delayed entry, unless entries that are due wait. There is at most one timer."""
        due_ms = self.delayed.due_in_ms(self.clock.now_ms())
        if due_ms is None or len(self.replay) >= self._look_ahead():
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + min(due_ms, RECHECK_MS) / 1000
        if self._timer is not None:
            if self._timer.when() <= when and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    # handing out

    def _hand_out(self, entries: list[StoredEntry], *, replayed: bool) -> int:
        """Assign entries to consumers and send them. Return how many, from the first on, are settled."""
        has_ack_sets = self.settings.batch_index_acks and self.cursor.has_ack_sets
        handout = Handout(has_ack_sets=has_ack_sets, replayed=replayed, has_counts=len(self.counts) > 0)
        taken = self._assign(entries, handout)
        assert 0 <= taken <= len(entries)
        if handout.skipped:
            self.cursor.acknowledge(handout.skipped)
            for position in handout.skipped:
                self.replay.discard(position)
        for consumer, deliveries in handout.batches.items():
            self.deliver(consumer, deliveries, handout.permits[consumer] - consumer.permits)
        return taken

    def _assign(self, entries: list[StoredEntry], handout: Handout) -> int:
        """Assign each entry, in turns of some messages. Stops when no consumer is ready."""
        taken = 0
        turn_left = 0
        current: Consumer | None = None
        filtering = self.filtering
        for entry in entries:
            if filtering and self.filters_are_spent:
                break
            if current is None or turn_left <= 0 or current.permits <= 0 or current.blocked or self.blocked:
                current = self._next_consumer()
                turn_left = self.settings.round_robin_messages
                if current is None:
                    break
            taken += 1
            messages, target = entry.messages, current
            if filtering or messages <= 0:
                summary = self.summary_of(entry, handout.skipped)
                if summary is None:
                    continue
                if not summary.is_plain and self._delay(entry, summary, NO_SLOT):
                    continue
                if not summary.is_plain and summary.num_chunks > 1 and summary.uuid:
                    target = self._chunk_owner(summary, current)
                    if not target.ready:
                        self.replay.add(entry.position)
                        continue
                    if summary.is_last_chunk:
                        self._chunk_owners.pop(summary.uuid, None)
                messages = summary.num_messages
            cost = self.give(target, entry, messages, NO_SLOT, handout)
            if target is current:
                turn_left -= cost
        return taken

    def _next_consumer(self) -> Consumer | None:
        if self.blocked:
            return None
        index = next_turn([(known.spec.priority_level, known.ready) for known in self.consumers], self._last_turn)
        if index is None:
            return None
        self._last_turn = index
        return self.consumers[index]

    def _delay(self, entry: StoredEntry, summary: EntrySummary, slot: int) -> bool:
        """Keep an entry whose delivery time has not come. Return whether it is one."""
        deliver_at_ms = summary.deliver_at_ms if self.settings.delayed_delivery else None
        now_ms = self.clock.now_ms()
        if deliver_at_ms is None or deliver_at_ms <= now_ms:
            return False
        self.delayed.add(deliver_at_ms, entry.position, slot, now_ms)
        self.replay.discard(entry.position)
        return True

    def _time_and_slot(self, entry: StoredEntry) -> tuple[int, int]:
        """Return the delivery time of an entry, 0 if it is not delayed, and its slot."""
        try:
            summary = peek(entry.data)
        except PeerProtocolError:
            return 0, NO_SLOT
        return summary.deliver_at_ms or 0, self._slot_for(summary)

    def _slot_for(self, summary: EntrySummary) -> int:
        return NO_SLOT

    def _chunk_owner(self, summary: EntrySummary, current: Consumer) -> Consumer:
        """Return the consumer for the chunks of a message: all go to the same one, since clients assemble them."""
        uuid = summary.uuid or ""
        owner = self._chunk_owners.setdefault(uuid, current)
        if len(self._chunk_owners) > self.settings.chunked_messages_max:
            del self._chunk_owners[next(iter(self._chunk_owners))]
        return owner

    def give(self, consumer: Consumer, entry: StoredEntry, messages: int, slot: int, handout: Handout) -> int:
        """Charge the consumer for an entry and add it to the handout. Return its cost in messages."""
        position, cost, redelivered, ack_set = entry.position, messages, 0, None
        if not handout.is_plain:
            if handout.has_ack_sets and (ack_set := self.cursor.ack_set(position)) is not None:
                cost = entry_cost(messages, ack_set)
            if handout.replayed:
                self.replay.discard(position)
            redelivered = self.counts.of(position)
        batch = handout.batches.get(consumer)
        if batch is None:
            batch = handout.begin(consumer)
        batch.append(new_tuple(Delivery, (position, entry.data, redelivered, ack_set, None)))
        consumer.permits -= cost
        consumer.hold(position, cost, slot)
        self.unacked += cost
        limit = self.settings.unacked_per_subscription_max
        if limit and self.unacked >= limit:
            self.blocked = True
        return cost
