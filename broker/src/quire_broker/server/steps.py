"""Measures the steps of a move, for its line in the log. Decides nothing."""

import asyncio


class Steps:
    """How long each step took; as text `prepared 31, closed 9 ms`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()
        self._found: list[str] = []

    def done(self, step: str) -> None:
        """Note the end of a step, which began with the end of the one before."""
        now_s = self._loop.time()
        self._found.append(f"{step} {(now_s - self._last_s) * 1000:.0f}")
        self._last_s = now_s

    def __str__(self) -> str:
        return f"{', '.join(self._found)} ms"
