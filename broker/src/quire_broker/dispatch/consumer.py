"""One consumer of a subscription: its permits, its unacknowledged entries, and its counters.

Never chooses the consumer of an entry and never changes the cursor: dispatchers and the subscription do.
"""

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import NamedTuple

from quire_bookie.dataclass import dataclass
from quire_broker.dispatch.delivery import ConsumerLink, ConsumerSpec
from quire_broker.dispatch.permits import MessagesPerEntry, granted
from quire_broker.managed_ledger.position import Position
from quire_broker.sampling import Rate
from quire_broker.settings.dispatch import PERMITS_MAX


class Pending(NamedTuple):
    """An entry sent to a consumer: its unacknowledged messages, and its slot on Key_Shared (else -1)."""

    messages: int
    slot: int


@dataclass(slots=True)
class ConsumerStats:
    """Counters since the consumer connected."""

    messages_out: int = 0
    entries_out: int = 0
    bytes_out: int = 0
    messages_redelivered: int = 0
    entries_acked: int = 0
    message_rate: Rate = field(default_factory=Rate)
    byte_rate: Rate = field(default_factory=Rate)
    redelivery_rate: Rate = field(default_factory=Rate)
    ack_rate: Rate = field(default_factory=Rate)

    def sample_rates(self, now_s: float) -> bool:
        """Update the rates. Called periodically. Return whether any is above 0."""
        self.byte_rate.sample(self.bytes_out, now_s)
        moving = self.redelivery_rate.sample(self.messages_redelivered, now_s)
        moving |= self.ack_rate.sample(self.entries_acked, now_s)
        return self.message_rate.sample(self.messages_out, now_s) or moving


class Consumer:
    """A connected consumer. Its deliveries carry `epoch`, which is None if its client does not use epochs."""

    __slots__ = (
        "blocked",
        "epoch",
        "link",
        "messages_per_entry",
        "name_index",
        "pending",
        "permits",
        "removed",
        "spec",
        "stats",
        "told_end",
        "unacked",
        "unacked_max",
    )

    def __init__(self, spec: ConsumerSpec, link: ConsumerLink, unacked_max: int = 0) -> None:
        self.spec = spec
        self.link = link
        self.epoch = spec.epoch
        self.permits = 0
        self.pending: dict[
            Position, tuple[int, int]
        ] = {}  # plain tuples of Pending's fields, since one is created per entry
        self.unacked = 0
        self.unacked_max = unacked_max
        self.blocked = False
        self.removed = False
        self.told_end = False
        self.name_index = 0
        self.messages_per_entry = MessagesPerEntry()
        self.stats = ConsumerStats()

    def __repr__(self) -> str:
        return f"<Consumer {self.spec.name!r} id {self.spec.consumer_id} of {self.link.peer}>"

    @property
    def ready(self) -> bool:
        """Whether an entry may be sent now."""
        return self.permits > 0 and not self.blocked and not self.removed and self.link.writable

    def flow(self, permits: int) -> None:
        """Add the permits that the client granted."""
        self.permits = granted(self.permits, permits, PERMITS_MAX)

    def hold(self, position: Position, messages: int, slot: int) -> None:
        """Note an entry that was sent and waits for its acknowledgement. Blocks the consumer at its limit."""
        self.pending[position] = (messages, slot)
        self.unacked += messages
        if self.unacked_max and self.unacked >= self.unacked_max:
            self.blocked = True

    def release(self, position: Position) -> Pending | None:
        """Remove and return a held entry, or None if the consumer does not hold it. Unblocks below half the limit."""
        found = self.pending.pop(position, None)
        if found is None:
            return None
        self._reduce_unacked(found[0])
        return Pending(*found)

    def release_all(self, positions: Iterable[Position]) -> tuple[list[tuple[int, int]], int, list[Position]]:
        """Remove the held ones of these entries.

        Return the messages and slot of each, their messages together, and the entries that it did not hold.
        """
        released: list[tuple[int, int]] = []
        others: list[Position] = []
        pop = self.pending.pop
        for position in positions:
            found = pop(position, None)
            if found is None:
                others.append(position)
            else:
                released.append(found)
        together = sum([messages for messages, _ in released])
        self._reduce_unacked(together)
        return released, together, others

    def shrink(self, position: Position, remaining: int) -> int:
        """Note that `remaining` messages of a batch are unacknowledged. Return by how much that lowers the count."""
        assert remaining > 0, "an entry without a remaining message is released"
        messages, slot = self.pending.get(position, (0, 0))
        if remaining >= messages:
            return 0
        self.pending[position] = (remaining, slot)
        self._reduce_unacked(messages - remaining)
        return messages - remaining

    def _reduce_unacked(self, messages: int) -> None:
        self.unacked -= messages
        assert self.unacked >= 0, "a consumer returns no more messages than it holds"
        if self.blocked and self.unacked < self.unacked_max / 2:
            self.blocked = False

    def wait_writable(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when the client reads again, if only its full socket holds this consumer back."""
        if self.permits > 0 and not self.blocked and not self.link.writable:
            self.link.on_writable(wake)
