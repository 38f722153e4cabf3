"""Converts runs of entries to Arrow record batches. Pure; copies each payload once."""

from array import array
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from quire_jobs.decode.columns import ENTRY_SCHEMA
from quire_jobs.source.entry_runs import Run
from quire_jobs.source.spans import LogName


def entry_batch(log: LogName, run: Run, columns: Sequence[str] = tuple(ENTRY_SCHEMA.names)) -> pa.RecordBatch:
    """Return one row per entry, with these columns of ENTRY_SCHEMA."""
    schema = pa.schema([ENTRY_SCHEMA.field(name) for name in columns])
    payloads = _payloads(run) if "payload" in columns else None
    arrays = [_column(name, log, run, payloads) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(name: str, log: LogName, run: Run, payloads: pa.Array | None) -> pa.Array:
    count = len(run)
    kind = ENTRY_SCHEMA.field(name).type
    if name == "topic":
        return pa.repeat(pa.scalar(log.topic, kind), count)
    if name == "partition":
        return pa.repeat(pa.scalar(log.partition, kind), count)
    if name == "ledger":
        return pa.repeat(pa.scalar(run.ledger_id, kind), count)
    if name == "entry":
        return _plain(kind, array("q", range(run.first, run.first + count)))
    if payloads is None:
        return _plain(kind, array("i", [len(entry) - run.head_bytes for entry in run.stored]))
    return payloads if name == "payload" else pc.binary_length(payloads)


def _payloads(run: Run) -> pa.Array:
    offsets, data = run.joined()
    return pa.Array.from_buffers(pa.binary(), len(run), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _plain(kind: pa.DataType, values: "array[int]") -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
