"""Watches that are begun with the store away. Nothing else."""

import asyncio
import logging

from quire_bookie.errors import MetadataError
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata.store import MetadataStore, Watch

_log = logging.getLogger("quire.recovery")


async def patient_watch(store: MetadataStore, prefix: str) -> Watch:
    """A watch, as soon as the store can be reached. The caller closes it."""
    delay_s, high_s = METADATA_RETRY_BACKOFF_S
    while True:
        try:
            return await store.watch(prefix)
        except MetadataError as error:
            _log.warning("cannot follow %s now, will try again: %s", prefix, error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, high_s)
