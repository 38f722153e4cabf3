"""Owns the queues of adds that a full bookie cannot accept now: delays them briefly, then refuses.

Normal adds wait with their sockets paused, each for at most `pause_s`; then they are refused. While a bookie accepts
adds as fast as its disk flushes them, adds wait and none is refused: a stock client treats a refusal as a failed bookie
and changes the ensemble. Only if no add fitted for `pause_s` are later ones refused at once, until one fits again.
Recovery and high-priority adds wait without limit, within their own budget: refusing them would prevent the recovery
of ledgers, which moves load to other bookies.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.limits import WAITING_REQUEST_BYTES
from quire_bookie.server.requests.connections import PAUSED_BY_ADDS, Connection
from quire_bookie.wire.messages import AddRequest

_RETRY_S = 0.01
"""Interval at which waiting adds are retried, and refused if they waited too long.

Answers and released halves of the write cache retry them, too."""

_Waiting: TypeAlias = tuple[Connection, AddRequest, float]
"""The last element is the loop time at which the wait began."""


class Overload:
    """Queues adds of a full bookie.

    `attempt` accepts an add, or returns False and changes nothing; `refuse` answers ETOOMANYREQUESTS.
    """

    def __init__(
        self,
        attempt: Callable[[Connection, AddRequest], bool],
        refuse: Callable[[Connection, AddRequest], None],
        pause_s: float,
        memory: ConnectionMemory,
    ) -> None:
        self._memory = memory
        self._attempt = attempt
        self._refuse = refuse
        self._pause_s = pause_s
        self._normal: deque[_Waiting] = deque()
        self._priority: deque[_Waiting] = deque()
        self._held: dict[Connection, int] = {}
        """The number of waiting runs per connection."""
        self._fitted_s = 0.0
        """When a normal add was last accepted, or the first one began to wait."""
        self._refusing = False
        self.holds_back = False
        """A normal add waits, or the last one was refused: new adds must go through `offer`."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of waiting runs."""
        return len(self._normal) + len(self._priority)

    def offer(self, connection: Connection, request: AddRequest) -> bool:
        """Accept an add now, queue it, or refuse it. Return whether it was queued."""
        priority = request.recovery or request.high_priority
        queue = self._priority if priority else self._normal
        if not queue and self._attempt(connection, request):
            self._refusing = self._refusing and priority
            self.holds_back = bool(self._normal) or self._refusing
            return False
        if self._refusing and not priority:
            self._refuse(connection, request)
            return False
        loop = asyncio.get_running_loop()
        if not queue and not priority:
            self._fitted_s = loop.time()
        queue.append((connection, request, loop.time()))
        self._memory.hold(request.run.size_bytes + WAITING_REQUEST_BYTES)
        self.holds_back = bool(self._normal) or self._refusing
        self._held[connection] = self._held.get(connection, 0) + 1
        connection.pause(PAUSED_BY_ADDS)
        if self._timer is None:
            self._timer = loop.call_later(_RETRY_S, self._tick)
        return True

    def retry(self) -> None:
        """Accept the waiting adds that now fit, the oldest first."""
        if not self._normal and not self._priority:
            return
        for queue in (self._priority, self._normal):
            while queue and self._attempt(*queue[0][:2]):
                connection, request, since_s = queue.popleft()
                self._let_go(connection, request)
                now_s = asyncio.get_running_loop().time()
                request.waited_s = now_s - since_s
                if queue is self._normal:
                    self._fitted_s = now_s
                    self._refusing = False
        self.holds_back = bool(self._normal) or self._refusing

    def close(self) -> None:
        """Refuse all waiting adds."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in (self._normal, self._priority):
            while queue:
                self._refuse_first(queue)

    def _tick(self) -> None:
        self._timer = None
        self.retry()
        loop = asyncio.get_running_loop()
        began_s = loop.time() - self._pause_s
        if self._normal and self._fitted_s <= began_s:
            self._refusing = True
        while self._normal and (self._refusing or self._normal[0][2] <= began_s):
            self._refuse_first(self._normal)
        self.holds_back = bool(self._normal) or self._refusing
        if self.waiting:
            self._timer = loop.call_later(_RETRY_S, self._tick)

    def _refuse_first(self, queue: "deque[_Waiting]") -> None:
        connection, request, _ = queue.popleft()
        self._refuse(connection, request)
        self._let_go(connection, request)

    def _let_go(self, connection: Connection, request: AddRequest) -> None:
        """Count a run out; resume the socket if it was the last one of its connection."""
        self._memory.let_go(request.run.size_bytes + WAITING_REQUEST_BYTES)
        left = self._held[connection] - 1
        assert left >= 0, "each run is counted out once"
        if left:
            self._held[connection] = left
        else:
            del self._held[connection]
            connection.resume(PAUSED_BY_ADDS)
