"""Reads a stream: offsets are positions, a micro-batch is the range between two of them. Runs on the driver.

This module holds the part that is the same for all Spark versions. The end of the next micro-batch is requested in two
different ways: see `stream_limited` and `stream_planned`.

A micro-batch contains exactly the entries between its offsets, also when it is read again after a crash. An entry that
was confirmed once stays confirmed, even if the bookies that respond now do not know it yet. An offset never decreases.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic.alias_generators import to_camel
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_jobs.errors import DataLossError, JobOptionsError, QuireJobError
from quire_jobs.source.bounds import (
    beyond,
    check_positions,
    following,
    position_before,
    report_loss,
    require_kept,
    start_of,
)
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.buckets import BucketCheck
from quire_jobs.source.catalog import logs_named, snapshot, snapshots, topic_of_log
from quire_jobs.source.cluster import Cluster, as_job_errors, open_cluster
from quire_jobs.source.entry_runs import EntryRuns
from quire_jobs.source.filters import Filters
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.offsets import Limit, Offset, advanced, decode, encode
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.reading import read_split
from quire_jobs.source.spans import Log, LogName, Split, splits
from quire_jobs.source.topic_cursors import hold, move, release
from quire_jobs.source.worker_heap import task_begins

if TYPE_CHECKING:
    from quire_jobs.decode.table import TablePlan

_log = logging.getLogger("quire.jobs.source")


class _Driver:
    """Keeps the clients open that the reader needs on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.loop = shared_loop()
        self._closing = AsyncExitStack()
        self.cluster, self.brokers = self.loop.run(self._open)
        self.buckets = BucketCheck(self.cluster.tier)

    async def _open(self) -> tuple[Cluster, BrokerHttp | None]:
        async with AsyncExitStack() as opening:
            cluster = await opening.enter_async_context(open_cluster(self._options))
            brokers = BrokerHttp(self._options.http) if self._options.http else None
            if brokers is not None:
                await opening.enter_async_context(brokers)
            self._closing = opening.pop_all()
        return cluster, brokers

    async def logs(self) -> list[Log]:
        """Return the present state of the selected logs."""
        with as_job_errors():
            names = await logs_named(self.cluster, self._options)
            return await snapshots(self.cluster, names, self._options, self.brokers)

    def close(self) -> None:
        """Close the clients."""
        self.loop.run(self._closing.aclose)


class StreamReader(DataSourceStreamReader):
    """Reads micro-batches. Spark pickles it to the tasks before it opens clients; only the driver's instance has
    them."""

    def __init__(self, options: SourceOptions, table: "TablePlan | None" = None) -> None:
        """Raise JobOptionsError for options that only a batch read has."""
        for name in ("end_position", "end_ledger", "end_time", "end_at"):
            if getattr(options, name) is not None:
                raise JobOptionsError(f"quire source: a stream has no end: remove the option {to_camel(name)}")
        if options.ledgers:
            raise JobOptionsError("quire source: a stream cannot read ledgers; give topic, topics or managedLedger")
        if options.job_id:
            raise JobOptionsError(
                "quire source: a stream keeps its data by the option cursor; use that instead of jobId"
            )
        self._options = options
        self._table = table
        self._driver: _Driver | None = None
        self._held: set[str] = set()
        self._held_early: set[str] = set()
        """Logs whose cursors were made before the first position of the query was known."""

    # ---- on the driver
    def initialOffset(self) -> dict[str, str]:
        """Return where a query without a checkpoint begins."""
        driver = self._opened()

        async def begin() -> Offset:
            with as_job_errors():
                logs = await driver.logs()
                check_positions(logs, self._options)
                return {log.name.name: await self._begin(driver, log) for log in logs}

        return encode(driver.loop.run(begin))

    async def _begin(self, driver: _Driver, log: Log) -> Position:
        options = self._options
        if options.start_after is not None:
            return dict(options.start_after).get(log.name.name, EARLIEST)
        if options.start_time is not None:
            return await position_before(log, options.start_time, EntryRuns(driver.cluster, options))
        start = start_of(log, options)
        if start == LATEST:
            return log.last or EARLIEST
        if start == EARLIEST or (options.start_ledger is not None and log.ledgers and start.ledger_id < log.ledgers[0]):
            return EARLIEST  # ledger ids are cluster-wide: this log may never have had that ledger
        return Position(start.ledger_id, start.entry_id - 1)

    @property
    def options_limit(self) -> Limit:
        """Limits of one micro-batch."""
        return Limit(self._options.max_entries_per_trigger or None, self._options.max_bytes_per_trigger or None)

    def ends(self) -> Offset:
        """Return the present end of each log."""
        driver = self._opened()
        return {log.name.name: log.end for log in driver.loop.run(driver.logs)}

    def end_behind(self, begin: Offset, limit: Limit, target: Offset | None = None) -> Offset:
        """Return the end of the micro-batch after `begin`; never below `begin`, never after `target`. Raises
        DataLossError."""
        driver = self._opened()

        async def end() -> Offset:
            logs = await self._held_logs(driver, begin)
            return advanced(begin, [self._rest(log, begin, target) for log in logs], limit)

        return driver.loop.run(end)

    def _rest(self, log: Log, begin: Offset, target: Offset | None) -> Log:
        after = begin.get(log.name.name, EARLIEST)
        if log.ledgers and after.ledger_id > log.ledgers[-1]:
            raise JobOptionsError(
                f"quire source: {log.name} ends in ledger {log.ledgers[-1]}, but {after} "
                "was read before: from another cluster, or from newer metadata; use a new table or checkpoint"
            )
        self._require_rest(log, after)
        through = LATEST if target is None else target.get(log.name.name, EARLIEST)
        return log.between(Position(after.ledger_id, after.entry_id + 1), through)

    def _require_rest(self, log: Log, after: Position) -> None:
        """Raise DataLossError if entries after `after` may be gone. A cursor that existed all the time has kept
        them."""
        if after.ledger_id >= 0 and log.name.name not in self._held:
            require_kept(log, Position(after.ledger_id, after.entry_id + 1), self._options)

    def kept(self, begin: Offset) -> Offset:
        """Return `begin` for a batch read that has no cursor: right before the next entry that exists.

        A ledger that was read to its end may be trimmed at any moment, also between this call and the read. Only after
        `end_behind` with the same `begin`, which checks that nothing after it is gone.
        """
        driver = self._opened()
        found = dict(begin)
        for log in driver.loop.run(driver.logs):
            position = found.get(log.name.name)
            if position is None or position.ledger_id < 0:
                continue
            rest = log.between(following(position), LATEST).first
            if rest is not None:
                found[log.name.name] = Position(rest.ledger_id, rest.entry_id - 1)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch. DataLossError if entries that the checkpoint needs are gone."""
        driver, begin, through = self._opened(), decode(start), decode(end)
        logs = driver.loop.run(lambda: self._held_logs(driver, begin))
        for name in sorted(through.keys() - {log.name.name for log in logs}):
            if through[name] > begin.get(name, EARLIEST):
                report_loss(f"{name} was deleted before all of it was read", self._options)
        found = []
        for log in logs:
            after, last = begin.get(log.name.name, EARLIEST), through.get(log.name.name, EARLIEST)
            if last <= after:
                continue
            self._require_rest(log, after)
            if last.ledger_id not in log.ledgers:
                require_kept(log, last, self._options)
            found.append(beyond(log, after, last))
        driver.loop.run(lambda: driver.buckets.of(found))
        return splits(found, self._options.split_bytes, {log.name: log for log in logs})

    def commit(self, end: dict[str, Any]) -> None:
        """Advance the cursor, if there is one. If the broker does not respond, trimming waits for a later commit."""
        driver = self._opened()
        if not self._options.cursor or driver.brokers is None:
            return
        try:
            driver.loop.run(lambda: self._move(driver, decode(end)))
        except QuireJobError as error:
            _log.warning(
                "could not advance the cursor %s; the next commit tries again: %s", self._options.cursor, error
            )

    async def _move(self, driver: _Driver, end: Offset) -> None:
        assert driver.brokers is not None
        with as_job_errors():
            logs = await logs_named(driver.cluster, self._options)
        for log in logs:
            topic, position = topic_of_log(log), end.get(log.name, EARLIEST)
            if topic is None or position == EARLIEST:
                continue
            after = Position(position.ledger_id, position.entry_id + 1)
            if not await move(driver.brokers, topic, self._options.cursor, after):
                _log.warning("the cursor %s of %s was removed; creating it again", self._options.cursor, topic)
                self._held.discard(log.name)

    async def _held_logs(self, driver: _Driver, begin: Offset) -> list[Log]:
        """Return the present state of the logs, after making cursors that keep it: before anything of it is planned."""
        logs = await driver.logs()
        made = False
        for log in logs:
            topic, after = topic_of_log(log.name), begin.get(log.name.name, EARLIEST)
            if topic is None or not self._options.cursor or driver.brokers is None or log.name.name in self._held:
                continue
            start = EARLIEST if after.ledger_id < 0 else Position(after.ledger_id, after.entry_id + 1)
            made_now = await hold(driver.brokers, topic, self._options.cursor, start)
            if made_now or log.name.name in self._held_early:
                made = True
                await self._require_kept_until_held(driver, driver.brokers, log.name, start)
            self._held.add(log.name.name)
        # List again: entries trimmed before the cursors existed are not in the new list.
        return await driver.logs() if made else logs

    def hold_early(self) -> None:
        """Make missing cursors at the beginning of the logs; the position that the query needs is checked later."""
        driver = self._opened()

        async def make() -> None:
            for name in await logs_named(driver.cluster, self._options):
                topic = topic_of_log(name)
                if topic is None or not self._options.cursor or driver.brokers is None:
                    continue
                if await hold(driver.brokers, topic, self._options.cursor, EARLIEST):
                    self._held_early.add(name.name)

        driver.loop.run(make)

    async def _require_kept_until_held(
        self, driver: _Driver, brokers: BrokerHttp, name: LogName, start: Position
    ) -> None:
        """Raise DataLossError if entries from `start` on may be gone, since no cursor kept them; remove the cursor
        then.

        If the cursor remained, the next start of the query would conclude that it had existed all the time.
        """
        if start == EARLIEST:
            return
        with as_job_errors():
            log = await snapshot(driver.cluster, name, None)
        try:
            require_kept(log, start, self._options)
        except DataLossError:
            topic = topic_of_log(name)
            assert topic is not None
            await release(brokers, topic, self._options.cursor)
            raise

    def stop(self) -> None:
        """Close the clients: the query ended."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _opened(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    # ---- in a task
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition, as a batch read does."""
        if isinstance(partition, Split):
            task_begins()
            yield from read_split(self._options, Filters(), partition, self._table)
