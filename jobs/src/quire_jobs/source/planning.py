"""Plans a batch read on the driver: names, snapshots, bounds, cursors, tasks. Reads metadata, few entries, an index."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from quire_bookie.errors import NoSuchLedgerError
from quire_broker.managed_ledger.position import EARLIEST
from quire_jobs.errors import QuireJobError
from quire_jobs.source.bounds import bounded
from quire_jobs.source.broker_http import BrokerHttp
from quire_jobs.source.buckets import BucketCheck
from quire_jobs.source.catalog import logs_named, snapshots, topic_of_log
from quire_jobs.source.cluster import as_job_errors, open_cluster
from quire_jobs.source.entry_runs import EntryRuns
from quire_jobs.source.filters import Filters
from quire_jobs.source.options import Mode, SourceOptions
from quire_jobs.source.spans import Log, Split, splits
from quire_jobs.source.topic_cursors import hold, job_cursor, release

if TYPE_CHECKING:
    from quire_jobs.decode.table import TablePlan

_PLANS_MAX = 3


async def plan(options: SourceOptions, filters: Filters) -> list[Split]:
    """Return the tasks. Raises JobOptionsError, NotFoundError, DataLossError, SourceUnavailableError."""
    async with AsyncExitStack() as closing:
        cluster = await closing.enter_async_context(open_cluster(options))
        brokers = await closing.enter_async_context(BrokerHttp(options.http)) if options.http else None
        closing.enter_context(as_job_errors())
        runs = EntryRuns(cluster, options)
        for attempt in range(_PLANS_MAX):
            known = await logs_named(cluster, options)
            names = [name for name in known if filters.wants(name)]
            if known and not names:
                return []
            full = await snapshots(cluster, names, options, brokers)
            try:
                logs = await bounded(full, options, runs)
                if brokers is not None and options.job_id:
                    await _hold(brokers, logs, options)
                    # Take the snapshots again: entries trimmed before the cursors existed are not in the new list.
                    full = await snapshots(cluster, names, options, brokers)
                    logs = await bounded(full, options, runs)
            except NoSuchLedgerError:
                if attempt == _PLANS_MAX - 1:
                    raise
                continue  # trimmed between the list and the search by time: a new list omits it
            break
        pruned = [filters.prune(log, options.time_tolerance_s) for log in logs]
        await BucketCheck(cluster.tier).of(pruned)
        return splits(pruned, options.split_bytes, {log.name: log for log in full})


async def _hold(brokers: BrokerHttp, logs: list[Log], options: SourceOptions) -> None:
    """Make the cursor at the beginning of each log, even if the read begins later in it.

    Without subscriptions brokers keep everything. A first cursor in the middle of a log would make them trim the
    entries before it. A cursor at the beginning also keeps the first chunks of chunked messages.
    """
    for log in logs:
        topic = topic_of_log(log.name)
        if topic is not None and log.first is not None:
            await hold(brokers, topic, job_cursor(options.job_id), EARLIEST)


async def plan_columns(options: SourceOptions) -> "TablePlan | None":
    """Return the plan of mode table from the schemas of all topics. TableSchemaError if they do not form one table."""
    if options.mode is not Mode.TABLE:
        return None
    from quire_bookie.env.chance import SystemChance
    from quire_bookie.env.clock import SystemClock
    from quire_broker.schemas.registry import SchemaRegistry
    from quire_broker.settings.managed_ledger import ManagedLedgerSettings
    from quire_jobs.decode.table import fetch_schemas, plan_table

    async with open_cluster(options) as cluster:
        with as_job_errors():
            settings = ManagedLedgerSettings(password=cluster.password)
            registry = SchemaRegistry(cluster.metadata, cluster.client, settings, SystemClock(), SystemChance())
            topics = [topic_of_log(name) for name in await logs_named(cluster, options)]
            return plan_table(await fetch_schemas(registry, [topic for topic in topics if topic is not None]))


async def hold_job(options: SourceOptions) -> None:
    """Make the cursors of `jobId` before planning: from then on nothing of the topics is trimmed.

    JobOptionsError, NotFoundError, SourceUnavailableError: some cursors may exist by then; `release_job` removes them.
    """
    async with open_cluster(options) as cluster, BrokerHttp(options.http) as brokers:
        for name in await logs_named(cluster, options):
            topic = topic_of_log(name)
            if topic is not None:
                await hold(brokers, topic, job_cursor(options.job_id), EARLIEST)


async def release_job(options: SourceOptions) -> None:
    """Remove the cursors of `jobId`. A failure for one topic does not prevent the others; the first one is raised."""
    failure: QuireJobError | None = None
    async with open_cluster(options) as cluster, BrokerHttp(options.http) as brokers:
        for name in await logs_named(cluster, options):
            topic = topic_of_log(name)
            if topic is None:
                continue
            try:
                await release(brokers, topic, job_cursor(options.job_id))
            except QuireJobError as error:
                failure = failure or error
    if failure is not None:
        raise failure
