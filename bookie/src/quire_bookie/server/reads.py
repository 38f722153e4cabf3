"""Reads of a bookie: from memory at once, the others in turns. Never writes, never waits for the journal except to
answer a fence.

Owns the two lanes (normal reads, and those with high priority, which must get through while a ledger is recovered),
the bound on what one connection has under way, and the counting of reads. What a read is answered with is
`read_answers`'.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from quire_bookie.limits import READS_PER_TURN
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.model import Buffer
from quire_bookie.server.connections import Connection
from quire_bookie.server.ports import StoragePort
from quire_bookie.server.read_answers import Answer, AnyRead, EndedPoll, ReadAnswers
from quire_bookie.server.read_lanes import ReadLane
from quire_bookie.server.request_bound import RequestBound
from quire_bookie.server.settings import BookieStats, ServiceSettings
from quire_bookie.wire import server_codec
from quire_bookie.wire.messages import (
    BatchReadRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    Status,
    V2Origin,
)

Durable: TypeAlias = asyncio.Future[BaseException | None]
"""Of a fencing read: done when its fence record is, with the error if it never will be."""


class Reads:
    """All reads of a bookie."""

    def __init__(self, storage: StoragePort, settings: ServiceSettings, stats: BookieStats) -> None:
        self._answers = ReadAnswers(storage, settings)
        self._settings = settings
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._in_turn = 0
        """Reads answered from memory in this turn of the loop."""
        self._fenced_at_once = 0
        self.bound = RequestBound(settings.reads_queued_per_connection)
        """Shared with everything else that may wait, adds and parked polls aside."""
        self._normal: ReadLane[AnyRead] = ReadLane(
            self._work,
            at_once_max=settings.reads_at_once_max,
            at_once_per_connection_max=settings.reads_at_once_per_connection,
        )
        self._urgent: ReadLane[AnyRead] = ReadLane(
            self._work,
            at_once_max=settings.priority_reads_at_once_max,
            at_once_per_connection_max=settings.reads_at_once_per_connection,
        )

    def handle(self, connection: Connection, request: AnyRead) -> None:
        """Answer a read: now if memory has it, else when it is its turn."""
        at_once = connection.takes_answers and self._in_turn < READS_PER_TURN
        if at_once and not isinstance(request, BatchReadRequest | ListEntriesRequest):
            answer = self._answers.from_memory(request)
            if answer is not None:
                if not self._in_turn:
                    self._loop.call_soon(self._next_turn)
                self._in_turn += 1
                self._send(connection, request, answer)
                return
        self.bound.count_in(connection)
        urgent = isinstance(request, ReadRequest | BatchReadRequest) and request.high_priority
        (self._urgent if urgent else self._normal).submit(connection, request)

    def handle_cached(self, connection: Connection, requests: Sequence[Request], start: int) -> int:
        """Answer the plain V2 reads from `start` on that memory has, in one go; how many those were.

        The same answers as `handle` gives, at a third of the cost: readers send reads in bursts. It ends at the first
        request of another kind, at what memory has not, and at the bounds of a turn and of the answers' bytes.
        """
        end = min(len(requests), start + READS_PER_TURN - self._in_turn)
        if end <= start or not connection.takes_answers:
            return 0
        answers, bytes_max = self._answers, self._settings.socket_write_high_bytes
        buffers: list[Buffer] = []
        entry_bytes = 0
        at = start
        while at < end and entry_bytes < bytes_max:
            request = requests[at]
            if type(request) is not ReadRequest or request.fence or type(request.origin) is not V2Origin:
                break
            data = answers.entry_in_memory(request)
            if data is None:
                break
            buffers += server_codec.encode_read(request, Status.OK, data)
            entry_bytes += len(data)
            at += 1
        count = at - start
        if count:
            if not self._in_turn:
                self._loop.call_soon(self._next_turn)
            self._in_turn += count
            connection.unanswered += count
            connection.send(buffers, count)
            stats = self._stats
            stats.reads += count
            stats.read_bytes += entry_bytes
            first = requests[start]
            assert type(first) is ReadRequest
            stats.read_seconds.observe(self._loop.time() - first.arrived_s, count)
        return count

    def _next_turn(self) -> None:
        self._in_turn = 0

    def handle_fenced(self, connection: Connection, request: ReadRequest | BatchReadRequest, durable: Durable) -> None:
        """Answer a fencing read once `durable` is done.

        It takes no turn: no read waits for the journal behind it. Only when there are many is the entry read after
        the sync, in turn: else the entries of all of them would be in memory together.
        """
        self.bound.count_in(connection)
        if self._fenced_at_once < self._settings.priority_reads_at_once_max and connection.takes_answers:
            self._fenced_at_once += 1
            self._urgent.beside(self._work_fenced(connection, request, durable))
        else:
            durable.add_done_callback(partial(self._read_fenced, connection, request))

    def refuse(self, connection: Connection, request: AnyRead, status: Status) -> None:
        """Answer without reading."""
        self._send(connection, request, self._answers.refusal(request, status))

    async def close(self) -> None:
        """Drop everything that is under way."""
        await self._normal.close()
        await self._urgent.close()

    async def _work(self, connection: Connection, request: AnyRead) -> None:
        try:
            if connection.is_gone:
                connection.send((), 1)
            else:
                self._send(connection, request, await self._answers.answer(request))
        finally:
            self.bound.count_out(connection)

    async def _work_fenced(
        self, connection: Connection, request: ReadRequest | BatchReadRequest, durable: Durable
    ) -> None:
        try:
            answer = await self._answers.answer(request)
            if await durable is not None:
                answer = self._answers.refusal(request, Status.IO_ERROR)
            self._send(connection, request, answer)
        finally:
            self._fenced_at_once -= 1
            self.bound.count_out(connection)

    def _read_fenced(self, connection: Connection, request: ReadRequest | BatchReadRequest, durable: Durable) -> None:
        """The fence of a read that was put off is durable, or never will be."""
        if durable.result() is None:
            self._urgent.submit(connection, request)
        else:
            self.refuse(connection, request, Status.IO_ERROR)
            self.bound.count_out(connection)

    # ---- answers
    def _send(self, connection: Connection, request: AnyRead, answer: Answer) -> None:
        connection.send(answer.buffers)
        self._stats.read_bytes += answer.entry_bytes
        failed = answer.status is not Status.OK
        match request:
            case ReadRequest() | BatchReadRequest():
                latency = self._count_read(request, answer.status)
                failed = failed and not (request.fence and answer.status is Status.NO_ENTRY)
                arrived_s = request.arrived_s
            case ReadLacRequest():
                self._stats.lac_reads += 1
                self._stats.lac_reads_failed += failed
                latency, arrived_s = self._stats.read_lac_seconds, request.arrived_s
            case EndedPoll():
                self._stats.long_polls_failed += failed
                latency, arrived_s = self._stats.long_poll_seconds, request.request.arrived_s
            case ListEntriesRequest():
                self._stats.entry_lists += 1
                self._stats.entry_lists_failed += failed
                return
        if not failed:
            latency.observe(self._loop.time() - arrived_s)

    def _count_read(self, request: ReadRequest | BatchReadRequest, status: Status) -> LatencyHistogram:
        stats = self._stats
        stats.reads += 1
        stats.batch_reads += isinstance(request, BatchReadRequest)
        if request.fence:
            # A ledger without entries was fenced all the same.
            stats.fences_failed += status not in (Status.OK, Status.NO_ENTRY)
            return stats.fence_seconds
        stats.reads_failed += status is not Status.OK
        return stats.read_seconds
