"""The reading loop that all dispatchers share: one task a subscription, one read in flight, parked while idle.

A step reads what the consumers have permits for and hands it out; the subclasses say how. While a read is awaited
anything may happen (consumers come and go, a client asks for a rewind): whoever does that sets `rewind_wanted` or
raises `roster`, and the step looks at them before it uses what it read. A seek takes `step_lock`, so no read is in
flight then. Never makes a task, a future or a log line per entry.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import PeerProtocolError
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import Delivery, EntryCursor, EntryLedger
from quire_broker.dispatch.settings import DispatchSettings
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.sampling import Rate
from quire_broker.wire.entry import EntrySummary, peek

log = logging.getLogger("quire.broker.dispatch")


@dataclass(slots=True)
class DispatchStats:
    """Counted since the subscription was loaded."""

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

    def sample_rates(self, now_s: float) -> None:
        """Called now and then."""
        self.message_rate.sample(self.messages_out, now_s)
        self.byte_rate.sample(self.bytes_out, now_s)


class Dispatcher:
    """Base of the dispatchers. `consumers` in the order in which turns are taken."""

    def __init__(self, cursor: EntryCursor, ledger: EntryLedger, settings: DispatchSettings, clock: WallClock) -> None:
        self.cursor = cursor
        self.ledger = ledger
        self.settings = settings
        self.clock = clock
        self.stats = DispatchStats()
        self.consumers: list[Consumer] = []
        self.held: deque[StoredEntry] = deque()  # read, and nobody had permits left for them
        self.rewind_wanted = False
        self.roster = 0
        self.step_lock = asyncio.Lock()
        self.at_tail = False  # parked because there is nothing to read: only an append changes that
        self._again = False
        self._retired = False
        self._parked: asyncio.Future[None] | None = None

    # what subclasses do

    async def step(self) -> bool:
        """Read and send once; False when nothing can be done until somebody wakes the loop."""
        raise NotImplementedError

    def add(self, consumer: Consumer) -> None:
        """A consumer joins. Errors leave everything as it was."""
        raise NotImplementedError

    def remove(self, consumer: Consumer) -> None:
        """A consumer left, with whatever it holds."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """The client asks for entries again: these, or everything it holds."""
        raise NotImplementedError

    def acknowledged(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """These entries are done."""
        raise NotImplementedError

    def partly_acknowledged(self, consumer: Consumer, position: Position, remaining: int) -> None:
        """A batch has `remaining` messages left."""
        raise NotImplementedError

    def acknowledged_through(self, position: Position) -> None:
        """Everything up to here was skipped by an operator."""
        raise NotImplementedError

    def reset(self) -> None:
        """The cursor was moved, and nobody is connected: forget what was read."""
        self.held.clear()
        self.rewind_wanted = False

    def close(self) -> None:
        """Cancel timers."""

    def failed(self) -> None:
        """A step broke off."""

    def retire(self) -> None:
        """Another dispatcher takes over, or the subscription ends: `run` returns after its step."""
        self.close()
        self._retired = True
        self.rewind_wanted = True  # what a read in flight brings is not sent
        self.wake()

    # the loop

    def wake(self) -> None:
        """Something changed: look again."""
        self._again = True
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def appended(self) -> None:
        """Entries were appended. Costs nothing unless the loop waits for just that."""
        if self.at_tail:
            self.wake()
        else:
            self._again = True

    async def run(self) -> None:
        """Serve until cancelled or retired. A failed read is tried again with back-off; nothing of it was sent."""
        pause_s = self.settings.read_retry_first_s
        while not self._retired:
            try:
                async with self.step_lock:
                    self._again = False
                    self.at_tail = False
                    progressed = await self.step()
                pause_s = self.settings.read_retry_first_s
            except Exception:
                # Whatever it was, a subscription that silently stopped would be worse than one that tries again.
                self.stats.read_failures += 1
                self.failed()
                log.exception("reading for %s of %s failed; again in %s s", self.cursor.name, self.ledger.name, pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self.settings.read_retry_max_s)
                continue
            if progressed or self._again:
                await asyncio.sleep(0)  # entries from the cache come without a pause: let others have the loop
                continue
            self._parked = asyncio.get_running_loop().create_future()
            try:
                await self._parked
            finally:
                self._parked = None

    # shared by subclasses

    async def read_new(self, entries_max: int) -> list[StoredEntry]:
        """The next entries of the cursor, at most so many."""
        self.stats.reads += 1
        return await self.cursor.read(entries_max=entries_max, bytes_max=self.settings.read_batch_bytes)

    def summary_of(self, entry: StoredEntry, skipped: list[Position]) -> EntrySummary | None:
        """Metadata of an entry for clients. Others (server-only markers, unreadable ones) are added to `skipped`."""
        try:
            summary = peek(entry.data)
        except PeerProtocolError as error:
            log.warning("%s of %s cannot be delivered: %s", entry.position, self.ledger.name, error)
            self.stats.unreadable_skipped += 1
            skipped.append(entry.position)
            return None
        if summary.marker is not None:
            self.stats.markers_skipped += 1
            skipped.append(entry.position)
            return None
        return summary

    def deliver(self, consumer: Consumer, deliveries: list[Delivery], messages: int) -> None:
        """Hand one batch to the consumer's session and count it."""
        size = sum([len(delivery.data) for delivery in deliveries])
        for stats in (consumer.stats, self.stats):
            stats.messages_out += messages
            stats.entries_out += len(deliveries)
            stats.bytes_out += size
        consumer.messages_per_entry.add(len(deliveries), messages)
        consumer.link.deliver(consumer.spec.consumer_id, deliveries, messages)
