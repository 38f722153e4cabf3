"""Reading a stream as Spark 4.1 asks: where does the next micro-batch end? Without a word on where it begins.

The reader keeps the end that was planned last. A query that goes on from a checkpoint says it first, by asking for the
tasks between it and itself. Where nobody has said anything the answer is all that is there: whether there is a
checkpoint is not known, and a part of it might lie below.
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
    """See the module's text."""

    def __init__(self, options: SourceOptions, table: "TablePlan | None" = None) -> None:
        """JobOptionsError for what only a batch read has, and for what no broker is asked about."""
        super().__init__(options, table)
        name = options.managed_ledger
        if not options.http or (name and topic_of_log(LogName(name, name, -1)) is None):
            raise JobOptionsError(
                "quire source: on Spark before 4.2 a stream needs a topic and http, the address of a broker: bookies "
                "alone may know less than a checkpoint has, and this Spark does not say what that is"
            )
        self._planned: Offset | None = None
        self._first: Offset | None = None

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]  # as it was declared then
        """The end of the next micro-batch, never below the last one's. DataLossError."""
        if self._planned is None:
            self.hold_early()
            self._first = self.ends()
            return encode(self._first)
        return encode(self.end_behind(self._planned, self.options_limit))

    def initialOffset(self) -> dict[str, str]:
        """Where a query without a checkpoint begins; Spark asks when it knows where its first micro-batch ends."""
        begin = decode(super().initialOffset())
        if self._first is not None:
            begin = {name: min(position, self._first.get(name, EARLIEST)) for name, position in begin.items()}
        return encode(begin)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. DataLossError when a checkpoint asks for what is gone."""
        begin, self._planned = decode(start), decode(end)
        if begin == self._planned:
            return []  # a checkpoint is told; what it needs is looked at with what is planned next
        for name, position in begin.items():
            if self._planned.get(name, EARLIEST) < position:
                report_loss(f"{name} ends before what was read of it: it was deleted and made anew", self._options)
        return super().partitions(start, end)
