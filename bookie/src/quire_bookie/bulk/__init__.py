"""Selects the steps over whole buffers: the native module if it is built, otherwise plain Python with equal results.

In the environment, `QUIRE_NATIVE=0` selects plain Python and `1` requires the native module; by default the native
module is used if available. Contains nothing but this choice. See docs/decisions/0004-native-module.md.
"""

import os
from types import ModuleType
from typing import TYPE_CHECKING

from quire_bookie.bulk import (
    plain,
    plain_acks,
    plain_adds,
    plain_deliveries,
    plain_flushes,
    plain_messages,
    plain_reads,
    plain_sends,
)


def _chosen() -> ModuleType:
    wanted = os.environ.get("QUIRE_NATIVE", "")
    if wanted == "0":
        return plain
    try:
        from quire_bookie.bulk import _native  # type: ignore[attr-defined]
    except ImportError:
        if wanted == "1":
            raise
        return plain
    found: ModuleType = _native
    return found


if TYPE_CHECKING:
    from quire_bookie.bulk.plain import (
        add_replies,
        encode_body,
        row_replies,
        store_entries,
        store_rows,
        take_add_rows,
        take_adds,
    )
    from quire_bookie.bulk.plain_acks import take_acks
    from quire_bookie.bulk.plain_adds import (
        check_batch,
        check_entries,
        count_batch,
        encode_adds,
        encode_copies,
        encode_stored,
        split_batch,
    )
    from quire_bookie.bulk.plain_deliveries import message_frames, plain_heads
    from quire_bookie.bulk.plain_flushes import (
        encode_runs,
        join_spans,
        ledger_runs,
        merge_blocks,
        place_runs,
        run_segments,
    )
    from quire_bookie.bulk.plain_messages import join_batch, join_payloads, message_columns
    from quire_bookie.bulk.plain_reads import batch_bodies, check_records, read_replies, take_reads
    from quire_bookie.bulk.plain_sends import encode_receipts, take_sends
else:
    _steps = _chosen()
    add_replies, encode_body = _steps.add_replies, _steps.encode_body
    store_entries, take_adds = _steps.store_entries, _steps.take_adds
    # An older native module lacks some of these steps; those are taken from plain Python.
    _rows = _steps if hasattr(_steps, "take_add_rows") else plain
    row_replies, store_rows, take_add_rows = _rows.row_replies, _rows.store_rows, _rows.take_add_rows
    _reads = _steps if hasattr(_steps, "take_reads") else plain_reads
    batch_bodies, check_records = _reads.batch_bodies, _reads.check_records
    read_replies, take_reads = _reads.read_replies, _reads.take_reads
    encode_adds = (_steps if hasattr(_steps, "encode_adds") else plain_adds).encode_adds
    _copies = _steps if hasattr(_steps, "encode_copies") else plain_adds
    check_entries, encode_copies = _copies.check_entries, _copies.encode_copies
    _stored = _steps if hasattr(_steps, "encode_stored") else plain_adds
    encode_stored, split_batch = _stored.encode_stored, _stored.split_batch
    _flushes = _steps if hasattr(_steps, "run_segments") else plain_flushes
    encode_runs, merge_blocks, run_segments = _flushes.encode_runs, _flushes.merge_blocks, _flushes.run_segments
    _ledgers = _steps if hasattr(_steps, "ledger_runs") else plain_flushes
    join_spans, ledger_runs, place_runs = _ledgers.join_spans, _ledgers.ledger_runs, _ledgers.place_runs
    _batches = _steps if hasattr(_steps, "check_batch") else plain_adds
    check_batch, count_batch = _batches.check_batch, _batches.count_batch
    _messages = _steps if hasattr(_steps, "join_batch") else plain_messages
    join_batch, join_payloads = _messages.join_batch, _messages.join_payloads
    message_columns = _messages.message_columns
    _deliveries = _steps if hasattr(_steps, "message_frames") else plain_deliveries
    message_frames, plain_heads = _deliveries.message_frames, _deliveries.plain_heads
    take_acks = (_steps if hasattr(_steps, "take_acks") else plain_acks).take_acks
    _sends = _steps if hasattr(_steps, "take_sends") else plain_sends
    encode_receipts, take_sends = _sends.encode_receipts, _sends.take_sends

IS_NATIVE = _chosen() is not plain
"""Whether the native module is in use; a bookie logs it when it starts."""

__all__ = [
    "IS_NATIVE",
    "add_replies",
    "batch_bodies",
    "check_batch",
    "check_entries",
    "check_records",
    "count_batch",
    "encode_adds",
    "encode_body",
    "encode_copies",
    "encode_receipts",
    "encode_runs",
    "encode_stored",
    "join_batch",
    "join_payloads",
    "join_spans",
    "ledger_runs",
    "merge_blocks",
    "message_columns",
    "message_frames",
    "place_runs",
    "plain_heads",
    "read_replies",
    "row_replies",
    "run_segments",
    "split_batch",
    "store_entries",
    "store_rows",
    "take_acks",
    "take_add_rows",
    "take_adds",
    "take_reads",
    "take_sends",
]
