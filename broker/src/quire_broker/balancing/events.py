"""Keeps the last decisions of load balancing that concern this broker, for the admin API, and counts them by kind."""

import logging
from collections import Counter, deque
from enum import Enum

from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock

EVENTS_MAX = 200
_log = logging.getLogger("quire.broker.balancing")


class EventKind(Enum):
    """What happened."""

    LEADER = "leader"
    ASSIGNED = "assigned"
    MOVED = "moved"
    GIVEN_UP = "given up"
    SPLIT = "split"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class BalancingEvent:
    """One decision, with its reason."""

    at_ms: int
    kind: EventKind
    text: str


class BalancingEvents:
    """The last events, and how many there were of each kind."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self.last: deque[BalancingEvent] = deque(maxlen=EVENTS_MAX)
        self.counts: Counter[EventKind] = Counter()

    def add(self, kind: EventKind, text: str) -> None:
        """Record an event and log it; assignments are many, so they are logged only in detail."""
        self.counts[kind] += 1
        self.last.append(BalancingEvent(self._clock.now_ms(), kind, text))
        _log.log(logging.DEBUG if kind is EventKind.ASSIGNED else logging.INFO, "%s: %s", kind.value, text)
