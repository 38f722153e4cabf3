"""Writes the entries of a compacted ledger, and names what it is made for in its metadata. Decides nothing.

A compaction of the broker and the job `compact` write the same ledgers with it.
"""

import asyncio
from collections.abc import Mapping

from quire_bookie.errors import LedgerError
from quire_bookie.limits import MIB
from quire_bookie.model import Buffer, EntryId
from quire_broker.compaction.compacted_entry import encoded_id
from quire_broker.errors import CompactionError
from quire_broker.managed_ledger.ledger_port import Writer
from quire_broker.managed_ledger.position import Position
from quire_broker.names import TopicName
from quire_broker.wire.proto.pulsar_pb2 import MessageIdData

READ_ENTRIES = 100
READ_BYTES = MIB
_TOPIC_KEY = "pulsar/compactedTopic"
_HORIZON_KEY = "pulsar/compactedTo"


def custom_of(topic: TopicName, horizon: Position) -> dict[str, bytes]:
    """Return the custom metadata of a compacted ledger, with the keys of Pulsar."""
    return {_TOPIC_KEY: str(topic).encode(), _HORIZON_KEY: encoded_id(horizon, topic.partition)}


def horizon_of(custom: Mapping[str, bytes], topic: TopicName) -> Position | None:
    """Return the horizon in the custom metadata of a compacted ledger; None if they name none, or another topic."""
    if _HORIZON_KEY not in custom or custom.get(_TOPIC_KEY) != str(topic).encode():
        return None
    found = MessageIdData.FromString(custom[_HORIZON_KEY])
    return Position(found.ledgerId, found.entryId)


class CompactedOutput:
    """Writes the kept entries, a run at a time: the next run is sent while the last one is confirmed."""

    def __init__(self, writer: Writer) -> None:
        """`writer`: of a new ledger."""
        self.entries = self.size_bytes = 0
        self._writer = writer
        self._run: list[tuple[Buffer, ...]] = []
        self._run_bytes = 0
        self._confirmed = -1
        self._failure: LedgerError | None = None
        self._progress = asyncio.Event()
        writer.listener = self

    async def add(self, parts: tuple[Buffer, ...], position: Position) -> None:
        """Add one entry. CompactionError if it does not fit into a ledger; the error of a failed writer."""
        size = sum(map(len, parts))
        if size > self._writer.payload_bytes_max:
            raise CompactionError(
                f"entry {position} has {size} bytes in a compacted ledger, the limit is "
                f"{self._writer.payload_bytes_max}: raise nettyMaxFrameSizeBytes of bookies and brokers"
            )
        self._run.append(parts)
        self._run_bytes += size
        self.size_bytes += size
        self.entries += 1
        if len(self._run) >= READ_ENTRIES or self._run_bytes >= READ_BYTES:
            await self._send()

    async def _send(self) -> None:
        run, self._run, self._run_bytes = self._run, [], 0
        before = self.entries - len(run) - 1
        if run:
            self._writer.submit(run)
        await self._until(before)

    async def _until(self, entry_id: int) -> None:
        """Wait until an entry is confirmed. Raises the error of a failed writer."""
        while self._confirmed < entry_id and self._failure is None:
            self._progress.clear()
            await self._progress.wait()
        if self._failure is not None:
            raise self._failure

    async def finish(self) -> None:
        """Wait until all entries are confirmed, and close the ledger."""
        await self._send()
        await self._until(self.entries - 1)
        await self._writer.close()

    def on_confirmed(self, up_to: EntryId) -> None:
        """Handle an event of the writer; not for callers."""
        self._confirmed = up_to
        self._progress.set()

    def on_failed(self, error: LedgerError) -> None:
        """Handle an event of the writer; not for callers."""
        self._failure = error
        self._progress.set()
