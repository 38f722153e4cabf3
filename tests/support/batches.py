"""Runs of many ledgers as one turn of a bookie's loop hands them on."""

from collections.abc import Sequence

from quire_bookie.journal.records import encode_body
from quire_bookie.model import Run, RunBatch, RunPiece, RunRow

KEY = bytes(20)


def batch_of(*pieces: Sequence[Run], key: bytes = KEY) -> RunBatch:
    """A batch with a piece for each sequence of runs."""
    made: list[RunPiece] = []
    for runs in pieces:
        rows: list[RunRow] = []
        parts: list[bytes] = []
        at = 0
        for run in runs:
            parts.append(encode_body([run]))
            end = at + len(parts[-1])
            rows.append((run.ledger, run.first, len(run.entries), run.lac, key, at, end))
            at = end
        made.append((b"".join(parts), rows))
    entries = sum(len(run.entries) for runs in pieces for run in runs)
    return RunBatch(made, entries, sum(run.size_bytes for runs in pieces for run in runs))
