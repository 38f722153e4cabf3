"""Retries operations while the metadata store is unavailable: for a time, or for as long as the process lives."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar

from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import MetadataError, MetadataUnavailableError
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata.store import MetadataStore, Watch

T = TypeVar("T")
Say: TypeAlias = Callable[..., None]
"""Log method of a logger."""


async def with_retries(step: Callable[[], Awaitable[T]], what: str, say: Say) -> T:
    """Return the result of `step`; while it raises MetadataError, log "cannot <what>" and retry with back-off."""
    backoff = Backoff(METADATA_RETRY_BACKOFF_S)
    while True:
        try:
            return await step()
        except MetadataError as error:
            say("cannot %s, will try again: %s", what, error)
            await backoff.wait()


async def watch_with_retries(store: MetadataStore, prefix: str, say: Say) -> Watch:
    """Return a watch as soon as the store is available. The caller closes it."""
    return await with_retries(partial(store.watch, prefix), f"follow {prefix} now", say)


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
