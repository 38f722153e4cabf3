"""The rate at which one consumer may subscribe to a topic again: each time the broker may read a backlog again."""

import asyncio

from quire_broker.errors import NotAllowedError
from quire_broker.limits import SUBSCRIBERS_COUNTED_MAX
from quire_broker.policies.rates import SubscribeRate


class SubscribeLimit:
    """Counts how often each consumer of one topic subscribed in the present period. It keeps no timer."""

    __slots__ = ("_counts", "_until_s", "rate")

    def __init__(self) -> None:
        self.rate = SubscribeRate()
        self._counts: dict[tuple[str, str, int], int] = {}
        """By address, name and id of the consumer. The first one is counted longest."""
        self._until_s = float("-inf")
        """Loop time at which the period ends."""

    def use(self, rate: SubscribeRate) -> None:
        """Apply another rate, from a new period on."""
        if rate != self.rate:
            self.rate = rate
            self._counts.clear()
            self._until_s = float("-inf")

    def admit(self, address: str, name: str, consumer_id: int) -> None:
        """Count one more subscribe of a consumer. NotAllowedError if it has used up those of this period."""
        if not self.rate.times:
            return
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._until_s:
            self._counts.clear()
            self._until_s = now_s + self.rate.period_s
        consumer = (address, name, consumer_id)
        count = self._counts.get(consumer, 0)
        if count >= self.rate.times:
            raise NotAllowedError(
                f"consumer '{name}' subscribed {count} times within {self.rate.period_s} s; the subscribe rate permits "
                "no more: subscribe later"
            )
        if not count and len(self._counts) >= SUBSCRIBERS_COUNTED_MAX:
            del self._counts[next(iter(self._counts))]
        self._counts[consumer] = count + 1
