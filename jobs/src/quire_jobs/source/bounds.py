"""Applies the bounds of the options to snapshots. Rejects impossible bounds before any task starts."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_jobs.errors import DataLossError, JobOptionsError
from quire_jobs.source.entry_runs import EntryRuns
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.spans import Log
from quire_jobs.source.time_search import entries_before

_log = logging.getLogger("quire.jobs.source")


async def bounded(logs: Sequence[Log], options: SourceOptions, runs: EntryRuns) -> list[Log]:
    """Return the requested part of each log. JobOptionsError: a bound is outside the log. DataLossError: it was
    trimmed."""
    check_positions(logs, options)
    return [await _bounded(log, options, runs) for log in logs]


async def _bounded(log: Log, options: SourceOptions, runs: EntryRuns) -> Log:
    if options.end_at is not None:
        return await _through(log, dict(options.end_at).get(log.name.name, EARLIEST), options, runs)
    first = await _first(log, options, runs)
    last = options.end_position or LATEST
    if options.end_ledger is not None:
        last = Position(options.end_ledger, LATEST.entry_id)
    if options.end_time is not None:
        last = await position_before(log, options.end_time, runs)
    return log.between(first, last)


async def _first(log: Log, options: SourceOptions, runs: EntryRuns) -> Position:
    if options.start_after is not None:
        after = dict(options.start_after).get(log.name.name, EARLIEST)
        if after.ledger_id >= 0:
            require_kept(log, following(after), options)
        return following(after)
    if options.start_time is not None:
        return following(await position_before(log, options.start_time, runs))
    return start_of(log, options)


async def _through(log: Log, last: Position, options: SourceOptions, runs: EntryRuns) -> Log:
    """Return the part up to `last`, which a broker confirmed once, even if the bookies now report an earlier end."""
    first = await _first(log, options, runs)
    if last < first:
        return log.between(first, last)
    if last.ledger_id not in log.ledgers:
        require_kept(log, last, options)
    return beyond(log, Position(first.ledger_id, first.entry_id - 1), last)


def following(position: Position) -> Position:
    """Return the position of the next entry in the same ledger, whether it exists or not."""
    return Position(position.ledger_id, position.entry_id + 1)


def start_of(log: Log, options: SourceOptions) -> Position:
    """Return the position at which `startPosition` or `startLedger` makes the read begin.

    DataLossError when that position was trimmed.
    """
    if options.start_ledger is not None:
        return Position(options.start_ledger, 0)
    start = options.start_position or EARLIEST
    if start not in (EARLIEST, LATEST):
        require_kept(log, start, options)
    return start


async def position_before(log: Log, time: datetime, runs: EntryRuns) -> Position:
    """Return the position of the last entry published before `time`; EARLIEST without such an entry."""
    count = await entries_before(runs, log, int(time.timestamp() * 1000))
    return log.at(count - 1) if count else EARLIEST


def require_kept(log: Log, start: Position, options: SourceOptions) -> None:
    """Raise DataLossError if entries after `start` may be gone and `failOnDataLoss` is on; warn if it is off."""
    if not log.ledgers or start.ledger_id >= log.ledgers[0]:
        return
    begins = "is empty" if log.first is None else f"begins at {log.first}"
    text = f"{log.name} {begins}; ledger {start.ledger_id}, with position {start}, was trimmed"
    report_loss(text, options)


def report_loss(text: str, options: SourceOptions) -> None:
    """Raise DataLossError, or log a warning if `failOnDataLoss` is off."""
    if options.fail_on_data_loss:
        raise DataLossError(
            f"quire source: {text}; begin later, or read the remaining entries with failOnDataLoss=false"
        )
    _log.warning("%s; failOnDataLoss is off, so the job continues without it", text)


def check_positions(logs: Sequence[Log], options: SourceOptions) -> None:
    """Raise JobOptionsError for a bound outside the existing entries, or for one that needs a single managed ledger."""
    bounds = {"startPosition": options.start_position, "endPosition": options.end_position}
    for name, bound in bounds.items():
        if bound is None or bound in (EARLIEST, LATEST):
            continue
        if len(logs) != 1:
            raise JobOptionsError(
                f"quire source: {name} = {bound} needs one managed ledger, but the options "
                f"select {len(logs)}: name one partition, or use startTime and endTime"
            )
        if logs[0].ledgers and bound.ledger_id < logs[0].ledgers[0]:
            continue  # trimmed: `require_kept` decides, also for an empty log
        last = logs[0].last
        if last is None or bound > last:
            ends = "is empty" if last is None else f"ends at {last}"
            raise JobOptionsError(f"quire source: {name} = {bound} is outside {logs[0].name}, which {ends}")
    for name, ledger in (("startLedger", options.start_ledger), ("endLedger", options.end_ledger)):
        if ledger is None:
            continue
        known = [each for log in logs for each in log.ledgers]
        if (
            not known
            or (name == "startLedger" and ledger > max(known))
            or (name == "endLedger" and ledger < min(known))
        ):
            has = f"ledgers {min(known)} to {max(known)}" if known else "no ledgers"
            raise JobOptionsError(f"quire source: {name} = {ledger} is outside the existing ledgers: {has}")


def beyond(log: Log, after: Position, through: Position) -> Log:
    """Return the part after `after` up to and including `through`.

    An offset of a checkpoint was confirmed once, so it counts even if the bookies now report a lower last entry.
    """
    spans = []
    for span in log.spans:
        if span.ledger_id == through.ledger_id and span.last < through.entry_id and not span.closed_ms:
            span = replace(span, last=through.entry_id)
        spans.append(span)
    return replace(log, spans=tuple(spans)).between(Position(after.ledger_id, after.entry_id + 1), through)
