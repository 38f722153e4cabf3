"""Reads a stream for Spark 4.1, which asks for the end of the next micro-batch without giving its start.

The reader remembers the end that was planned last. A query that continues from a checkpoint first reports it, by asking
for the tasks between the checkpoint and itself. Without such a request, the end is everything that exists: the reader
does not know whether there is a checkpoint, and a smaller end might be below it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from quire_broker.managed_ledger.position import EARLIEST
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.bounds import report_loss
from quire_jobs.source.catalog import topic_of_log
from quire_jobs.source.offsets import Offset, decode, encode
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.spans import LogName
from quire_jobs.source.stream import StreamReader

if TYPE_CHECKING:
    from quire_jobs.decode.table import TablePlan


class PlannedStreamReader(StreamReader):
    """Implements Spark 4.1's stream reader interface; see the module's docstring."""

    def __init__(self, options: SourceOptions, table: "TablePlan | None" = None) -> None:
        """Raise JobOptionsError for options that only a batch read has, and if no broker can report the newest
        entry."""
        super().__init__(options, table)
        name = options.managed_ledger
        if not options.http or (name and topic_of_log(LogName(name, name, -1)) is None):
            raise JobOptionsError(
                "quire source: on Spark before 4.2 a stream needs a topic and http, the address of a broker: bookies "
                "alone may report an earlier end than the checkpoint, and this Spark does not pass it"
            )
        self._planned: Offset | None = None
        self._first: Offset | None = None

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]  # the signature of Spark 4.1
        """Return the end of the next micro-batch, never below the last one's. Raises DataLossError."""
        if self._planned is None:
            self.hold_early()
            self._first = self.ends()
            return encode(self._first)
        return encode(self.end_behind(self._planned, self.options_limit))

    def initialOffset(self) -> dict[str, str]:
        """Return where a query without a checkpoint begins. Spark asks after it knows the end of the first
        micro-batch."""
        begin = decode(super().initialOffset())
        if self._first is not None:
            begin = {name: min(position, self._first.get(name, EARLIEST)) for name, position in begin.items()}
        return encode(begin)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch. DataLossError if entries that the checkpoint needs are gone."""
        begin, self._planned = decode(start), decode(end)
        if begin == self._planned:
            return []  # Spark reports a checkpoint; the next planned batch checks its entries
        for name, position in begin.items():
            if self._planned.get(name, EARLIEST) < position:
                report_loss(f"{name} ends before the checkpoint: it was deleted and created again", self._options)
        return super().partitions(start, end)
