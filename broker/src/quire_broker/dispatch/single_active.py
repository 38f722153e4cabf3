"""Exclusive and Failover: one consumer at a time gets all entries, in order.

A consumer that becomes active starts behind the mark-delete position, so entries that its predecessor left
unacknowledged are delivered again. On Failover this happens after a delay in which the predecessor may still
acknowledge. Owns no acknowledgement state.
"""

import asyncio
from collections.abc import Sequence

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import new_tuple
from quire_broker.dispatch.choice import active_index
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import Delivery, EntryCursor, EntryLedger
from quire_broker.dispatch.dispatcher import Dispatcher
from quire_broker.dispatch.permits import entries_to_read, entry_cost
from quire_broker.dispatch.slots import plain_slot
from quire_broker.dispatch.tail_turns import Batch
from quire_broker.managed_ledger.cursors.ack_set import intersection
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.entry import peek
from quire_broker.wire.murmur import key_hash


class SingleActiveDispatcher(Dispatcher):
    """`active` is the chosen consumer, `serving` is the same one after its delay."""

    def __init__(
        self,
        cursor: EntryCursor,
        compacted: EntryCursor,
        ledger: EntryLedger,
        settings: DispatchSettings,
        clock: WallClock,
        *,
        topic: str,
        partition_index: int = -1,
        failover: bool = False,
    ) -> None:
        """Initialise. A consumer with readCompacted reads from `compacted`, any other from `cursor`."""
        super().__init__(cursor, ledger, settings, clock)
        self._plain = cursor
        self._compacted = compacted
        self.active: Consumer | None = None
        self.serving: Consumer | None = None
        self._topic = topic
        self._partition_index = partition_index
        self.failover = failover
        self._switch: asyncio.TimerHandle | None = None

    # consumers

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. A standby is notified at once, the active consumer when it starts."""
        self.consumers.append(consumer)
        if not self._choose() and self.failover:
            consumer.link.active_changed(consumer.spec.consumer_id, False)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer. The next one takes over."""
        self.consumers.remove(consumer)
        consumer.removed = True
        if consumer is self.serving:
            self.serving = None
            self.held.clear()
            self.rewind_wanted = True  # a read may be in flight: its entries belong to no consumer
        if self.consumers:
            self._choose()
        else:
            self.active = None
            self.close()

    def _choose(self) -> bool:
        """Choose the active consumer. Return whether it changed."""
        ranked = [(consumer.spec.priority_level, consumer.spec.name) for consumer in self.consumers]
        chosen = self.consumers[active_index(ranked, self._topic, self._partition_index)]
        if chosen is self.active:
            return False
        self.active = chosen
        self.serving = None
        delay_s = self.settings.failover_delay_s
        if not self.failover or delay_s <= 0:
            self._serve()
        elif self._switch is None:
            self._switch = asyncio.get_running_loop().call_later(delay_s, self._serve)
        return True

    def _serve(self) -> None:
        assert self.active in self.consumers, "the active consumer is connected"
        self._switch = None
        self.serving = self.active
        self.rewind_wanted = True
        if self.failover:
            for consumer in self.consumers:
                consumer.link.active_changed(consumer.spec.consumer_id, consumer is self.active)
        self.wake()

    def close(self) -> None:
        """Cancel a pending switch."""
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None

    def failed(self) -> None:
        """Start again behind the mark-delete position, since some entries that were read may not have been sent."""
        self.rewind_wanted = True

    # acknowledgements and redelivery

    def acknowledged(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Count the acknowledgements. Deliveries are not tracked here, so there is nothing to release."""
        consumer.stats.entries_acked += len(positions)

    def partly_acknowledged(self, consumer: Consumer, position: Position, remaining: int) -> None:
        """Do nothing: deliveries are not tracked here."""

    def acknowledged_through(self, position: Position) -> None:
        """Discard entries that were read before they were skipped."""
        self.rewind_wanted = True
        self.wake()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver everything behind the mark-delete position again: redelivery of single entries would break the order.

        A request whose epoch is not newer than the consumer's was overtaken by a later one and is ignored.
        """
        if consumer is not self.active:
            return
        if epoch is not None:
            if consumer.epoch is not None and epoch <= consumer.epoch:
                return
            consumer.epoch = epoch
        self.rewind_wanted = True
        self.wake()

    # delivery

    async def step(self) -> bool:
        """Read if no entries are held, then send as many as the permits allow."""
        consumer = self.serving
        if consumer is None or not consumer.ready:
            if consumer is not None:
                consumer.wait_writable(self.wake)
            return False
        if self.rewind_wanted:
            self.rewind_wanted = False
            self.held.clear()
            self.cursor = self._compacted if consumer.spec.read_compacted else self._plain
            self.cursor.rewind()
        if not self.held:
            mean = consumer.messages_per_entry.mean
            count = entries_to_read(consumer.permits, mean, self.settings.read_batch_entries)
            entries = await self.read_new(self.ration.entries(count, mean))
            if self.rewind_wanted:
                return True
            if not entries:
                self.at_tail = True
                return False
            assert not self.held, "entries are read only when none are held"
            self.held.extend(entries)
        if consumer is self.serving and consumer.ready:
            self._send(consumer)
            return not self.has_sent_all()
        return True

    def send_cached(self) -> bool:
        """Read from the cache and send, if nothing else is due. Return whether everything is sent."""
        consumer = self.serving
        if consumer is None or self.rewind_wanted or self.held or not consumer.ready:
            return False
        count = entries_to_read(consumer.permits, consumer.messages_per_entry.mean, self.settings.read_batch_entries)
        entries = self.read_cached(count)
        batch = self._common_batch(consumer, entries) if entries else None
        if batch is not None:
            consumer.permits -= batch.messages
            self.deliver_batch(consumer, batch.deliveries, batch.messages, batch.size_bytes)
        elif entries:
            self.held.extend(entries)
            self._send(consumer)
        return self.has_sent_all()

    def _common_batch(self, consumer: Consumer, entries: Sequence[StoredEntry]) -> Batch | None:
        """Return these entries as deliveries that other subscriptions may get, too.

        None if this one gets only some of them, or parts of batches.
        """
        if consumer.spec.key_shared is not None or self.cursor.has_ack_sets:
            return None
        batch, epoch = self.turns.batch, consumer.epoch
        if batch is None or batch.entries is not entries or batch.epoch != epoch:
            batch = self._made_batch(entries, epoch)
            if batch is None:
                return None
            self.turns.batch = batch
        return batch if consumer.permits >= batch.messages else None

    @staticmethod
    def _made_batch(entries: Sequence[StoredEntry], epoch: int | None) -> Batch | None:
        deliveries, messages, size_bytes = [], 0, 0
        for entry in entries:
            if entry.live is not None:
                return None
            if entry.messages > 0:
                messages += entry.messages
            else:
                try:
                    summary = entry.summary = entry.summary or peek(entry.data)
                except PeerProtocolError:
                    return None
                if summary.marker is not None:
                    return None
                messages += summary.num_messages
            size_bytes += len(entry.data)
            deliveries.append(new_tuple(Delivery, (entry.position, entry.data, 0, None, epoch)))
        return Batch(entries, epoch, deliveries, messages, size_bytes)

    def _send(self, consumer: Consumer) -> None:
        held, cursor, epoch = self.held, self.cursor, consumer.epoch
        has_ack_sets = self.settings.batch_index_acks and cursor.has_ack_sets
        ranges = consumer.spec.key_shared.ranges if consumer.spec.key_shared and not self.failover else ()
        deliveries: list[Delivery] = []
        skipped: list[Position] = []
        permits = consumer.permits
        most = self.ration.entries(len(held), consumer.messages_per_entry.mean)
        filtering = self.filtering
        looks = filtering or bool(ranges)
        while held and permits > 0 and len(deliveries) < most and not (filtering and self.filters_are_spent):
            entry = held.popleft()
            messages = entry.messages
            if looks or messages <= 0:
                summary = self.summary_of(entry, skipped)
                if summary is None:
                    continue
                if ranges:
                    slot = plain_slot(key_hash(summary.sticky_key()))
                    if not any(start <= slot <= end for start, end in ranges):
                        continue  # a reader of some of the keys: other entries are skipped but not acknowledged
                messages = summary.num_messages
            position = entry.position
            ack_set = cursor.ack_set(position) if has_ack_sets else None
            if entry.live is not None:
                ack_set = entry.live if ack_set is None else intersection(ack_set, entry.live)
            permits -= messages if ack_set is None else entry_cost(messages, ack_set)
            deliveries.append(new_tuple(Delivery, (position, entry.data, 0, ack_set, epoch)))
        if skipped:
            cursor.acknowledge(skipped)
        if deliveries:
            assert deliveries[0].position <= deliveries[-1].position, "one consumer receives everything in order"
            messages = consumer.permits - permits
            consumer.permits = permits
            self.deliver(consumer, deliveries, messages)
