"""Repeats actions while the metadata store is unavailable. Independent of the action."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import MetadataUnavailableError

T = TypeVar("T")


async def retry_unavailable(action: Callable[[], Awaitable[T]], backoff: Backoff, timeout_s: float) -> T:
    """Return the result of `action`.

    Retry for `timeout_s` while the metadata store is unavailable, then raise its error.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return await action()
        except MetadataUnavailableError:
            pause_s = backoff.grow()
            if loop.time() + pause_s > deadline:
                raise
            await asyncio.sleep(pause_s)
