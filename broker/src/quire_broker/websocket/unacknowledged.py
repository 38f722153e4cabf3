"""Messages of one consumer that its client has not acknowledged, and entries that are delivered again later. Pure.

    delivered             the client holds the message; a consumer that pushes holds `unacked_max` at most
    acknowledged          the client holds it no longer. The entry of a batch is acknowledged when all its messages are
    not acknowledged      the entry is delivered again after `nack_delay_s`
    no answer             the same, after `ack_timeout_s`; 0: never

Times are seconds of any clock that only advances. At most `WEBSOCKET_UNACKED_MAX` messages are tracked: beyond that
the oldest ones are forgotten, which the broker still has as unacknowledged.
"""

from collections import OrderedDict
from collections.abc import Collection

from quire_broker.limits import WEBSOCKET_UNACKED_MAX
from quire_broker.managed_ledger.cursors.ack_set import full_mask
from quire_broker.websocket.message_ids import MessageId

Entry = tuple[int, int]


class Unacknowledged:
    """Owns the messages of one consumer, and their times."""

    def __init__(self, ack_timeout_s: float, nack_delay_s: float, tracked_max: int = WEBSOCKET_UNACKED_MAX) -> None:
        self._ack_timeout_s = ack_timeout_s
        self._nack_delay_s = nack_delay_s
        self._tracked_max = tracked_max
        self._delivered: OrderedDict[MessageId, float] = OrderedDict()
        """When they were delivered last."""
        self._again: OrderedDict[Entry, float] = OrderedDict()
        """When entries are delivered again."""
        self._left: OrderedDict[Entry, int] = OrderedDict()
        """The messages of batches that are not acknowledged, as masks."""

    @property
    def held(self) -> int:
        """The number of messages that the client holds."""
        return len(self._delivered)

    def received(self, entry: Entry, mask: int) -> None:
        """Note that the broker delivers a batch, with the mask of its unacknowledged messages."""
        self._left[entry] = mask
        self._left.move_to_end(entry)
        if len(self._left) > self._tracked_max:
            self._left.popitem(last=False)

    def delivered(self, message: MessageId, now_s: float) -> None:
        """Note that the client gets a message, perhaps again."""
        self._delivered[message] = now_s
        self._delivered.move_to_end(message)
        if len(self._delivered) > self._tracked_max:
            self._delivered.popitem(last=False)

    def acknowledged(self, message: MessageId) -> int:
        """Return the mask of the messages of its batch that are not acknowledged; 0: the whole entry is."""
        self._delivered.pop(message, None)
        if message.batch_index < 0:
            return 0
        others = ~(1 << message.batch_index)
        left = self._left.get(message.entry)
        if left is None:  # of a batch that was delivered to an earlier session
            return full_mask(message.batch_size) & others
        left &= others
        if left:
            self._left[message.entry] = left
        else:
            del self._left[message.entry]
        return left

    def refused(self, message: MessageId, now_s: float) -> None:
        """Note that the client does not acknowledge a message: its entry is delivered again later."""
        self._delivered.pop(message, None)
        self._again.setdefault(message.entry, now_s + self._nack_delay_s)
        if len(self._again) > self._tracked_max:
            oldest, _ = self._again.popitem(last=False)
            self._again[oldest] = now_s
            self._again.move_to_end(oldest, last=False)

    def next_s(self) -> float | None:
        """Return the time of the next redelivery; None if there is none."""
        times = [next(iter(self._again.values()))] if self._again else []
        if self._ack_timeout_s and self._delivered:
            times.append(next(iter(self._delivered.values())) + self._ack_timeout_s)
        return min(times, default=None)

    def due(self, now_s: float) -> list[Entry]:
        """Return the entries that are delivered again now, and forget their messages."""
        found: dict[Entry, None] = {}
        while self._again and next(iter(self._again.values())) <= now_s:
            found[self._again.popitem(last=False)[0]] = None
        if self._ack_timeout_s:
            while self._delivered and next(iter(self._delivered.values())) + self._ack_timeout_s <= now_s:
                found[self._delivered.popitem(last=False)[0].entry] = None
        return list(found)

    def forget(self, ledgers: Collection[int]) -> None:
        """Forget the messages of these ledgers: the broker delivers them again."""
        for kept in (self._again, self._left):
            for entry in [one for one in kept if one[0] in ledgers]:
                del kept[entry]
        for message in [one for one in self._delivered if one.ledger_id in ledgers]:
            del self._delivered[message]
