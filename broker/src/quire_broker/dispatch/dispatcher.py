"""The read loop of all dispatchers: one task per subscription, one read in flight, parked while idle.

A dispatcher at the tail is served without its task when the appended entries are in the cache and nothing else is due
(`serve`, called by `TailTurns`); in every other case its task does a step.

A step reads as many entries as the consumers have permits for and sends them; subclasses define how. While a read is
awaited, consumers may come and go and a client may request a rewind. The code that does this sets `rewind_wanted` or
increments `roster`, and the step checks both before it uses the entries that it read. A seek takes `step_lock`, so no
read is in flight during it. Never makes a task, a future or a log line per entry.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field

from quire_bookie.bulk import plain_heads
from quire_bookie.dataclass import dataclass
from quire_bookie.env.backoff import Backoff
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import PeerProtocolError
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import Delivery, EntryCursor, EntryLedger
from quire_broker.dispatch.entry_filters import SubscriptionFilters
from quire_broker.dispatch.limit import Rationing
from quire_broker.dispatch.tail_turns import TailTurns
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.sampling import Rate
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.entry import EntrySummary, peek

log = logging.getLogger("quire.broker.dispatch")


@dataclass(slots=True)
class DispatchStats:
    """Counters since the subscription was loaded."""

    messages_out: int = 0
    entries_out: int = 0
    bytes_out: int = 0
    messages_redelivered: int = 0
    reads: int = 0
    read_failures: int = 0
    markers_skipped: int = 0
    unreadable_skipped: int = 0
    message_rate: Rate = field(default_factory=Rate)
    byte_rate: Rate = field(default_factory=Rate)
    redelivery_rate: Rate = field(default_factory=Rate)

    def sample_rates(self, now_s: float) -> bool:
        """Update the rates. Called periodically. Return whether messages were delivered since the last call."""
        self.byte_rate.sample(self.bytes_out, now_s)
        self.redelivery_rate.sample(self.messages_redelivered, now_s)
        return self.message_rate.sample(self.messages_out, now_s)


def size_of(deliveries: Sequence[Delivery]) -> int:
    """Return the bytes of a batch."""
    return sum([len(delivery.data) for delivery in deliveries])


def hand_over(
    consumer: Consumer, ours: DispatchStats, deliveries: list[Delivery], messages: int, size_bytes: int
) -> None:
    """Count one batch, for the consumer and for its subscription, and pass it to the consumer's session."""
    entries, theirs = len(deliveries), consumer.stats
    theirs.messages_out += messages
    theirs.entries_out += entries
    theirs.bytes_out += size_bytes
    ours.messages_out += messages
    ours.entries_out += entries
    ours.bytes_out += size_bytes
    consumer.messages_per_entry.add(entries, messages)
    consumer.link.deliver(consumer.spec.consumer_id, deliveries, messages)


class Dispatcher:
    """Base class of the dispatchers. `consumers` are in the order in which they take turns."""

    wants_keys = False
    """Whether it looks at the keys of entries."""

    def __init__(self, cursor: EntryCursor, ledger: EntryLedger, settings: DispatchSettings, clock: WallClock) -> None:
        self.cursor = cursor
        self.ledger = ledger
        self.settings = settings
        self.clock = clock
        self.stats = DispatchStats()
        self.on_delivery: Callable[[], None] = lambda: None
        """Called before each batch is counted."""
        self.ration = Rationing()
        """The messages and bytes that the rates permit now. A step delivers no more."""
        self.turns = TailTurns()
        """Serves it at the tail; a topic's subscriptions share it."""
        self.consumers: list[Consumer] = []
        self.held: deque[StoredEntry] = deque()  # entries that were read when no consumer had permits left
        self.filters = SubscriptionFilters(ledger.name, cursor.name, dict)
        """At first without any; its subscription sets those that it has."""
        self.rewind_wanted = False
        self.roster = 0
        self.step_lock = asyncio.Lock()
        self.at_tail = False  # parked because there is nothing to read until the next append
        self._again = False
        self._in_line = False
        self._retired = False
        self._parked: asyncio.Future[None] | None = None

    # implemented by subclasses

    async def step(self) -> bool:
        """Read and send once. Return False if nothing can be done until the loop is woken."""
        raise NotImplementedError

    def send_cached(self) -> bool:
        """Read from the cache and send, if nothing else is due. Return whether everything is sent."""
        raise NotImplementedError

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. An error leaves the state unchanged."""
        raise NotImplementedError

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer that left, with the entries that it holds."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver entries again on the client's request: these, or everything that the consumer holds."""
        raise NotImplementedError

    def acknowledged(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Note that these entries are acknowledged."""
        raise NotImplementedError

    def partly_acknowledged(self, consumer: Consumer, position: Position, remaining: int) -> None:
        """Note that `remaining` messages of a batch are unacknowledged."""
        raise NotImplementedError

    def acknowledged_through(self, position: Position) -> None:
        """Note that an administrator skipped everything up to this position."""
        raise NotImplementedError

    def reset(self) -> None:
        """Drop the entries that were read, because the cursor was moved while no consumer is connected."""
        self.held.clear()
        self.rewind_wanted = False

    def close(self) -> None:
        """Cancel timers."""

    def failed(self) -> None:
        """Handle that a step was interrupted by an error."""

    def retire(self) -> None:
        """End: another dispatcher takes over or the subscription ends. `run` returns after its step."""
        self.close()
        self.ration.cancel()
        self._retired = True
        self.rewind_wanted = True  # entries of a read in flight are not sent
        self.wake()

    # the loop

    def wake(self) -> None:
        """Make the loop run a step because something changed."""
        self._again = True
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def appended(self) -> None:
        """Note that entries were appended: deliver them soon, if it waits for an append."""
        if not self.at_tail:
            self._again = True
        elif not self._in_line:
            self._in_line = True
            self.turns.join(self)

    def serve(self) -> int:
        """Deliver the appended entries, or wake the loop for a step. Return the number of delivered entries.

        No step is interrupted: the loop is parked, and `step_lock` is free.
        """
        self._in_line = False
        parked = self._parked
        is_parked = self.at_tail and parked is not None and not parked.done() and not self.step_lock.locked()
        if not is_parked or self._retired or self.filtering or not self.ration.is_unlimited():
            self.wake()
            return 0
        before = self.stats.entries_out
        try:
            if not self.send_cached():
                self.wake()
        except Exception:
            self.failed()
            log.exception("could not deliver at the tail for %s of %s", self.cursor.name, self.ledger.name)
            self.wake()
        return self.stats.entries_out - before

    async def run(self) -> None:
        """Deliver until cancelled or retired. A failed read, of which nothing was sent, is retried with back-off."""
        backoff = Backoff((self.settings.read_retry_first_s, self.settings.read_retry_max_s))
        while not self._retired:
            try:
                async with self.step_lock:
                    self._again = False
                    self.at_tail = False
                    progressed = not self.ration.waits(self.wake) and await self.step()
                backoff.reset()
            except Exception:
                # Any error is retried: a subscription that silently stopped would be worse.
                self.stats.read_failures += 1
                self.failed()
                pause_s = backoff.grow()
                log.exception(
                    "could not read for subscription %s of %s; trying again in %s s",
                    self.cursor.name,
                    self.ledger.name,
                    pause_s,
                )
                await asyncio.sleep(pause_s)
                continue
            if pause_s := self.filters.cost.take_pause_s():
                await asyncio.sleep(pause_s)
            if progressed or self._again:
                await asyncio.sleep(0)  # reads from the cache do not yield: let other tasks run
                continue
            self._parked = asyncio.get_running_loop().create_future()
            try:
                await self._parked
            finally:
                self._parked = None

    # shared by subclasses

    async def read_new(self, entries_max: int) -> list[StoredEntry]:
        """Return the next entries of the cursor, at most `entries_max`."""
        self.stats.reads += 1
        bytes_max = self.ration.bytes_at_once(self.settings.read_batch_bytes)
        entries = await self.cursor.read(entries_max=entries_max, bytes_max=bytes_max)
        self.note_heads(entries)
        return entries

    def read_cached(self, entries_max: int) -> Sequence[StoredEntry]:
        """Return what `read_new` would, if that needs no waiting; empty if it does, or if there is nothing."""
        self.stats.reads += 1
        entries = self.cursor.read_cached(entries_max, self.settings.read_batch_bytes)
        self.note_heads(entries)
        return entries

    def note_heads(self, entries: Sequence[StoredEntry]) -> None:
        """Note in one step what dispatch needs to know of plain entries. `summary_of` parses the other ones."""
        if not entries or not (entries[0].messages < 0 or (self.wants_keys and entries[0].key is None)):
            return
        counts, keys = plain_heads([entry.data for entry in entries], self.wants_keys)
        for entry, count in zip(entries, counts, strict=True):
            entry.messages = count
        if self.wants_keys:
            for entry, key in zip(entries, keys, strict=True):
                entry.key = key

    def has_sent_all(self) -> bool:
        """Return whether nothing is left to send, and note that: the loop then waits for an append without a read."""
        self.at_tail = not self.held and not self.rewind_wanted and not self.cursor.has_more
        return self.at_tail

    def summary_of(self, entry: StoredEntry, skipped: list[Position]) -> EntrySummary | None:
        """Return the metadata of an entry for clients.

        Server-only markers, unreadable entries and those that a filter drops are added to `skipped`.
        """
        summary = entry.summary
        if summary is None:
            try:
                summary = entry.summary = peek(entry.data)
            except PeerProtocolError as error:
                log.warning("could not deliver entry %s of %s: %s", entry.position, self.ledger.name, error)
                self.stats.unreadable_skipped += 1
                skipped.append(entry.position)
                return None
        if summary.marker is not None:
            self.stats.markers_skipped += 1
            skipped.append(entry.position)
            return None
        if self.filters.filters and not self.filters.admits(summary):
            skipped.append(entry.position)
            return None
        return summary

    @property
    def filtering(self) -> bool:
        """Whether filters are asked about entries now."""
        return bool(self.filters.filters)

    @property
    def filters_are_spent(self) -> bool:
        """Whether the filters took their time of this step: it looks at no more entries."""
        return self.filters.cost.is_spent

    def deliver(self, consumer: Consumer, deliveries: list[Delivery], messages: int) -> None:
        """Announce one batch, count it and pass it to the consumer's session."""
        self.deliver_batch(consumer, deliveries, messages, size_of(deliveries))

    def deliver_batch(self, consumer: Consumer, deliveries: list[Delivery], messages: int, size_bytes: int) -> None:
        """Do the same; the size of the entries is known."""
        assert deliveries and messages > 0 and not consumer.removed
        self.on_delivery()
        hand_over(consumer, self.stats, deliveries, messages, size_bytes)
        self.ration.charge(messages, size_bytes)
