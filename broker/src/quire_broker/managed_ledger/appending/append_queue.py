"""Appends of one managed ledger, in order: those submitted to a ledger, and behind them those that wait.

    put -> waiting -> (take, sent) -> in flight -> (take_confirmed, answer)

Performs no I/O. Answers every append once, with its position or an error. Out of order only `fail_oversized`.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import QuireError
from quire_bookie.model import new_tuple
from quire_broker.managed_ledger.ledger_port import Payload
from quire_broker.managed_ledger.position import Position
from quire_broker.managed_ledger.reading.entry_cache import sizes

_log = logging.getLogger("quire.managed_ledger")

AppendDone: TypeAlias = Callable[[Position | None, QuireError | None], None]
"""Called once for each append, in order, with its position or its error."""


@dataclass(slots=True)
class AppendStats:
    """Counters since the broker started."""

    confirmed: int = 0
    failed: int = 0
    switches: int = 0
    resubmitted: int = 0


class AppendTimes(NamedTuple):
    """When the appends of a batch went on, in loop time."""

    held_s: float = 0.0
    """How long a limit held the first of them back before."""
    queued_s: float = 0.0
    submitted_s: float = 0.0

    @property
    def began_s(self) -> float:
        """When the first of them arrived."""
        return self.queued_s - self.held_s


class AppendBatch:
    """The entries of one submit with their callbacks, as parallel lists, and the id of the first entry."""

    __slots__ = ("dones", "entries", "first", "size_bytes", "times")

    def __init__(
        self,
        first: int,
        entries: list[Payload],
        dones: list[AppendDone],
        size_bytes: int,
        times: AppendTimes = AppendTimes(),  # noqa: B008  immutable
    ) -> None:
        assert len(entries) == len(dones) > 0
        self.times = times
        self.first = first
        self.entries = entries
        self.dones = dones
        self.size_bytes = size_bytes

    @property
    def last(self) -> int:
        """The id of the last entry."""
        return self.first + len(self.dones) - 1

    def split(self, count: int) -> "AppendBatch":
        """Remove the first `count` entries and return them as a separate batch."""
        entries = self.entries[:count]
        assert 0 < count < len(self.dones)
        head = AppendBatch(self.first, entries, self.dones[:count], sizes(entries), self.times)
        self.first += count
        self.entries = self.entries[count:]
        self.dones = self.dones[count:]
        self.size_bytes -= head.size_bytes
        return head


class AppendQueue:
    """Holds appends until they are confirmed or have failed, and answers them."""

    def __init__(self) -> None:
        self.stats = AppendStats()
        self.waiting: list[Payload] = []
        """Entries that no ledger has yet, with their callbacks in `waiting_dones`."""
        self.waiting_dones: list[AppendDone] = []
        self.in_flight: deque[AppendBatch] = deque()
        self.since_s = 0.0
        """When the first of the waiting appends was queued; its owner sets it."""
        self.held_s = 0.0
        """How long a limit held back an append that waits; its owner sets it."""

    def take(self, count: int) -> tuple[list[Payload], list[AppendDone]]:
        """Remove the first `count` waiting appends and return them."""
        entries, dones = self.waiting, self.waiting_dones
        assert len(entries) == len(dones), "each append that waits has its callback"
        if count < len(entries):
            self.waiting, self.waiting_dones = entries[count:], dones[count:]
            return entries[:count], dones[:count]
        self.waiting, self.waiting_dones = [], []
        return entries, dones

    def put_back(self, entries: list[Payload], dones: list[AppendDone]) -> None:
        """Let appends wait again, before all others."""
        assert len(entries) == len(dones)
        self.waiting[:0], self.waiting_dones[:0] = entries, dones

    def sent(self, batch: AppendBatch) -> None:
        """Note that a ledger accepted the batch."""
        assert not self.in_flight or batch.first == self.in_flight[-1].last + 1, "entry ids of a ledger have no gaps"
        self.in_flight.append(batch)
        self.held_s = 0.0

    def take_confirmed(self, up_to: int) -> list[AppendBatch]:
        """Remove the appends up to this entry id from those in flight and return them."""
        in_flight, found = self.in_flight, []
        while in_flight:
            batch = in_flight[0]
            if batch.last <= up_to:
                found.append(in_flight.popleft())
            elif batch.first <= up_to:
                found.append(batch.split(up_to - batch.first + 1))
            else:
                break
        assert not found or found[-1].last <= up_to, "no append is answered before it is confirmed"
        return found

    def answer(self, ledger_id: int, batch: AppendBatch) -> None:
        """Call the callbacks of a confirmed batch with their positions."""
        for entry_id, done in enumerate(batch.dones, batch.first):
            try:
                done(new_tuple(Position, (ledger_id, entry_id)), None)
            except Exception:  # noqa: BLE001  an error in one callback must not stop the confirmation of later appends
                _log.exception("an append's callback failed")

    @property
    def pending(self) -> int:
        """The number of appends in flight and waiting."""
        return sum(len(batch.dones) for batch in self.in_flight) + len(self.waiting)

    @property
    def oldest_s(self) -> float:
        """When the oldest pending append began."""
        return self.in_flight[0].times.began_s if self.in_flight else self.since_s - self.held_s

    def requeue(self) -> bool:
        """Let everything in flight wait again, in order. Return whether there was anything."""
        behind = list(self.in_flight)
        if behind:
            self.held_s, self.since_s, _ = behind[0].times
        self.in_flight.clear()
        self.stats.resubmitted += sum(len(batch.dones) for batch in behind)
        entries = [entry for batch in behind for entry in batch.entries]
        self.put_back(entries, [done for batch in behind for done in batch.dones])
        return bool(behind)

    def fail_oversized(self, bytes_max: int, error: QuireError) -> bool:
        """Fail waiting appends larger than any ledger accepts, out of order. Return whether there were any."""
        pairs = list(zip(self.waiting, self.waiting_dones, strict=True))
        fitting = [pair for pair in pairs if sizes([pair[0]]) <= bytes_max]
        self.waiting, self.waiting_dones = [pair[0] for pair in fitting], [pair[1] for pair in fitting]
        for entry, done in pairs:
            if sizes([entry]) > bytes_max:
                self.stats.failed += 1
                done(None, error)
        return len(fitting) < len(pairs)

    def fail(self, error: QuireError) -> None:
        """Fail all appends, in flight and waiting."""
        dones = [done for batch in self.in_flight for done in batch.dones] + self.waiting_dones
        self.in_flight.clear()
        self.waiting, self.waiting_dones = [], []
        self.stats.failed += len(dones)
        for done in dones:
            try:
                done(None, error)
            except Exception:  # noqa: BLE001  as in `answer`
                _log.exception("an append's callback failed")
