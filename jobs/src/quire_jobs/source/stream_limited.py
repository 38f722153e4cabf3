"""Reading a stream as Spark 4.2 and newer ask: from where, how much, and up to what was there when it began."""

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
    """See the module's text."""

    def __init__(self, options: SourceOptions, table: "TablePlan | None" = None) -> None:
        """JobOptionsError for what only a batch read has."""
        super().__init__(options, table)
        self._target: Offset | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say, for Spark; `latestOffset` keeps to both of them."""
        if self._options.max_entries_per_trigger:
            return ReadMaxRows(self._options.max_entries_per_trigger)
        if self._options.max_bytes_per_trigger:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, str]:
        """The end of the next micro-batch, never below `start`. DataLossError."""
        bound = Limit() if isinstance(limit, ReadAllAvailable) else self.options_limit
        return encode(self.end_behind(decode(start), bound, self._target))

    def reportLatestOffset(self) -> dict[str, str]:
        """What could be read by now, for the query's progress."""
        return encode(self.ends())

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what the query reads."""
        self._target = self.ends()
