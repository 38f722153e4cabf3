"""The work of one Spark task: entries of its split to record batches, in order. Uses a few `batch_bytes` of memory."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow as pa

from quire_jobs.decode.messages import MessageDecoder
from quire_jobs.source.batches import entry_batch
from quire_jobs.source.cluster import as_job_errors
from quire_jobs.source.columns import arrow_schema
from quire_jobs.source.entry_runs import EntryRuns, Run
from quire_jobs.source.filters import Filters
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.options import Mode, SourceOptions
from quire_jobs.source.spans import Split
from quire_jobs.source.task_cluster import task_cluster

if TYPE_CHECKING:
    from quire_jobs.decode.table import TableDecoder, TablePlan

_LOOK_BACK_STEP = 100


def read_split(
    options: SourceOptions, filters: Filters, split: Split, table: "TablePlan | None" = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, in the columns of the options. `table`: the plan of mode table.

    Raises DataLossError, SourceUnavailableError, UndecodableError, QuireJobError.
    """
    columns = arrow_schema(options, table).names
    runs = shared_loop().iterate(lambda: _runs(options, split))
    if options.mode is Mode.ENTRIES:
        for run in runs:
            yield filters.apply(entry_batch(split.log, run, columns))
        return
    decoder = MessageDecoder(None if table is not None else columns, before=lambda: _before(options, split))
    typed = None if table is None else _typed(table, options)
    for run in runs:
        for batch in decoder.messages(entry_batch(split.log, run)):
            found = filters.apply(batch)
            yield found if typed is None else typed.rows(found).select(columns)


def _typed(table: "TablePlan", options: SourceOptions) -> "TableDecoder":
    from quire_jobs.decode.table import TableDecoder  # imports the schema readers, which other modes do not need

    return TableDecoder(table, fail=options.fail_on_undecodable)


async def _runs(options: SourceOptions, split: Split) -> AsyncGenerator[Run, None]:
    async with task_cluster(options) as cluster:
        with as_job_errors():
            async with aclosing(EntryRuns(cluster, options).of(split.log, split.spans)) as runs:
                async for run in runs:
                    yield run


def _before(options: SourceOptions, split: Split) -> Iterator[memoryview | bytes]:
    """Yield the entries before the split, latest first."""
    for run in shared_loop().iterate(lambda: _runs_back(options, split)):
        for payload in reversed(run.payloads):
            yield memoryview(payload)


async def _runs_back(options: SourceOptions, split: Split) -> AsyncGenerator[Run, None]:
    async with task_cluster(options) as cluster:
        reader = EntryRuns(cluster, options)
        with as_job_errors():
            for span in split.before:
                last = span.last
                while last >= span.first:
                    part = span.cut(last - _LOOK_BACK_STEP + 1, last)
                    assert part is not None
                    found = [run async for run in reader.of(split.log, [part])]
                    for run in reversed(found):
                        yield run
                    last = part.first - 1
