"""Reads a stream for Spark 4.2 and newer, which passes the start, a limit, and the end for AvailableNow."""

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from quire_jobs.source.offsets import Limit, Offset, decode, encode
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.stream import StreamReader

if TYPE_CHECKING:
    from quire_jobs.decode.table import TablePlan


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """Implements Spark 4.2's stream reader interface."""

    def __init__(self, options: SourceOptions, table: "TablePlan | None" = None) -> None:
        """Raise JobOptionsError for options that only a batch read has."""
        super().__init__(options, table)
        self._target: Offset | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one limit of the options for Spark; `latestOffset` keeps to both."""
        if self._options.max_entries_per_trigger:
            return ReadMaxRows(self._options.max_entries_per_trigger)
        if self._options.max_bytes_per_trigger:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, str]:
        """Return the end of the next micro-batch, never below `start`. Raises DataLossError."""
        bound = Limit() if isinstance(limit, ReadAllAvailable) else self.options_limit
        return encode(self.end_behind(decode(start), bound, self._target))

    def reportLatestOffset(self) -> dict[str, str]:
        """Return the present end of the logs, for the query's progress."""
        return encode(self.ends())

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the present end of the logs."""
        self._target = self.ends()
