"""Runs of entries as Arrow record batches. Pure; copies each payload once."""

from array import array
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa

from quire_jobs.decode.columns import ENTRY_SCHEMA
from quire_jobs.source.entry_runs import Run
from quire_jobs.source.spans import LogName


def entry_batch(log: LogName, run: Run, columns: Sequence[str] = tuple(ENTRY_SCHEMA.names)) -> pa.RecordBatch:
    """One row an entry, with these columns of ENTRY_SCHEMA."""
    schema = pa.schema([ENTRY_SCHEMA.field(name) for name in columns])
    arrays = [_column(name, log, run) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(name: str, log: LogName, run: Run) -> pa.Array:
    count = len(run.payloads)
    kind = ENTRY_SCHEMA.field(name).type
    if name == "topic":
        return pa.repeat(pa.scalar(log.topic, kind), count)
    if name == "partition":
        return pa.repeat(pa.scalar(log.partition, kind), count)
    if name == "ledger":
        return pa.repeat(pa.scalar(run.ledger_id, kind), count)
    if name == "entry":
        return _plain(kind, array("q", range(run.first, run.first + count)))
    if name == "size":
        return _plain(kind, array("i", map(len, run.payloads)))
    offsets = array("i", accumulate(map(len, run.payloads), initial=0))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(run.payloads))])


def _plain(kind: pa.DataType, values: "array[int]") -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
