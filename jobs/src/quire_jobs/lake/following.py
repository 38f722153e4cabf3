"""Adds the messages of topics to a table, each once, batch after batch. On the driver, with Spark.

The table itself records the last entry of each managed ledger that it has, in the same commit as the rows
(`marks.Advance`). So there is no checkpoint that could disagree with the table: a killed run leaves files without a
commit, and the next run begins at the positions of the table. Of two simultaneous runs one commits a range; the other
finds other positions than it read from, and adds nothing.

A batch reads from the position of the table to an end that is fixed first. The schemas are read after that: a producer
registers a version before it publishes with it, so each batch knows the versions of all of its messages. New fields
become new columns.

The subscription `quire.table.<digest>` keeps what the table does not have yet. It advances after each commit.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_jobs.errors import TableSchemaError
from quire_jobs.source.offsets import Limit, Offset, decode, encode
from quire_jobs.source.options import Mode, parse_options
from quire_jobs.source.stream import StreamReader
from quire_jobs.source.subjects import subject_option
from quire_jobs.tables import Layout, TableTarget, Written, open_table, write_frame
from quire_jobs.tables.frames import task_errors
from quire_jobs.tables.marks import POSITIONS, Advance, decode_positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CURSOR = "quire.table."
_DIGEST_CHARACTERS = 10
_ORDER = ("topic", "partition", "ledger", "entry", "batch_index")


def cursor_of(target: TableTarget) -> str:
    """Return the name of the subscription that keeps messages until they are in the table."""
    return _CURSOR + hashlib.sha256(target.shown.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def table_layout(mode: Mode, period: str, file_bytes: int) -> Layout:
    """Return the layout: by hour or day of publishing, sorted by topic and position."""
    prefix = "_" if mode is Mode.TABLE else ""
    layout = Layout(sort_by=tuple(prefix + name for name in _ORDER), file_bytes=file_bytes)
    time = f"{prefix}publish_time"
    return replace(layout, day_of=time) if period == "day" else replace(layout, hour_of=time)


@dataclass(frozen=True, slots=True)
class Step:
    """One commit. `done`: nothing was left to add, so there was none. `repeated`: another run was faster."""

    done: bool
    written: Written


class Follower:
    """Follows one topic, with its partitions, or the topics of a pattern. Use it from one thread; `close` it."""

    def __init__(
        self,
        spark: "SparkSession",
        where: Mapping[str, str],
        name: str,
        mode: Mode,
        target: TableTarget,
        layout: Layout,
    ) -> None:
        """`where`: options of the source for the cluster, with `http`. JobOptionsError."""
        self.name = name
        self._spark = spark
        self._batch = {**where, **subject_option(name), "mode": mode.value}
        start = {"startTime": self._batch.pop("startTime")} if "startTime" in self._batch else {}
        self._reader = StreamReader(parse_options({**self._batch, **start, "cursor": cursor_of(target)}))
        self._mode = mode
        self._target = target
        self._layout = layout

    def ends(self) -> Offset:
        """Return the present end of each managed ledger. NotFoundError: no such topic."""
        return self._reader.ends()

    def step(self, limit: Limit, target: Offset | None = None) -> Step:
        """Add the next messages, up to `target` and at most `limit`. Errors as a stream of the source, and `Table`."""
        known = self._known()
        begin = self._begin(known)
        end = self._reader.end_behind(begin, limit, target)
        moved = {name: position for name, position in end.items() if position != begin.get(name)}
        if not moved:
            return Step(True, Written(repeated=False))
        mark = Advance({name: known[name] for name in moved if name in known}, encode(moved))
        written = write_frame(self._frame(begin, moved), self._target, mark, layout=self._layout)
        if not written.repeated:
            # The table's positions, not `end`: when the outcome of a commit was unknown, that of another run may be
            # the one that was found, and the subscription must keep what the table does not have.
            self._reader.commit({name: position for name, position in self._known().items() if name in end})
        return Step(False, written)

    def _known(self) -> dict[str, str]:
        return decode_positions(open_table(self._target).marks().get(POSITIONS))

    def _begin(self, known: Mapping[str, str]) -> Offset:
        """Return the position of the table in each managed ledger; where the options begin, if it has none there."""
        names = self._reader.ends().keys()
        begin = decode({name: position for name, position in known.items() if name in names})
        return begin if names <= begin.keys() else decode(self._reader.initialOffset()) | begin

    def _frame(self, begin: Offset, end: Mapping[str, Position]) -> "DataFrame":
        bounds = {
            "startAfter": json.dumps(encode(self._reader.kept({name: begin.get(name, EARLIEST) for name in end}))),
            "endAt": json.dumps(encode(end)),
        }
        try:
            with task_errors():
                return self._spark.read.format("quire").options(**self._batch, **bounds).load()
        except TableSchemaError as error:
            raise TableSchemaError(f"{error}; with payload=bytes the table has the payloads as they are") from error

    def close(self) -> None:
        """Close the clients. The subscription stays: it keeps the messages for the next run."""
        self._reader.stop()
