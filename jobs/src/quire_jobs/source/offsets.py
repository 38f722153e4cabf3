"""Offsets of a stream, and the end of the next micro-batch. Pure.

An offset maps each managed ledger to the last entry read, as `ledger:entry`; `-1:-1` means none yet. Spark keeps it in
the checkpoint as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.spans import Log

Offset: TypeAlias = dict[str, Position]


def encode(offset: Mapping[str, Position]) -> dict[str, str]:
    """Return the offset as JSON for Spark."""
    return {name: f"{position.ledger_id}:{position.entry_id}" for name, position in sorted(offset.items())}


def decode(value: Mapping[str, str]) -> Offset:
    """Return the offset that Spark kept. JobOptionsError if another source wrote the checkpoint."""
    try:
        parts = {name: text.split(":") for name, text in value.items()}
        return {name: Position(int(ledger), int(entry)) for name, (ledger, entry) in parts.items()}
    except (AttributeError, ValueError) as error:
        raise JobOptionsError(
            f"quire source: the checkpoint holds the offset {value!r}, which another source wrote; use a new "
            "checkpointLocation"
        ) from error


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of one micro-batch; None for no limit."""

    entries: int | None = None
    size_bytes: int | None = None


def advanced(start: Mapping[str, Position], rest: Sequence[Log], limit: Limit) -> Offset:
    """Return the end of the next micro-batch after `start`. `rest`: the part of each log after `start`.

    Each log gets an equal share of the remaining limit. Logs with few entries come first, so that the others get what
    they leave over. At least one entry is taken if there is one, or the stream would never advance. The end is never
    below `start`.
    """
    end = dict(start)
    entries, size_bytes = limit.entries, limit.size_bytes
    waiting = sorted((log for log in rest if log.spans), key=lambda log: log.entries)
    for index, log in enumerate(waiting):
        others = len(waiting) - index
        share = Limit(
            None if entries is None else -(-entries // others), None if size_bytes is None else -(-size_bytes // others)
        )
        taken_entries, taken_bytes = _taken(log, share)
        if not taken_entries and end == dict(start) and others == 1:
            taken_entries = 1
        if not taken_entries:
            continue
        end[log.name.name] = max(end.get(log.name.name, EARLIEST), log.at(taken_entries - 1))
        entries = None if entries is None else max(0, entries - taken_entries)
        size_bytes = None if size_bytes is None else max(0, size_bytes - taken_bytes)
    return end


def _taken(log: Log, share: Limit) -> tuple[int, int]:
    """Return how many entries, and approximately how many bytes, of a log fit its share."""
    taken = taken_bytes = 0
    for span in log.spans:
        count = span.entries
        if share.entries is not None:
            count = min(count, share.entries - taken)
        if share.size_bytes is not None and span.size_bytes:
            count = min(count, (share.size_bytes - taken_bytes) * span.entries // span.size_bytes)
        taken += count
        taken_bytes += span.size_bytes * count // span.entries
        if count < span.entries:
            break
    return taken, taken_bytes
