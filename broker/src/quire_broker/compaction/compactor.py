"""Compacts one topic once: reads its entries twice, and writes those that are kept to a new compacted ledger.

    phase one   which message of each key is the latest: `LatestMessages`
    phase two   the same entries again, in the same order: their live messages go to the new ledger
    record      the ledger is closed, then one transaction puts it into use

Both phases read the former compacted ledger, then the topic's own ledgers from its horizon on, up to the last entry of
the beginning, which becomes the new horizon. After an error or a cancellation the new ledger is deleted. Never works
longer than about a millisecond at a time on the event loop: a large batch is unpacked in a thread.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from quire_bookie.dataclass import dataclass
from quire_bookie.env.side_thread import SideThread
from quire_bookie.model import Buffer
from quire_broker.compaction.compacted_entry import encode
from quire_broker.compaction.compacted_output import READ_BYTES, READ_ENTRIES, CompactedOutput, custom_of
from quire_broker.compaction.compacted_reader import CompactedReader
from quire_broker.compaction.latest_messages import LatestMessages, summary_of, weight
from quire_broker.errors import CompactionError
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.names import TopicName
from quire_broker.settings.compaction import CompactionSettings
from quire_broker.wire.entry import EntrySummary

STEP_US = 1_000
"""Work on the event loop until other tasks get a turn."""
THREAD_US = 3_000
"""An entry that takes longer is processed in the thread."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished compaction. `read` and `kept`: numbers of entries; `removed`: of messages.

    `read_bytes`: of both phases; `kept_bytes`: of the compacted ledger.
    """

    horizon: Position
    ledger_id: int
    read: int
    kept: int
    keys: int
    removed: int
    read_bytes: int
    kept_bytes: int


class Compactor:
    """Runs one compaction of a topic. `former`: reads its present compacted ledger."""

    def __init__(
        self,
        topic: TopicName,
        ledger: ManagedLedger,
        former: CompactedReader | None,
        settings: CompactionSettings,
        thread: SideThread,
    ) -> None:
        self._topic = topic
        self._ledger = ledger
        self._former = former
        self._settings = settings
        self._thread = thread
        self._spent_us = 0
        self._read_bytes = 0

    async def run(self) -> Outcome | None:
        """Compact up to the present end. None if nothing was added since the last time.

        CompactionError, PeerProtocolError; errors of client and store.
        """
        horizon = self._ledger.last_confirmed
        if horizon.entry_id < 0 or (self._former is not None and horizon <= self._former.of.horizon):
            return None
        compacted = self._ledger.compacted
        await compacted.hold()
        try:
            latest = await self._find_latest(horizon)
            return await self._write(latest, horizon)
        finally:
            compacted.release()

    async def _find_latest(self, horizon: Position) -> LatestMessages:
        settings = self._settings
        latest = LatestMessages(keyless=settings.retain_null_key, bytes_max=settings.keys_bytes_max)
        async with aclosing(self._entries(horizon)) as entries:
            async for entry in entries:
                await self._in_turn(entry, latest.note)
        return latest

    async def _write(self, latest: LatestMessages, horizon: Position) -> Outcome:
        writer = await self._ledger.compacted.create(custom_of(self._topic, horizon))
        recorded = False
        try:
            output = CompactedOutput(writer)
            async with aclosing(self._entries(horizon)) as entries:
                async for entry in entries:
                    kept = await self._in_turn(entry, latest.kept)
                    if kept is not None:
                        parts = encode(entry.position, self._topic.partition, kept.data, kept.live)
                        await output.add(parts, entry.position)
            await output.finish()
            await self._ledger.compacted.record(writer.ledger_id, horizon)
            recorded = True
        finally:
            if not recorded:
                self._ledger.compacted.discard(writer)
        return Outcome(
            horizon,
            writer.ledger_id,
            latest.entries,
            output.entries,
            latest.keys,
            latest.removed,
            self._read_bytes,
            output.size_bytes,
        )

    async def _in_turn(self, entry: StoredEntry, work: Callable[[Position, Buffer, EntrySummary | None], T]) -> T:
        """Process one entry: here if that is short, after a pause if much was done since the last one."""
        self._read_bytes += len(entry.data)
        summary = summary_of(entry.data)
        cost_us = weight(entry.data, summary)
        if cost_us > THREAD_US:
            return await self._thread.run(lambda: work(entry.position, entry.data, summary))
        self._spent_us += cost_us
        if self._spent_us > STEP_US:
            self._spent_us = 0
            await asyncio.sleep(0)
        return work(entry.position, entry.data, summary)

    async def _entries(self, horizon: Position) -> AsyncGenerator[StoredEntry, None]:
        """Yield what compacts to the new ledger, in the order of positions."""
        position = self._ledger.first_position()
        if self._former is not None:
            at: Position | None = Position(-1, -1)
            while at is not None:
                found = await self._former.read(at, READ_ENTRIES, READ_BYTES)
                for entry in found:
                    yield entry
                at = found[-1].position.following if found else None
            position = self._former.of.horizon.following
        while position <= horizon:
            found = await self._ledger.read(position, READ_ENTRIES, READ_BYTES)
            if not found:
                raise CompactionError(f"{self._topic} has no entry from {position} to {horizon}: compact it again")
            for entry in found:
                if entry.position > horizon:
                    return
                yield entry
            position = found[-1].position.following
