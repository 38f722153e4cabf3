"""Gathers the OK responses of adds while a journal group completes, and sends them per connection.

Owns the responses of this loop iteration, and never keeps any beyond it: `send` is called at its end. With short runs
on many connections, sending, encoding and timing each run separately took a quarter of its cost.
"""

import asyncio
from collections.abc import Callable, Sequence

from quire_bookie.model import RunBatch
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.slow_adds import SlowAdds
from quire_bookie.server.settings import BookieStats
from quire_bookie.wire import server_codec, server_v2
from quire_bookie.wire.messages import AddBatch, AddRequest, Status


class AddAnswers:
    """Gathers and sends OK responses. `end_turn_soon` schedules a call of `send` at the end of this loop iteration."""

    def __init__(self, stats: BookieStats, end_turn_soon: Callable[[], None], slow: SlowAdds) -> None:
        self._slow = slow
        self._slow_s = slow.after_s
        self._traced = slow.traced is not None and slow.traced.by_position
        self._latency = stats.add_seconds
        self._end_turn_soon = end_turn_soon
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._requests: list[AddRequest] = []

    def add(self, connection: Connection, request: AddRequest) -> None:
        """Gather the response to a run whose entries are durable, or need not be."""
        if connection is not self._connection:
            if self._connection is None:
                self._end_turn_soon()
            else:
                self.send()
            self._connection = connection
        self._requests.append(request)

    def send_batch(self, gathered: Sequence[tuple[Connection, AddBatch]], batch: RunBatch, status: Status) -> None:
        """Answer every entry of the batch with `status`. It has one piece for each request of `gathered`."""
        self.send()
        for (connection, request), (_records, rows) in zip(gathered, batch.pieces, strict=True):
            if rows is request.rows:
                count = request.entries
            elif rows:
                count = sum(row[2] for row in rows)
            else:
                continue
            connection.send((server_v2.encode_rows(rows, request.header, status),), count)
        if status is Status.OK:
            # Requests handled together arrived in one loop iteration.
            now_s = self._loop.time()
            took_s = now_s - gathered[0][1].arrived_s
            self._latency.observe(took_s, batch.entries)
            if took_s >= self._slow_s and batch.entries:
                self._slow.batch(gathered[0], batch, now_s)
            elif self._traced:
                self._slow.trace_batch(gathered[0], batch, now_s)

    def send(self) -> None:
        """Send the gathered responses on their connection."""
        connection = self._connection
        if connection is None:
            return
        requests, self._requests, self._connection = self._requests, [], None
        assert requests, "a connection is noted with its first request"
        now_s = self._loop.time()
        arrived_s = requests[0].arrived_s
        answers = together = 0
        for request in requests:
            if request.arrived_s != arrived_s:
                self._latency.observe(now_s - arrived_s, together)
                arrived_s, together = request.arrived_s, 0
            count = len(request.run.entries)
            together += count
            answers += count
        self._latency.observe(now_s - arrived_s, together)
        if now_s - requests[0].arrived_s >= self._slow_s:
            self._slow.run(connection, requests[0], now_s)
        elif self._traced:
            self._slow.trace_runs(connection, requests, now_s)
        connection.send((server_codec.encode_ok_adds(requests),), answers)
