"""Reading a stream: offsets are positions, a micro-batch is what lies between two of them. Lives on the driver.

What every Spark asks alike; where the next micro-batch ends is asked in two ways: `stream_limited`, `stream_planned`.

Exactly what a checkpoint says is read, again after a crash too: what was confirmed once stays confirmed, even where
the bookies that are asked now have not heard of it. Nothing of an offset is ever taken back.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_jobs.errors import DataLossError, JobOptionsError, QuireJobError
from quire_jobs.source.bounds import beyond, check_positions, position_before, report_loss, require_kept, start_of
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.buckets import BucketCheck
from quire_jobs.source.catalog import logs_named, snapshot, snapshots, topic_of_log
from quire_jobs.source.cluster import Cluster, open_cluster, told
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
    """What the reader keeps open on the driver."""

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
        """What there is now."""
        with told():
            names = await logs_named(self.cluster, self._options)
            return await snapshots(self.cluster, names, self._options, self.brokers)

    def close(self) -> None:
        """Close all of it."""
        self.loop.run(self._closing.aclose)


class StreamReader(DataSourceStreamReader):
    """Pickled to the tasks before anything is open; what is open belongs to the driver's own instance."""

    def __init__(self, options: SourceOptions, table: "TablePlan | None" = None) -> None:
        """JobOptionsError for what only a batch read has."""
        for name in ("end_position", "end_ledger", "end_time"):
            if getattr(options, name) is not None:
                raise JobOptionsError(f"quire source: a stream has no end: leave out {name.replace('_', ' ')}")
        if options.ledgers:
            raise JobOptionsError("quire source: ledgers are for a batch; a stream follows a topic or managedLedger")
        if options.job_id:
            raise JobOptionsError("quire source: a stream holds its data by the option cursor, not by jobId")
        self._options = options
        self._table = table
        self._driver: _Driver | None = None
        self._held: set[str] = set()
        self._held_early: set[str] = set()
        """Logs whose cursors were made before anybody knew from where on they are needed."""

    # ---- on the driver
    def initialOffset(self) -> dict[str, str]:
        """Where a query without a checkpoint begins."""
        driver = self._opened()

        async def begin() -> Offset:
            with told():
                logs = await driver.logs()
                check_positions(logs, self._options)
                return {log.name.name: await self._begin(driver, log) for log in logs}

        return encode(driver.loop.run(begin))

    async def _begin(self, driver: _Driver, log: Log) -> Position:
        options = self._options
        if options.start_time is not None:
            return await position_before(log, options.start_time, EntryRuns(driver.cluster, options))
        start = start_of(log, options)
        if start == LATEST:
            return log.last or EARLIEST
        if start == EARLIEST or (options.start_ledger is not None and log.ledgers and start.ledger_id < log.ledgers[0]):
            return EARLIEST  # ids are of the cluster: this log may never have had a ledger so early
        return Position(start.ledger_id, start.entry_id - 1)

    @property
    def options_limit(self) -> Limit:
        """Of one micro-batch."""
        return Limit(self._options.max_entries_per_trigger or None, self._options.max_bytes_per_trigger or None)

    def ends(self) -> Offset:
        """Of what there is by now."""
        driver = self._opened()
        return {log.name.name: log.end for log in driver.loop.run(driver.logs)}

    def end_behind(self, begin: Offset, limit: Limit, target: Offset | None = None) -> Offset:
        """Of the micro-batch that begins there; never below it, nor behind `target`. DataLossError."""
        driver = self._opened()

        async def end() -> Offset:
            logs = await self._held_logs(driver, begin)
            return advanced(begin, [self._rest(log, begin, target) for log in logs], limit)

        return driver.loop.run(end)

    def _rest(self, log: Log, begin: Offset, target: Offset | None) -> Log:
        after = begin.get(log.name.name, EARLIEST)
        self._require_rest(log, after)
        through = LATEST if target is None else target.get(log.name.name, EARLIEST)
        return log.between(Position(after.ledger_id, after.entry_id + 1), through)

    def _require_rest(self, log: Log, after: Position) -> None:
        """DataLossError when what comes after may be gone. A cursor that was there all the time has kept it."""
        if after.ledger_id >= 0 and log.name.name not in self._held:
            require_kept(log, Position(after.ledger_id, after.entry_id + 1), self._options)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. DataLossError when a checkpoint asks for what is gone."""
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
        """Move the cursor, if there is one. A broker that does not answer only makes trimming wait."""
        driver = self._opened()
        if not self._options.cursor or driver.brokers is None:
            return
        try:
            driver.loop.run(lambda: self._move(driver, decode(end)))
        except QuireJobError as error:
            _log.warning("the cursor %s stays where it is until the next commit: %s", self._options.cursor, error)

    async def _move(self, driver: _Driver, end: Offset) -> None:
        assert driver.brokers is not None
        for log in await logs_named(driver.cluster, self._options):
            topic, position = topic_of_log(log), end.get(log.name, EARLIEST)
            if topic is None or position == EARLIEST:
                continue
            after = Position(position.ledger_id, position.entry_id + 1)
            if not await move(driver.brokers, topic, self._options.cursor, after):
                _log.warning("the cursor %s of %s was removed; it is made again", self._options.cursor, topic)
                self._held.discard(log.name)

    async def _held_logs(self, driver: _Driver, begin: Offset) -> list[Log]:
        """What there is, behind cursors at the beginning that keep it: made before anything of it is planned."""
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
        # What went before the cursors were there is not in the list that is read behind them.
        return await driver.logs() if made else logs

    def hold_early(self) -> None:
        """Make the cursors that are not there, at the beginning: where they are needed is asked later."""
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
        """DataLossError when what nobody held from `start` on may be gone; the cursor is taken back then.

        Left behind it would tell the next start of the query that it had been there all the time.
        """
        if start == EARLIEST:
            return
        with told():
            log = await snapshot(driver.cluster, name, None)
        try:
            require_kept(log, start, self._options)
        except DataLossError:
            topic = topic_of_log(name)
            assert topic is not None
            await release(brokers, topic, self._options.cursor)
            raise

    def stop(self) -> None:
        """The query ended."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _opened(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    # ---- in a task
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As a batch read."""
        if isinstance(partition, Split):
            task_begins()
            yield from read_split(self._options, Filters(), partition, self._table)
