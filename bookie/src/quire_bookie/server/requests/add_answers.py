"""The OK answers of adds, gathered while a journal group is told of, and sent per connection.

Owns what was gathered in this turn of the loop. Never keeps anything beyond it: whoever ends the turn calls `send`.
With short runs on many connections the sending, encoding and timing of each run by itself was a quarter of its cost.
"""

import asyncio
from collections.abc import Callable, Sequence

from quire_bookie.model import RunBatch
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.settings import BookieStats
from quire_bookie.wire import server_codec, server_v2
from quire_bookie.wire.messages import AddBatch, AddRequest, Status


class AddAnswers:
    """See the module's text. `end_turn_soon` has `send` called at the end of this turn of the loop."""

    def __init__(self, stats: BookieStats, end_turn_soon: Callable[[], None]) -> None:
        self._latency = stats.add_seconds
        self._end_turn_soon = end_turn_soon
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._requests: list[AddRequest] = []

    def add(self, connection: Connection, request: AddRequest) -> None:
        """Every entry of the run is durable, or need not be."""
        if connection is not self._connection:
            if self._connection is None:
                self._end_turn_soon()
            else:
                self.send()
            self._connection = connection
        self._requests.append(request)

    def send_batch(self, gathered: Sequence[tuple[Connection, AddBatch]], batch: RunBatch, status: Status) -> None:
        """Every entry of the batch has this outcome. Its pieces are of the requests of `gathered`, one of each."""
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
            # What is handled together arrived in one turn of the loop.
            self._latency.observe(self._loop.time() - gathered[0][1].arrived_s, batch.entries)

    def send(self) -> None:
        """Give what was gathered to its connection."""
        connection = self._connection
        if connection is None:
            return
        requests, self._requests, self._connection = self._requests, [], None
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
        connection.send((server_codec.encode_ok_adds(requests),), answers)
