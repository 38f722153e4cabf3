"""Deduplication of a producer's sends by sequence id.

For each producer name it keeps the highest sequence id passed to the ledger and the highest one persisted. A SEND is
compared by its sequence id and recorded by the higher of that and its highest sequence id. Of a chunked message only
the last chunk is checked and recorded. The map is stored as properties of the cursor `pulsar.dedup`, whose mark-delete
position is the end of the entries that it covers; loading replays later entries. Source: spec pulsar-wire section 7,
managed-ledger section 6.7.

It must never forget a persisted id of a connected producer.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_broker.limits import (
    DEDUPLICATION_ENTRIES_INTERVAL,
    DEDUPLICATION_IDLE_S,
    DEDUPLICATION_INTERVAL_S,
    DEDUPLICATION_PRODUCERS_MAX,
    DEDUPLICATION_REPLAY_ENTRIES,
)
from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.wire.entry import EntrySummary, peek

CURSOR = "pulsar.dedup"
REPLAY_BYTES_MAX = 8 * 1024 * 1024


class Verdict(Enum):
    """How to treat a SEND."""

    PUSH = "push"
    DUPLICATE = "duplicate"  # already stored: acknowledge it without an id
    UNKNOWN = "unknown"  # pending: it may or may not be stored, so the client must try again


@dataclass(frozen=True, slots=True)
class DeduplicationSettings:
    """When the map is saved, and its bounds."""

    entries_interval: int = DEDUPLICATION_ENTRIES_INTERVAL
    interval_s: float = DEDUPLICATION_INTERVAL_S
    producers_max: int = DEDUPLICATION_PRODUCERS_MAX
    idle_s: float = DEDUPLICATION_IDLE_S


class SequenceIds:
    """The map itself. Pure: the caller supplies the time."""

    def __init__(self, persisted: Mapping[str, int] | None = None) -> None:
        self._persisted: dict[str, int] = dict(persisted or {})
        self._pushed: dict[str, int] = dict(self._persisted)
        self._gone_since: dict[str, float] = {}

    @property
    def persisted(self) -> Mapping[str, int]:
        """Highest persisted sequence id by producer name."""
        return self._persisted

    def last_of(self, producer: str) -> int:
        """Return the highest persisted sequence id of a producer; -1 if there is none."""
        return self._persisted.get(producer, -1)

    def push(self, producer: str, sequence_id: int, highest: int) -> Verdict:
        """Return how to treat a SEND; for PUSH also record it as pushed."""
        pushed = self._pushed.get(producer, -1)
        if sequence_id <= pushed:
            return Verdict.DUPLICATE if sequence_id <= self._persisted.get(producer, -1) else Verdict.UNKNOWN
        self._pushed[producer] = max(sequence_id, highest)
        return Verdict.PUSH

    def stored(self, producer: str, highest: int) -> None:
        """Note that a pushed entry is durable."""
        if highest > self._persisted.get(producer, -1):
            self._persisted[producer] = highest
        if highest > self._pushed.get(producer, -1):
            self._pushed[producer] = highest

    def replay(self, summaries: Iterable[EntrySummary]) -> None:
        """Add the sequence ids of entries that were stored after the snapshot."""
        for summary in summaries:
            if summary.marker is None and summary.is_last_chunk:
                self.stored(summary.producer_name, summary.highest_sequence_id)

    def connected(self, producer: str) -> None:
        """Note that the producer is connected, so that it is not forgotten."""
        self._gone_since.pop(producer, None)

    def disconnected(self, producer: str, now_s: float) -> None:
        """Note that the producer is idle from now on."""
        if producer in self._pushed:  # its last push may not be stored yet
            self._gone_since[producer] = now_s

    def forget_idle(self, now_s: float, idle_s: float, producers_max: int) -> None:
        """Drop producers that have been idle for `idle_s`, and the longest idle ones above `producers_max`."""
        longest_gone_first = sorted(self._gone_since.items(), key=lambda item: item[1])
        excess = len(self._persisted) - producers_max
        for name, since in longest_gone_first:
            if now_s - since < idle_s and excess <= 0:
                break
            excess -= 1
            del self._gone_since[name]
            self._persisted.pop(name, None)
            self._pushed.pop(name, None)


class Deduplication:
    """The map of one topic with its cursor."""

    def __init__(self, cursor: Cursor, settings: DeduplicationSettings, now_s: Callable[[], float]) -> None:
        self._cursor = cursor
        self._settings = settings
        self._now_s = now_s
        self._ids = SequenceIds(dict(cursor.properties))
        self._last: Position | None = None
        self._since_snapshot = 0
        self._snapshot_at = now_s()

    async def recover(self) -> None:
        """Replay the entries after the snapshot."""
        self._cursor.rewind()
        now = self._now_s()
        while self._cursor.has_more:
            entries = await self._cursor.read(entries_max=DEDUPLICATION_REPLAY_ENTRIES, bytes_max=REPLAY_BYTES_MAX)
            if not entries:
                break
            self._ids.replay(_summaries(entries))
            self._last = entries[-1].position
            self._since_snapshot += len(entries)
        for name in list(self._ids.persisted):
            self._ids.disconnected(name, now)
        self.snapshot_when_due()

    def last_of(self, producer: str) -> int:
        """Return the sequence id from which the client continues, for PRODUCER_SUCCESS."""
        return self._ids.last_of(producer)

    def connected(self, producer: str) -> None:
        """Note that a producer of that name connected."""
        self._ids.connected(producer)

    def disconnected(self, producer: str) -> None:
        """Note that the producer left."""
        self._ids.disconnected(producer, self._now_s())

    def check(self, producer: str, sequence_id: int, highest: int, summary: EntrySummary) -> Verdict:
        """Return how to treat a SEND. Markers and chunks before the last are always pushed."""
        if summary.marker is not None or not summary.is_last_chunk:
            return Verdict.PUSH
        return self._ids.push(producer, sequence_id, highest)

    def stored(self, producer: str, highest: int | None, position: Position) -> None:
        """Note that an entry is durable; `highest` is None if it is not recorded (markers, chunks before the last)."""
        if highest is not None:
            self._ids.stored(producer, highest)
        self._last = position
        self._since_snapshot += 1
        if self._since_snapshot >= self._settings.entries_interval:
            self.snapshot()

    @property
    def has_unsaved(self) -> bool:
        """Whether entries were stored since the last snapshot."""
        return self._since_snapshot > 0

    def snapshot_when_due(self) -> None:
        """Save the map if enough entries were stored or enough time has passed. Called periodically."""
        due = self._now_s() - self._snapshot_at >= self._settings.interval_s
        if self._since_snapshot and (due or self._since_snapshot >= self._settings.entries_interval):
            self.snapshot()

    def snapshot(self) -> None:
        """Pass the map and its end position to the cursor, which persists both in one record."""
        if self._last is None:
            return
        self._ids.forget_idle(self._now_s(), self._settings.idle_s, self._settings.producers_max)
        self._cursor.set_properties(self._ids.persisted)
        self._cursor.acknowledge_cumulative(self._last)
        self._since_snapshot = 0
        self._snapshot_at = self._now_s()


def _summaries(entries: Iterable[StoredEntry]) -> Iterable[EntrySummary]:
    for entry in entries:
        try:
            yield peek(entry.data)
        except PeerProtocolError:
            continue  # not stored by a Pulsar producer: it has no sequence id
