"""Plans the compaction of one topic: what it reads, in order, and the horizon. Reads metadata and few entries."""

from dataclasses import dataclass

from quire_broker.compaction.compacted_entry import decode
from quire_broker.compaction.compacted_output import horizon_of
from quire_broker.compaction.topic_compaction import NO_LEDGER
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.names import TopicName
from quire_jobs.errors import QuireJobError, SourceUnavailableError
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.catalog import log_of_topic, snapshot
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.entry_runs import EntryRuns
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.spans import Log, LogName, Span, splits
from quire_jobs.source.topic_cursors import hold, internal_stats, job_cursor

HELD_BY = job_cursor("compact")
_OF_COMPACTED = LogName("", None, None)


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive entries that one task reads. `first`: where its first entry is in the topic."""

    first: Position
    log: LogName
    spans: tuple[Span, ...]
    is_compacted: bool = False
    """Whether they are in the former compacted ledger."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`pieces`: in the order of the topic. `former`: the compacted ledger that is read; NO_LEDGER if there is none.

    `ledgers`: all ledgers of the topic.
    """

    topic: TopicName
    pieces: tuple[Piece, ...]
    horizon: Position
    former: int
    ledgers: tuple[int, ...]

    @property
    def entries(self) -> int:
        """Number of entries that are read."""
        return sum(span.entries for piece in self.pieces for span in piece.spans)

    @property
    def size_bytes(self) -> int:
        """Their size."""
        return sum(span.size_bytes for piece in self.pieces for span in piece.spans)


async def plan(cluster: Cluster, brokers: BrokerHttp, topic: TopicName, options: SourceOptions) -> Plan | None:
    """Return the plan; None if nothing was added since the last compaction.

    Before the first compaction it makes the cursor `HELD_BY`, so that brokers trim nothing that is read: `release`
    removes it. Later the cursor of the last compaction keeps everything behind its horizon.
    SourceUnavailableError while the state of a ledger is not known; errors of the ledger client and the store.
    """
    former = await _compacted_ledger(brokers, topic)
    if former == NO_LEDGER:
        await hold(brokers, topic, HELD_BY, EARLIEST)
    log = await snapshot(cluster, log_of_topic(topic), brokers)
    pieces: list[Piece] = []
    own = log
    if former != NO_LEDGER:
        span, horizon = await _former(cluster, topic, former)
        own = log.between(horizon.following, LATEST)
        pieces += await _pieces_of_compacted(cluster, span, options) if span.entries else []
    if own.last is None:
        return None
    _require_whole(log)
    found = splits([own], options.split_bytes, {own.name: log})
    pieces += [Piece(_first_of(split.spans), own.name, split.spans) for split in found]
    return Plan(topic, tuple(pieces), own.last, former, log.ledgers)


def _first_of(spans: tuple[Span, ...]) -> Position:
    return Position(spans[0].ledger_id, spans[0].first)


def _require_whole(log: Log) -> None:
    """Raise SourceUnavailableError if entries in the middle may be missing: only the last ledger may be open."""
    for span in log.spans[:-1]:
        if not span.closed_ms:
            raise SourceUnavailableError(
                f"ledger {span.ledger_id} of {log.name} is open and not the last one: its end is not known; load the "
                "topic, then run the job again"
            )


async def _compacted_ledger(brokers: BrokerHttp, topic: TopicName) -> int:
    stats = await internal_stats(brokers, topic)
    return int(stats["compactedLedger"]["ledgerId"])


async def _former(cluster: Cluster, topic: TopicName, ledger_id: int) -> tuple[Span, Position]:
    """Return all entries of a compacted ledger, and its horizon."""
    async with await cluster.open_ledger(ledger_id) as reader:
        horizon = horizon_of(reader.metadata.custom, topic)
        if not reader.is_closed or horizon is None:
            raise QuireJobError(
                f"the metadata of compacted ledger {ledger_id} do not name the horizon of {topic}: compact the topic "
                "at its broker once, then run the job again"
            )
        span = Span(ledger_id, 0, reader.last_add_confirmed, reader.length, closed_ms=1)
        return span, horizon


async def _pieces_of_compacted(cluster: Cluster, span: Span, options: SourceOptions) -> list[Piece]:
    runs = EntryRuns(cluster, options)
    log = Log(_OF_COMPACTED, (span,), (span.ledger_id,))
    found = []
    for split in splits([log], options.split_bytes, {log.name: log}):
        first = decode(await runs.one(split.spans[0], split.spans[0].first)).position
        found.append(Piece(first, log.name, split.spans, is_compacted=True))
    return found
