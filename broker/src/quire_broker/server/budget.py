"""The memory that unanswered publishes may take, of all connections together.

A connection takes bytes when SENDs arrive and gives them back when they are answered. Above the bound the ones that
publish stop reading; below half of it all read again.
"""

from collections.abc import Callable


class PublishBudget:
    """Counts bytes; calls back those that wait for room."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: list[Callable[[], None]] = []
        self.used_bytes = 0
        self.pauses = 0

    @property
    def exhausted(self) -> bool:
        """Whether whoever publishes should stop reading."""
        return self.used_bytes >= self._bytes_max

    def take(self, size_bytes: int) -> None:
        """Bytes arrived. Never refuses: they are in memory already."""
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Bytes were answered."""
        self.used_bytes -= size_bytes
        if self._waiting and self.used_bytes <= self._bytes_max // 2:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` once there is room."""
        self.pauses += 1
        self._waiting.append(resume)
