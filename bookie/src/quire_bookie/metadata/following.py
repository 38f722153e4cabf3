"""What follows the store for as long as a process lives, and so outlasts the store's absences. Nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar

from quire_bookie.errors import MetadataError
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata.store import MetadataStore, Watch

T = TypeVar("T")
Say: TypeAlias = Callable[..., None]
"""A logger's method."""


async def with_retries(step: Callable[[], Awaitable[T]], what: str, say: Say) -> T:
    """The result of `step`, tried again with growing pauses while it raises MetadataError: "cannot <what>" is said."""
    delay_s, high_s = METADATA_RETRY_BACKOFF_S
    while True:
        try:
            return await step()
        except MetadataError as error:
            say("cannot %s, will try again: %s", what, error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, high_s)


async def watch_with_retries(store: MetadataStore, prefix: str, say: Say) -> Watch:
    """A watch, as soon as the store can be reached. The caller closes it."""
    return await with_retries(partial(store.watch, prefix), f"follow {prefix} now", say)
