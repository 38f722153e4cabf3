"""The two phases of a compaction as Spark tasks: which messages are the latest, then the entries that are kept.

    marks     each task reads a piece of the topic: one mark for each of its keys, one for each chunk
    latest    the marks of a key, or of a chunked message, meet in one bucket, in the order of the topic
    kept      the live messages of a piece meet; its task reads the piece again and keeps them

A task holds the keys of one bucket, or the live messages of one piece. The rules are those of the broker's compaction,
and so is the code (`latest_messages`); a chunk whose first one is gone is kept here.
"""

import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from quire_broker.compaction.compacted_entry import decode, encode
from quire_broker.compaction.latest_messages import LatestMessages, Mark, kept_of, marks_of, summary_of, token_of
from quire_broker.errors import CompactionError
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_jobs.compaction.planning import Piece
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.cluster import as_job_errors
from quire_jobs.source.entry_runs import EntryRuns, Run
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.task_cluster import task_cluster

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

Keyed: TypeAlias = tuple[tuple[str, int], Mark]
"""A mark behind the text that decides about its bucket, and its token."""
Encoded: TypeAlias = tuple[Position, bytes]
"""An entry of a compacted ledger, with its position in the topic."""


@dataclass(frozen=True, slots=True)
class Output:
    """The entries to keep from a run of the topic's entries. `read`: number of entries in the run."""

    read: int
    entries: list[Encoded]


@dataclass(frozen=True, slots=True)
class Rules:
    """What all tasks need. `keyless`: keep messages without a key. `keys_bytes_max`: memory for the keys of a task."""

    options: SourceOptions
    partition: int
    keyless: bool
    keys_bytes_max: int
    buckets: int


def kept_entries(context: "SparkContext", pieces: Sequence[Piece], rules: Rules) -> "RDD[Output]":
    """Return what the compacted ledger gets, in order: a partition for each piece."""
    firsts = [token_of(piece.first) for piece in pieces]
    count = len(pieces)
    read = context.parallelize(pieces, count).mapPartitions(lambda some: marks(_read_all(rules, some)))
    ordered = read.repartitionAndSortWithinPartitions(rules.buckets, bucket_of, keyfunc=lambda key: key[1])
    live = ordered.mapPartitions(lambda found: latest(rules, (mark for _, mark in found)))
    placed = live.map(lambda token: (bisect_right(firsts, token) - 1, token)).partitionBy(count, int)
    return placed.mapPartitionsWithIndex(lambda index, found: _kept(rules, pieces[index], found))


def bucket_of(key: tuple[str, int]) -> int:
    """Return the bucket of a key before it is divided by their number: equal in all processes."""
    return zlib.crc32(key[0].encode())


def marks(entries: Iterable[StoredEntry]) -> Iterator[Keyed]:
    """Yield the marks of consecutive entries that others may supersede: of each key the last one, and all chunks."""
    last: dict[str, Mark] = {}
    for entry in entries:
        for mark in marks_of(entry.position, entry.data, summary_of(entry.data)):
            if mark.uuid is not None:
                yield (mark.uuid if mark.key is None else mark.key, mark.token), mark
            elif mark.key is not None:
                last[mark.key] = mark
    for key, mark in last.items():
        yield (key, mark.token), mark


def latest(rules: Rules, found: Iterable[Mark]) -> Iterator[int]:
    """Yield the tokens of the live messages of a bucket, and of all their chunks. `found`: in the order of the topic.

    JobOptionsError if its keys need too much memory.
    """
    known = LatestMessages(keyless=rules.keyless, bytes_max=rules.keys_bytes_max)
    chunks: list[Mark] = []
    for mark in found:
        try:
            known.add(mark)
        except CompactionError as error:
            raise JobOptionsError(
                f"the keys of one task need more memory than {rules.keys_bytes_max >> 20} MiB: raise buckets = "
                f"{rules.buckets}, or keysSizeMax"
            ) from error
        if mark.uuid is not None:
            chunks.append(mark)
    yield from known.tokens
    begun: set[str] = set()
    for mark in chunks:
        assert mark.uuid is not None
        if mark.chunk_id == 0:
            begun.add(mark.uuid)
        if known.is_live(mark) or mark.uuid not in begun:
            yield mark.token


def kept(rules: Rules, entries: Iterable[StoredEntry], live: Iterable[int]) -> Iterator[Encoded]:
    """Yield the entries with a live message as the compacted ledger has them. `live`: tokens."""
    tokens = frozenset(live)

    def is_live(mark: Mark) -> bool:
        return rules.keyless if mark.key is None and mark.uuid is None else mark.token in tokens

    for entry in entries:
        found, _ = kept_of(entry.position, entry.data, summary_of(entry.data), is_live)
        if found is not None:
            yield entry.position, b"".join(encode(entry.position, rules.partition, found.data, found.live))


# ---- reads of the tasks
def _kept(rules: Rules, piece: Piece, found: Iterable[tuple[int, int]]) -> Iterator[Output]:
    live = frozenset(token for _, token in found)
    for run in _read(rules.options, piece):
        yield Output(len(run), list(kept(rules, run, live)))


def _read_all(rules: Rules, pieces: Iterable[Piece]) -> Iterator[StoredEntry]:
    for piece in pieces:
        for run in _read(rules.options, piece):
            yield from run


def _read(options: SourceOptions, piece: Piece) -> Iterator[list[StoredEntry]]:
    return shared_loop().iterate(lambda: _runs(options, piece))


async def _runs(options: SourceOptions, piece: Piece) -> AsyncGenerator[list[StoredEntry], None]:
    async with task_cluster(options) as cluster:
        with as_job_errors():
            async with aclosing(EntryRuns(cluster, options).of(piece.log, piece.spans)) as runs:
                async for run in runs:
                    yield _positioned(run, is_compacted=piece.is_compacted)


def _positioned(run: Run, *, is_compacted: bool) -> list[StoredEntry]:
    if is_compacted:
        return [decode(payload) for payload in run.payloads]
    return [StoredEntry(Position(run.ledger_id, run.first + at), data) for at, data in enumerate(run.payloads)]
