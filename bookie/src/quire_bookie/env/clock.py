"""The wall clock port, for timestamps that users see. Durations use the event loop's own time."""

import time
from typing import Protocol


class WallClock(Protocol):
    """Provides milliseconds since the epoch."""

    def now_ms(self) -> int:
        """Return the present time; may jump when the machine's clock is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
