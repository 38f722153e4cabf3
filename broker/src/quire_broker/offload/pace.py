"""How a limit of bytes a second reaches those who move them."""

from collections.abc import Awaitable, Callable

Pace = Callable[[int], Awaitable[None]]
"""Awaited with the number of bytes just read, before they go on: where a rate limit waits."""
