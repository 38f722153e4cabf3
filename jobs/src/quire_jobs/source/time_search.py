"""Which entry was the first published at a time or later, by halving, as a seek by time does. Reads a few entries.

Clients' clocks give publish times, so they are not quite in order: entries around the time may fall on either side.
"""

from quire_bookie.errors import PeerProtocolError
from quire_broker.wire.entry import peek
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.entry_runs import EntryRuns
from quire_jobs.source.spans import Log


async def entries_before(runs: EntryRuns, log: Log, time_ms: int) -> int:
    """How many entries of the log come before that one; all of them when none was published so late."""
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
                f"quire source: entry {position.ledger_id}:{position.entry_id} of {log.name} has no publish time, it "
                "is no message: bound it by positions or ledgers"
            ) from error
        if published_ms >= time_ms:
            high = middle
        else:
            low = middle + 1
    return low
