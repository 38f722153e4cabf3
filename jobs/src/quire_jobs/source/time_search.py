"""Finds the first entry published at or after a time, by binary search, like a seek by time. Reads few entries.

Publish times come from clients' clocks and are not quite ordered, so entries near the time may be on either side.
"""

from quire_bookie.errors import PeerProtocolError
from quire_broker.wire.entry import peek
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.entry_runs import EntryRuns
from quire_jobs.source.spans import Log


async def entries_before(runs: EntryRuns, log: Log, time_ms: int) -> int:
    """Return the number of entries before that one; all entries if none was published so late."""
    low, high = 0, log.entries
    while low < high:
        middle = (low + high) // 2
        position = log.at(middle)
        span = next(span for span in log.spans if span.ledger_id == position.ledger_id)
        data = await runs.one(span, position.entry_id)
        try:
            published_ms = peek(data).publish_time_ms
        except PeerProtocolError as error:
            raise JobOptionsError(
                f"quire source: entry {position} of {log.name} is not a message and has "
                "no publish time: use positions or ledgers as bounds"
            ) from error
        if published_ms >= time_ms:
            high = middle
        else:
            low = middle + 1
    return low
