"""Bounds the memory of unanswered publishes of all connections together.

A connection takes bytes when SENDs arrive and gives them back when they are answered. Above the limit, publishing
connections stop reading; below half of it all of them resume.
"""

from collections.abc import Callable


class PublishBudget:
    """Counts bytes and calls back connections that wait for budget."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: list[Callable[[], None]] = []
        self.used_bytes = 0
        self.pauses = 0

    @property
    def exhausted(self) -> bool:
        """Whether publishing connections should stop reading."""
        return self.used_bytes >= self._bytes_max

    def take(self, size_bytes: int) -> None:
        """Count arrived bytes. Never refuses: they are already in memory."""
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Return the bytes of answered publishes."""
        self.used_bytes -= size_bytes
        if self._waiting and self.used_bytes <= self._bytes_max // 2:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` once budget is available."""
        self.pauses += 1
        self._waiting.append(resume)
