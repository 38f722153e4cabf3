"""Broken variants: rules of the buckets of delayed messages, each removed."""

from typing import Any

from quire_broker.dispatch.delayed import DelayedQueue
from quire_broker.dispatch.delayed_index import DelayedIndex
from quire_broker.managed_ledger.cursors.bucket_format import BucketRecord
from quire_broker.managed_ledger.cursors.buckets import Bucket, Buckets, Chunk
from tests.sim.broken.variant import Variant, replaced


def _heads_alone() -> tuple[Any, ...]:
    whole = Buckets.load

    async def broken(self: Buckets, record: BucketRecord, slots: str) -> tuple[Bucket, list[Chunk]]:
        bucket, chunks = await whole(self, record, slots)
        bucket.head.pages.clear()
        return bucket, chunks

    return (replaced(Buckets, "load", broken),)


def _forgotten_before_they_are_saved() -> tuple[Any, ...]:
    whole = DelayedIndex._save

    async def broken(self: DelayedIndex, queue: DelayedQueue) -> None:
        try:
            await whole(self, queue)
        finally:
            if queue in self._queues:
                self._queues.remove(queue)

    return (replaced(DelayedIndex, "_save", broken),)


DELAYED_RULES = (
    Variant("a new owner knows which messages are in buckets, and never reads their times", "delayed", 0, _heads_alone),
    Variant(
        "delayed messages are forgotten although their bucket could not be saved",
        "delayed",
        0,
        _forgotten_before_they_are_saved,
    ),
)
