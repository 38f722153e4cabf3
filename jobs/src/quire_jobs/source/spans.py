"""The ranges that a job reads: spans of ledgers, cut by bounds and filters, distributed over tasks. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_jobs.decode.chunks import LOOK_BACK_ENTRIES_MAX


@dataclass(frozen=True, slots=True)
class LogName:
    """Identifies one managed ledger, or bare ledgers, in rows.

    `name`: of the managed ledger; empty for bare ledgers. `partition`: -1 for a plain topic, None for bare ledgers.
    """

    name: str
    topic: str | None
    partition: int | None

    def __str__(self) -> str:
        return self.name or "the ledgers given"


@dataclass(frozen=True, slots=True)
class Span:
    """Entries `first` to `last` of one ledger, with `size_bytes` of payload (an estimate if the span was cut).

    `closed_ms`: when the ledger was closed, 0 while it is open. `record`: of an offloaded ledger, with its location.
    """

    ledger_id: int
    first: int
    last: int
    size_bytes: int
    closed_ms: int = 0
    record: LedgerRecord | None = None

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last - self.first + 1

    def cut(self, first: int, last: int) -> "Span | None":
        """Return the part from entry `first` to entry `last`; None if it is empty."""
        low, high = max(self.first, first), min(self.last, last)
        if low > high:
            return None
        size_bytes = self.size_bytes * (high - low + 1) // self.entries
        return replace(self, first=low, last=high, size_bytes=size_bytes)


@dataclass(frozen=True, slots=True)
class Log:
    """The contents of one managed ledger at planning time. `ledgers`: ids of all listed ledgers, empty ones
    included."""

    name: LogName
    spans: tuple[Span, ...]
    ledgers: tuple[int, ...] = ()

    @property
    def first(self) -> Position | None:
        """Position of the first entry; None for an empty log."""
        return Position(self.spans[0].ledger_id, self.spans[0].first) if self.spans else None

    @property
    def last(self) -> Position | None:
        """Position of the last entry; None for an empty log."""
        return Position(self.spans[-1].ledger_id, self.spans[-1].last) if self.spans else None

    @property
    def end(self) -> Position:
        """Position of the last entry; for an empty log, a position before all future entries."""
        if self.last is not None:
            return self.last
        return Position(self.ledgers[-1], -1) if self.ledgers else EARLIEST

    def between(self, first: Position, last: Position) -> "Log":
        """Return the log without entries outside `first` to `last`, both included."""
        kept = []
        for span in self.spans:
            if not first.ledger_id <= span.ledger_id <= last.ledger_id:
                continue
            low = first.entry_id if span.ledger_id == first.ledger_id else span.first
            high = last.entry_id if span.ledger_id == last.ledger_id else span.last
            part = span.cut(low, high)
            if part is not None:
                kept.append(part)
        return replace(self, spans=tuple(kept))

    @property
    def entries(self) -> int:
        """Number of entries."""
        return sum(span.entries for span in self.spans)

    def at(self, index: int) -> Position:
        """Return the position of the entry with this index. Raises IndexError."""
        for span in self.spans:
            if index < span.entries:
                return Position(span.ledger_id, span.first + index)
            index -= span.entries
        raise IndexError(index)


class Split(InputPartition):
    """The input of one task: spans of one log, in order. `before`: earlier entries that may hold chunks of its
    messages."""

    def __init__(self, log: LogName, spans: Sequence[Span], before: Sequence[Span] = ()) -> None:
        super().__init__((log.name, spans[0].ledger_id, spans[0].first))
        self.log = log
        self.spans = tuple(spans)
        self.before = tuple(before)

    @property
    def size_bytes(self) -> int:
        """Approximate size of the payload in bytes."""
        return sum(span.size_bytes for span in self.spans)


def splits(logs: Iterable[Log], split_bytes: int, full: Mapping[LogName, Log]) -> list[Split]:
    """Return tasks of about `split_bytes` each. Small ledgers of a log share a task, large ones are cut evenly.

    `full`: the logs without bounds, for the entries that a task may look back at. The input of a task has no gaps: a
    task looks back only from its first entry, and a chunked message may begin in entries that a filter removed.
    """
    found: list[Split] = []
    for log in logs:
        waiting: list[Span] = []
        waiting_bytes = 0
        following = {span.ledger_id: (span.last, after) for span, after in pairwise(full[log.name].spans)}
        for span in log.spans:
            for part in _parts(span, split_bytes):
                gap = bool(waiting) and not _adjoin(waiting[-1], part, following)
                if waiting and (gap or waiting_bytes + part.size_bytes > split_bytes):
                    found.append(Split(log.name, waiting, look_back(full[log.name], waiting[0])))
                    waiting, waiting_bytes = [], 0
                waiting.append(part)
                waiting_bytes += part.size_bytes
        if waiting:
            found.append(Split(log.name, waiting, look_back(full[log.name], waiting[0])))
    return found


def _adjoin(part: Span, after: Span, following: Mapping[int, tuple[int, Span]]) -> bool:
    """Return whether no entry is between the parts. `following`: by ledger its last entry and the next ledger's
    span."""
    if part.ledger_id == after.ledger_id:
        return after.first == part.last + 1
    last, known = following.get(part.ledger_id, (part.last, after))
    return part.last >= last and (after.ledger_id, after.first) == (known.ledger_id, known.first)


def look_back(log: Log, first: Span) -> list[Span]:
    """Return the entries before the first one of a task, latest span first, as far back as chunks are searched for."""
    earlier = log.between(Position(-1, -1), Position(first.ledger_id, first.first - 1)).spans
    found: list[Span] = []
    entries = 0
    for span in reversed(earlier):
        part = span.cut(span.last - (LOOK_BACK_ENTRIES_MAX - entries) + 1, span.last)
        if part is None:
            break
        found.append(part)
        entries += part.entries
    return found


def _parts(span: Span, split_bytes: int) -> Iterator[Span]:
    count = min(span.entries, max(1, -(-span.size_bytes // split_bytes)))
    edges = [span.first + span.entries * index // count for index in range(count + 1)]
    for low, end in pairwise(edges):
        part = span.cut(low, end - 1)
        if part is not None:
            yield part
