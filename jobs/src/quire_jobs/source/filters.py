"""Applies the filters that Spark pushes down: skips ledgers, and rows, that cannot match. Pure.

All filters are also returned to Spark, which applies them to the remaining rows. So code here must never drop a row
that matches, but it may keep a row that does not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from quire_jobs.source.spans import Log, LogName, Span

_COMPARED: dict[type[Filter], tuple[str, Callable[..., Any]]] = {
    EqualTo: ("=", pc.equal),
    GreaterThan: (">", pc.greater),
    GreaterThanOrEqual: (">=", pc.greater_equal),
    LessThan: ("<", pc.less),
    LessThanOrEqual: ("<=", pc.less_equal),
}
_COLUMNS = ("topic", "partition", "ledger", "entry", "key", "publish_time")
_FAR = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison of a column with a value, or for `in` with several."""

    column: str
    operator: str
    value: Any

    def allows(self, value: Any) -> bool:
        """Return whether a row with this value may match. A null matches no comparison."""
        if value is None:
            return False
        if self.operator == "in":
            return value in self.value
        if self.operator == "=":
            return bool(value == self.value)
        if self.operator in (">", ">="):
            return bool(value >= self.value)
        return bool(value <= self.value)

    @property
    def low(self) -> Any:
        """The smallest value that can match; None without a lower bound."""
        if self.operator == "in":
            return min(self.value)
        return self.value if self.operator in ("=", ">", ">=") else None

    @property
    def high(self) -> Any:
        """The largest value that can match; None without an upper bound."""
        if self.operator == "in":
            return max(self.value)
        return self.value if self.operator in ("=", "<", "<=") else None


@dataclass(slots=True)
class Filters:
    """The terms that must all hold."""

    terms: list[Term] = field(default_factory=list)

    def take(self, filters: Iterable[Filter], prefix: str = "") -> None:
        """Keep the supported filters. `prefix`: precedes the metadata columns' names."""
        for each in filters:
            term = _term(each, prefix)
            if term is not None:
                self.terms.append(term)

    def wants(self, name: LogName) -> bool:
        """Return whether a log can contain rows that match."""
        values = {"topic": name.topic, "partition": name.partition}
        return all(term.allows(values[term.column]) for term in self.terms if term.column in values)

    def prune(self, log: Log, tolerance_s: int) -> Log:
        """Return the log without ledgers and entries that contain no matching row."""
        low_entry, high_entry = self._range("entry", -_FAR, _FAR)
        low_ms, high_ms = self._times(tolerance_s)
        kept: list[Span] = []
        closed_before_ms = 0
        for span in log.spans:
            opened_ms, closed_before_ms = closed_before_ms, span.closed_ms
            if not all(term.allows(span.ledger_id) for term in self.terms if term.column == "ledger"):
                continue
            if (span.closed_ms and span.closed_ms < low_ms) or opened_ms > high_ms:
                continue
            part = span.cut(low_entry, high_entry)
            if part is not None:
                kept.append(part)
        return replace(log, spans=tuple(kept))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch without rows that cannot match."""
        mask = None
        for term in self.terms:
            if term.column not in batch.schema.names:
                continue
            found = _mask(batch.column(term.column), term)
            mask = found if mask is None else pc.and_(mask, found)
        return batch if mask is None else batch.filter(mask)

    def _range(self, column: str, low: int, high: int) -> tuple[int, int]:
        terms = [term for term in self.terms if term.column == column]
        lows = [term.low for term in terms if term.low is not None]
        highs = [term.high for term in terms if term.high is not None]
        return max([low, *lows]), min([high, *highs])

    def _times(self, tolerance_s: int) -> tuple[int, int]:
        """Return the range of publish times that can match, in ms, widened by the tolerance."""
        terms = [term for term in self.terms if term.column == "publish_time"]
        lows = [_ms(term.low) - tolerance_s * 1000 for term in terms if term.low is not None]
        highs = [_ms(term.high) + tolerance_s * 1000 for term in terms if term.high is not None]
        return max([-_FAR, *lows]), min([_FAR, *highs])


def _term(given: Filter, prefix: str) -> Term | None:
    attribute: Sequence[str] = getattr(given, "attribute", ())
    if len(attribute) != 1 or not attribute[0].startswith(prefix):
        return None
    column = attribute[0].removeprefix(prefix)
    if column not in _COLUMNS:
        return None
    if isinstance(given, In):
        values = [value for value in given.value if value is not None]
        return Term(column, "in", tuple(values)) if values else None
    known = _COMPARED.get(type(given))
    value = getattr(given, "value", None)
    if known is None or value is None:
        return None
    if column == "publish_time" and not isinstance(value, datetime):
        return None
    return Term(column, known[0], value)


def _ms(time: datetime) -> int:
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _mask(column: pa.Array, term: Term) -> pa.Array:
    if term.operator == "in":
        return pc.is_in(column, pa.array(term.value, column.type))
    compare = next(function for sign, function in _COMPARED.values() if sign == term.operator)
    return pc.fill_null(compare(column, pa.scalar(term.value, column.type)), False)
