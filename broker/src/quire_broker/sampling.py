"""Computes rates from counters: the growth per second between two samples."""


class Rate:
    """The growth of one counter, per second."""

    __slots__ = ("_at_s", "_value", "per_s")

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._value = 0
        self.per_s = 0.0

    def sample(self, value: int, now_s: float) -> bool:
        """Record the counter. The first sample gives no rate. Return whether the rate is above 0."""
        if self._at_s is not None and now_s > self._at_s:
            self.per_s = (value - self._value) / (now_s - self._at_s)
        self._value, self._at_s = value, now_s
        return self.per_s > 0
