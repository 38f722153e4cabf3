"""Offsets of a stream, and how far the next micro-batch goes. Pure.

An offset maps each managed ledger to the last entry that was read, as `ledger:entry`; `-1:-1`: none yet. Spark keeps it
in the checkpoint as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.spans import Log

Offset: TypeAlias = dict[str, Position]


def encode(offset: Mapping[str, Position]) -> dict[str, str]:
    """For Spark."""
    return {name: f"{position.ledger_id}:{position.entry_id}" for name, position in sorted(offset.items())}


def decode(value: Mapping[str, str]) -> Offset:
    """From Spark. JobOptionsError for a checkpoint that is none of ours."""
    try:
        parts = {name: text.split(":") for name, text in value.items()}
        return {name: Position(int(ledger), int(entry)) for name, (ledger, entry) in parts.items()}
    except (AttributeError, ValueError) as error:
        raise JobOptionsError(
            f"quire source: the checkpoint holds the offset {value!r}, which is not of this source; use a new "
            "checkpointLocation"
        ) from error


@dataclass(frozen=True, slots=True)
class Limit:
    """Of one micro-batch; None: no limit."""

    entries: int | None = None
    size_bytes: int | None = None


def advanced(start: Mapping[str, Position], rest: Sequence[Log], limit: Limit) -> Offset:
    """The end of the next micro-batch: from `start` on through what `rest` (what lies behind it) allows.

    Every log gets an equal share of what is left, those with little first, so that their leftovers go to the others. At
    least one entry when there is one, or nothing would ever move. Never below `start`.
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
    """Entries and about how many bytes of a log fit its share."""
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
