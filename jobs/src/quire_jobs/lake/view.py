"""One view over a table that the job `table` keeps, and over the messages that the table does not have yet.

    live = live_table(spark, target, {"metadata": "http://localhost:8080", "topic": "orders"})
    live.now()      the table's rows and the newer messages up to this moment, as one DataFrame
    live.history    the table's rows at one version
    live.stream()   a streaming DataFrame that begins where `history` ends

A version of the table has its rows and the position of the last one in each managed ledger, from one commit. The tail
begins after these positions. So no message is missing or doubled at the seam, also while the job adds to the table.

A view is of one version: the later it is read, the more of it comes from the log. Open a new view to use newer rows of
the table, and if the log was trimmed meanwhile (DataLossError).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire_broker.managed_ledger.position import Position
from quire_jobs.errors import JobOptionsError, NotFoundError
from quire_jobs.lake.following import cursor_of
from quire_jobs.source import register
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.catalog import logs_named, snapshots, topic_of_log
from quire_jobs.source.cluster import as_job_errors, open_cluster
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.offsets import Offset, decode, encode
from quire_jobs.source.options import Mode, SourceOptions, parse_options
from quire_jobs.source.topic_cursors import internal_stats
from quire_jobs.tables import TableTarget, open_table, read_frame
from quire_jobs.tables.marks import POSITIONS, decode_positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS = ("position", "ledger", "time", "after", "at")
_BOUNDS = ("mode", *(side + kind for side in ("start", "end") for kind in _KINDS))


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A view; see the module's docstring. `history`: the rows of the table; `version`: its name in the table."""

    history: "DataFrame"
    version: str
    _spark: "SparkSession" = field(repr=False)
    _options: Mapping[str, str] = field(repr=False)

    def tail(self) -> "DataFrame":
        """Return the messages behind `history`, up to the newest one at each execution. Errors as the source."""
        return self._spark.read.format("quire").options(**self._options).load()

    def now(self) -> "DataFrame":
        """Return `history` and `tail` as one DataFrame. A column that one of them lacks is null in its rows."""
        return self.history.unionByName(self.tail(), allowMissingColumns=True)

    def stream(self, **options: str) -> "DataFrame":
        """Return a stream that begins where `history` ends. `options`: more options of a stream, such as `cursor`."""
        return self._spark.readStream.format("quire").options(**self._options, **options).load()


def live_table(spark: "SparkSession", target: TableTarget, options: Mapping[str, str]) -> LiveTable:
    """Return the view. `options`: those of the source that name the cluster and the topics, without bounds and mode.

    NotFoundError: no such table or topic. JobOptionsError: a bound, or a table that the job `table` does not keep.
    """
    register(spark)
    given = [name for name in options if name.lower() in _BOUNDS]
    if given:
        raise JobOptionsError(f"{', '.join(given)}: the table decides where the tail begins and how rows look: remove")
    version = open_table(target).version()
    if version.schema is None:
        raise NotFoundError(f"table {target.shown} does not exist")
    known = decode_positions(version.marks.get(POSITIONS))
    if not known:
        raise JobOptionsError(f"table {target.shown} has no positions of topics: the job `table` did not write it")
    mode = Mode.TABLE if "_ledger" in version.schema.names else Mode.MESSAGES
    asked = parse_options(options)
    topics, begin = shared_loop().run(lambda: _begin(asked, cursor_of(target), decode(known)))
    history = read_frame(spark, target, version=version.name)
    if topics is not None:
        history = history.where(history["_topic" if mode is Mode.TABLE else "topic"].isin(topics))
    chosen = {**options, "mode": mode.value, "startAfter": json.dumps(encode(begin))}
    return LiveTable(history, version.name, spark, chosen)


async def _begin(options: SourceOptions, cursor: str, known: Offset) -> tuple[list[str] | None, Offset]:
    """Return the topics to choose from the table, None for all, and where the tail of each managed ledger begins.

    A ledger may be trimmed once all of it is in the table. While the table's subscription exists, it keeps everything
    behind the table, so the tail then begins at the first ledger that is left.
    """
    async with open_cluster(options) as cluster, BrokerHttp(options.http) as brokers:
        with as_job_errors():
            logs = await snapshots(cluster, await logs_named(cluster, options), options, None)
        begin = {log.name.name: known[log.name.name] for log in logs if log.name.name in known}
        for log in logs:
            position, topic = begin.get(log.name.name), topic_of_log(log.name)
            if position is None or topic is None or not log.ledgers or position.ledger_id >= log.ledgers[0]:
                continue
            if cursor in (await internal_stats(brokers, topic))["cursors"]:
                begin[log.name.name] = Position(log.ledgers[0], -1)
        others = known.keys() - {log.name.name for log in logs}
        return sorted({str(log.name.topic) for log in logs}) if others else None, begin
