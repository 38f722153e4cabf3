"""The rate at which messages may be published to a topic, or to a broker.

Messages that arrive are always stored: they are in memory already. Then the connection of their producer is not read
until the rate permits more, as in stock brokers; so messages of other topics on that connection wait too. Unused rate
is saved for up to a second.
"""

import asyncio

from quire_bookie.env.rate_limit import RateLimit
from quire_broker.policies.rates import PublishRate

BURST_S = 1.0
PAUSE_S = 0.01
"""Added to each pause: after it several messages pass, not one for each timer."""


class PublishLimit:
    """Counts published messages. `use` changes the rate at any time, also while connections wait."""

    __slots__ = ("_messages", "_size_bytes", "_until_s", "charged", "rate", "times")

    def __init__(self, rate: PublishRate | None = None) -> None:
        self.times = 0
        """How often publishing had to wait."""
        self.charged = (0, 0)
        """Messages and bytes that were counted."""
        self._set(rate or PublishRate())

    def _set(self, rate: PublishRate) -> None:
        self.rate = rate
        self._messages = RateLimit(rate.messages, BURST_S)
        self._size_bytes = RateLimit(rate.size_bytes, BURST_S)
        self._until_s = float("-inf")

    def use(self, rate: PublishRate) -> None:
        """Apply another rate. Connections that wait because of the present one continue within a second."""
        if rate != self.rate:
            self._set(rate)

    @property
    def active(self) -> bool:
        """Whether there is a limit."""
        return self.rate.messages > 0 or self.rate.size_bytes > 0

    @property
    def ready_s(self) -> float:
        """Loop time from which more may be published."""
        return self._until_s

    def charge(self, messages: int, size_bytes: int) -> bool:
        """Count the messages published now. Return whether more may be published at once."""
        self.charged = self.charged[0] + messages, self.charged[1] + size_bytes
        self._messages.reserve(messages)
        self._size_bytes.reserve(size_bytes)
        wait_s = max(self._messages.wait_s(), self._size_bytes.wait_s())
        if wait_s == 0:
            return True
        self._until_s = asyncio.get_running_loop().time() + wait_s + PAUSE_S
        self.times += 1
        return False
