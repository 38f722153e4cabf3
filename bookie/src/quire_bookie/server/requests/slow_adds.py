"""Says which part of an add took how long: the wait for space, the journal's queue, its write and sync, the response.

For the log of slow operations, and for the traces of chosen adds.

The journal notes the times of a whole group, so that an add costs nothing more than the comparison of its caller. An
add is answered in the loop iteration in which its group became durable: the last group of its journal is its own.
"""

from collections.abc import Sequence

from quire_bookie.env.slow_log import SlowLog, Value
from quire_bookie.env.tracing import Times
from quire_bookie.model import RunBatch
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ports import JournalPort
from quire_bookie.server.requests.slow_fields import slow_fields
from quire_bookie.server.requests.traced_adds import TracedAdds, shown
from quire_bookie.wire.messages import AddBatch, AddRequest


class SlowAdds:
    """Logs the slow adds of a bookie, and reports those that are traced; `after_s` as in `SlowLog`."""

    def __init__(self, log: SlowLog, journal: JournalPort, traced: TracedAdds | None = None) -> None:
        self.after_s = log.after_s
        self.traced = traced
        self._log = log
        self._journal = journal

    def trace_runs(self, connection: Connection, requests: Sequence[AddRequest], now_s: float) -> None:
        """Report the chosen entries of runs that are being answered."""
        assert self.traced is not None
        for request in requests:
            run = request.run
            if chosen := self.traced.chosen(run.ledger, run.first, len(run.entries)):
                of_add = self._parts_of(request, now_s)
                self.traced.report(chosen, connection.client, of_add, Times(request.arrived_s, now_s))

    def trace_batch(self, first: tuple[Connection, AddBatch], batch: RunBatch, now_s: float) -> None:
        """Report the chosen entries of a batch that was answered."""
        assert self.traced is not None
        connection, request = first
        if chosen := self.traced.batch(batch):
            of_add = parts(request.arrived_s, 0.0, self._journal.last_group_s(chosen[0][0]), now_s)
            self.traced.report(chosen, connection.client, of_add, Times(request.arrived_s, now_s))

    def run(self, connection: Connection, request: AddRequest, now_s: float) -> None:
        """Log a run that is being answered, for all that are answered with it on its connection."""
        run = request.run
        of_add = self._parts_of(request, now_s)
        fields = slow_fields(connection, run.ledger, run.first, len(run.entries), run.size_bytes, of_add)
        if self.traced is not None:
            chosen = self.traced.chosen(run.ledger, run.first, len(run.entries)) or [(run.ledger, run.first, 1)]
            fields |= shown(self.traced.report(chosen, connection.client, of_add, Times(request.arrived_s, now_s)))
        self._log.note("add", now_s - request.arrived_s, fields)

    def batch(self, first: tuple[Connection, AddBatch], batch: RunBatch, now_s: float) -> None:
        """Log runs that were handled and answered together, under the first of them."""
        connection, request = first
        row = batch.rows()[0]
        of_add = parts(request.arrived_s, 0.0, self._journal.last_group_s(row[0]), now_s)
        fields = slow_fields(connection, row[0], row[1], batch.entries, batch.size_bytes, of_add)
        if self.traced is not None:
            chosen = self.traced.batch(batch) or [(row[0], row[1], 1)]
            fields |= shown(self.traced.report(chosen, connection.client, of_add, Times(request.arrived_s, now_s)))
        self._log.note("add", now_s - request.arrived_s, fields)

    def _parts_of(self, request: AddRequest, now_s: float) -> dict[str, Value]:
        """Return the parts of the duration of a run that is being answered."""
        group = None if request.deferred_sync else self._journal.last_group_s(request.run.ledger)
        return parts(request.arrived_s, request.waited_s, group, now_s)


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
