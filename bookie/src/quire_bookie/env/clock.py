"""The wall clock port. Durations use the event loop's own time; this is for timestamps that people see."""

import time
from typing import Protocol


class WallClock(Protocol):
    """Milliseconds since the epoch."""

    def now_ms(self) -> int:
        """The present; may jump when the machine's clock is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
