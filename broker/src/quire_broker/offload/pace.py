"""The port through which a limit of bytes per second delays readers."""

from collections.abc import Awaitable, Callable

Pace = Callable[[int], Awaitable[None]]
"""Awaited with the number of bytes just read, before reading continues: a rate limit waits here."""
