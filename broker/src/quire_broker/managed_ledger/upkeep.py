"""Calls each managed ledger when its periodic work is due, so that an idle one costs nothing.

    awake     called at each interval, until it returns a later time
    resting   called at that time, or at the next interval after `wake`

`wake` is called when an event may give it work: an entry was stored, its list or its state changed, bookies came or
went. In one step of the event loop only a few managed ledgers are called; then other work gets its turn.
"""

import asyncio
import heapq
import itertools
import math
import weakref
from collections import deque
from collections.abc import Callable

from quire_broker.managed_ledger.managed_ledger import ManagedLedger

PER_STEP = 100
"""Managed ledgers called in one step of the event loop: about a millisecond."""


class Upkeep:
    """Schedules the periodic work of the managed ledgers of one factory. Needs a running event loop."""

    def __init__(self, tend: Callable[[ManagedLedger], float | None], interval_s: float) -> None:
        """`tend`: does the work and returns when it is due again, in loop time; None: never again."""
        self._tend = tend
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._awake: dict[ManagedLedger, None] = {}  # in the order in which they woke: simulations repeat it
        self._due: dict[ManagedLedger, float] = {}
        self._heap: list[tuple[float, int, weakref.ref[ManagedLedger]]] = []
        """Times of resting ledgers. One that differs from `_due` is outdated, and keeps nothing in memory."""
        self._numbers = itertools.count()
        self._left: deque[ManagedLedger] = deque()
        """Those that the present round has not called yet."""

    @property
    def awake(self) -> int:
        """The number of managed ledgers that are called at each interval."""
        return len(self._awake)

    def add(self, ledger: ManagedLedger) -> None:
        """Call it from the next interval on."""
        self._due[ledger] = -math.inf
        self._awake[ledger] = None

    def wake(self, ledger: ManagedLedger) -> None:
        """Call it at the next interval. An unknown one is ignored."""
        if ledger in self._due:
            self.add(ledger)

    def round(self, *, everyone: bool = False) -> None:
        """Call those that are due, or all. Does nothing while the last round runs, except to add to it."""
        now_s = self._loop.time()
        while self._heap and self._heap[0][0] <= now_s:
            due_s, _, found = heapq.heappop(self._heap)
            ledger = found()
            if ledger is not None and self._due.get(ledger) == due_s:
                self._awake[ledger] = None
        if everyone:
            self._awake.update(dict.fromkeys(self._due))
        if not self._left:
            self._left.extend(self._awake)
            self._step()

    def _step(self) -> None:
        for _ in range(min(PER_STEP, len(self._left))):
            ledger = self._left.popleft()
            if ledger not in self._awake:
                continue
            due_s = self._tend(ledger)
            if due_s is None:
                self._awake.pop(ledger, None)
                self._due.pop(ledger, None)
            elif due_s > self._loop.time() + self._interval_s:
                self._awake.pop(ledger, None)
                self._due[ledger] = due_s
                if due_s != math.inf:
                    heapq.heappush(self._heap, (due_s, next(self._numbers), weakref.ref(ledger)))
        if len(self._heap) > 2 * len(self._due) + PER_STEP:
            self._drop_outdated()
        if self._left:
            self._loop.call_soon(self._step)

    def _drop_outdated(self) -> None:
        self._heap = [
            entry for entry in self._heap if (ledger := entry[2]()) is not None and self._due.get(ledger) == entry[0]
        ]
        heapq.heapify(self._heap)
