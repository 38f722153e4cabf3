"""Says which part of a slow add took long: the wait for space, the journal's queue, its write and sync, the response.

The journal notes the times of a whole group, so that an add costs nothing more than the comparison of its caller. An
add is answered in the loop iteration in which its group became durable: the last group of its journal is its own.
"""

from quire_bookie.env.slow_log import SlowLog, Value
from quire_bookie.model import RunBatch
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ports import JournalPort
from quire_bookie.server.requests.slow_fields import slow_fields
from quire_bookie.wire.messages import AddBatch, AddRequest


class SlowAdds:
    """Logs the slow adds of a bookie; `after_s` as in `SlowLog`."""

    def __init__(self, log: SlowLog, journal: JournalPort) -> None:
        self.after_s = log.after_s
        self._log = log
        self._journal = journal

    def run(self, connection: Connection, request: AddRequest, now_s: float) -> None:
        """Log a run that is being answered, for all that are answered with it on its connection."""
        run = request.run
        group = None if request.deferred_sync else self._journal.last_group_s(run.ledger)
        of_add = parts(request.arrived_s, request.waited_s, group, now_s)
        fields = slow_fields(connection, run.ledger, run.first, len(run.entries), run.size_bytes, of_add)
        self._log.note("add", now_s - request.arrived_s, fields)

    def batch(self, first: tuple[Connection, AddBatch], batch: RunBatch, now_s: float) -> None:
        """Log runs that were handled and answered together, under the first of them."""
        connection, request = first
        row = batch.rows()[0]
        of_add = parts(request.arrived_s, 0.0, self._journal.last_group_s(row[0]), now_s)
        fields = slow_fields(connection, row[0], row[1], batch.entries, batch.size_bytes, of_add)
        self._log.note("add", now_s - request.arrived_s, fields)


def parts(arrived_s: float, waited_s: float, group: tuple[float, float] | None, now_s: float) -> dict[str, Value]:
    """Return the parts of an add's duration. `group`: when its journal group was submitted and became durable, if any.

    `space_s`: waited for space in the write cache. `queue_s`: waited for the groups before it. `journal_s`: written and
    synced. `answer_s`: from there to the response.
    """
    if group is None or group[0] < arrived_s:
        return {"space_s": waited_s}
    submitted_s, durable_s = group
    return {
        "space_s": waited_s,
        "queue_s": max(0.0, submitted_s - arrived_s - waited_s),
        "journal_s": durable_s - submitted_s,
        "answer_s": now_s - durable_s,
    }
