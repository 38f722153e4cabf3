"""Schedules the reads of a bookie: those of cached entries run at once, others in turn. Never writes, and waits for the
journal only to answer a fence.

Owns the two lanes (normal reads, and high-priority reads, which must not wait while a ledger is recovered), the bound
on the requests of one connection, and the counting of reads. `read_answers` builds the responses.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.slow_log import SlowLog, Value
from quire_bookie.env.tracing import Times
from quire_bookie.limits import (
    READ_RUN_BYTES_PER_TURN,
    READ_RUN_ENTRIES_PER_TURN,
    READ_RUN_GAP_ENTRIES,
    READ_SHARE_BESIDE_ADDS,
    READS_PER_TURN,
)
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ports import StoragePort
from quire_bookie.server.requests.read_answers import READ_ANSWER_BYTES, Answer, AnyRead, EndedPoll, ReadAnswers
from quire_bookie.server.requests.read_lanes import ReadLane
from quire_bookie.server.requests.request_bound import RequestBound
from quire_bookie.server.requests.slow_fields import slow_fields
from quire_bookie.server.requests.traced_adds import Row, TracedAdds, shown
from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire.messages import (
    BatchReadRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadRun,
    Status,
)

Durable: TypeAlias = asyncio.Future[BaseException | None]
"""Done when the fence record of a fencing read is durable, or with the error if that failed."""


class Reads:
    """Schedules and counts all reads of a bookie."""

    def __init__(
        self,
        storage: StoragePort,
        settings: ServiceSettings,
        stats: BookieStats,
        memory: ConnectionMemory,
        slow: SlowLog,
        traced: TracedAdds | None = None,
    ) -> None:
        self._traced = traced
        self._slow = slow
        self._slow_s = slow.after_s
        self._answers = ReadAnswers(storage, settings)
        self._settings = settings
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._in_turn = 0
        """Reads answered from memory in this loop iteration."""
        self._bytes_in_turn = 0
        self._fenced_at_once = 0
        self.bound = RequestBound(settings.reads_queued_per_connection, memory)
        """Shared with all other requests that may wait, except adds and parked polls."""
        self._normal: ReadLane[AnyRead | ReadRun] = ReadLane(
            self._work,
            at_once_max=settings.reads_at_once_max,
            at_once_per_connection_max=settings.reads_at_once_per_connection,
            bytes_per_connection_max=settings.socket_write_high_bytes,
        )
        self._urgent: ReadLane[AnyRead | ReadRun] = ReadLane(
            self._work,
            at_once_max=settings.priority_reads_at_once_max,
            at_once_per_connection_max=settings.reads_at_once_per_connection,
            bytes_per_connection_max=settings.socket_write_high_bytes,
        )

    def handle(self, connection: Connection, request: AnyRead) -> None:
        """Answer a read: now if the entry is in memory, otherwise in its turn."""
        ready = (
            connection.takes_answers and self._in_turn < self._share(READS_PER_TURN) and not connection.memory.is_full
        )
        if ready and not isinstance(request, ListEntriesRequest):
            if isinstance(request, BatchReadRequest):
                answer = self._answers.batch_from_memory(request)
            else:
                answer = self._answers.from_memory(request)
            if answer is not None:
                self._count_turn(answer.entries, answer.entry_bytes)
                self._send(connection, request, answer)
                return
        self.bound.count_in(connection)
        urgent = isinstance(request, ReadRequest | BatchReadRequest) and request.high_priority
        (self._urgent if urgent else self._normal).submit(connection, request)

    def handle_run(self, connection: Connection, run: ReadRun) -> None:
        """Answer plain reads: now those of entries in memory, and the others in their turn.

        Gives the same responses as `handle` at a fraction of the cost: readers send reads in bursts. Reads of other
        entries wait in pieces with ascending ids, so that entries loaded with the first of a piece are sent together.
        """
        entries, at, end = run.entries, 0, len(run.entries)
        while at < end:
            at += self._answer_run(connection, run, at)
            if at >= end:
                return
            stop = at + 1
            while stop < end and 0 < entries[stop] - entries[stop - 1] <= READ_RUN_GAP_ENTRIES:
                stop += 1
            if stop == at + 1:
                self.handle(connection, run.request(at))
            else:
                self.bound.count_in(connection, stop - at)
                self._normal.submit(connection, run.part(at, stop))
            at = stop

    def _answer_run(self, connection: Connection, run: ReadRun, at: int) -> int:
        """Answer the reads of a run from index `at` on whose entries are in memory; return their number.

        Stops at the bounds of a loop iteration and of the response bytes.
        """
        end = min(len(run.entries), at + self._share(READ_RUN_ENTRIES_PER_TURN) - self._in_turn)
        bytes_left = self._share(READ_RUN_BYTES_PER_TURN) - self._bytes_in_turn
        bytes_max = min(self._settings.socket_write_high_bytes, bytes_left)
        if end <= at or bytes_max <= 0 or connection.memory.is_full or not connection.takes_answers:
            return 0
        answers, count = self._answers.run_from_memory(run, at, end, bytes_max)
        assert 0 <= count <= end - at, "a run is answered in order"
        if count:
            size_bytes = sum(map(len, answers))
            self._count_turn(count, size_bytes)
            connection.send(answers, count)
            stats = self._stats
            stats.reads += count
            stats.read_bytes += size_bytes - count * READ_ANSWER_BYTES
            took_s = self._loop.time() - run.arrived_s
            stats.read_seconds.observe(took_s, count)
            if took_s >= self._slow_s:
                fields = slow_fields(connection, run.ledger, run.entries[at], count, size_bytes, {})
                self._slow.note("read", took_s, fields)
        return count

    def _count_turn(self, reads: int, size_bytes: int) -> None:
        """Count reads answered from memory in this loop iteration."""
        if not self._in_turn:
            self._loop.call_soon(self._next_turn)
        self._in_turn += reads
        self._bytes_in_turn += size_bytes

    def _share(self, whole: int) -> int:
        """Return the current limit of a loop iteration; `whole` is the limit without adds in flight.

        An add waits for several iterations: to be appended, for its journal group, for its response. While adds are in
        flight, iterations are short, so that reads at full speed delay an add little; reads then need more iterations.
        """
        return whole // READ_SHARE_BESIDE_ADDS if self._stats.adds_in_flight_bytes else whole

    @property
    def _turn_is_full(self) -> bool:
        entries_max, bytes_max = self._share(READ_RUN_ENTRIES_PER_TURN), self._share(READ_RUN_BYTES_PER_TURN)
        return self._in_turn >= entries_max or self._bytes_in_turn >= bytes_max

    def _next_turn(self) -> None:
        self._in_turn = self._bytes_in_turn = 0

    def handle_fenced(self, connection: Connection, request: ReadRequest | BatchReadRequest, durable: Durable) -> None:
        """Answer a fencing read once `durable` is done.

        It occupies no turn, so no other read waits for the journal. When there are many fencing reads, the entry is
        read after the sync, in turn: otherwise the entries of all of them would be in memory at once.
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
        """Drop all pending reads."""
        await self._normal.close()
        await self._urgent.close()

    async def _work(self, connection: Connection, request: AnyRead | ReadRun) -> int:
        """Answer; return the bytes of the response, or of the largest one of a run."""
        if isinstance(request, ReadRun):
            return await self._work_run(connection, request)
        try:
            if not connection.is_gone:
                return await self._read(connection, request)
            connection.send((), 1)
            return 0
        finally:
            self.bound.count_out(connection)

    async def _read(self, connection: Connection, request: AnyRead) -> int:
        """Read once there is memory for the largest possible response, and send; return the entry's bytes."""
        reserved = self._answers.bytes_max(request)
        began_s = self._loop.time()
        await connection.memory.reserve(reserved)
        try:
            ready_s = self._loop.time()
            answer = await self._answers.answer(request)
            self._send(connection, request, answer, (began_s, ready_s))
            return answer.entry_bytes
        finally:
            connection.memory.give_back(reserved)

    async def _work_run(self, connection: Connection, run: ReadRun) -> int:
        """Read the entries that are not in memory one by one, and after each answer the following ones in memory."""
        at, end, largest = 0, len(run.entries), 0
        try:
            while at < end and not connection.is_gone:
                if not connection.takes_answers:
                    rest, at = run.part(at, end), end
                    self.bound.count_in(connection, len(rest.entries))
                    self._normal.submit(connection, rest)
                elif count := self._answer_run(connection, run, at):
                    at += count
                elif self._turn_is_full:
                    await asyncio.sleep(0)  # reads from memory never wait otherwise: let adds and their responses run
                else:
                    request = run.request(at)
                    at += 1
                    largest = max(largest, await self._read(connection, request))
            if at < end:
                connection.send((), end - at)
        finally:
            self.bound.count_out(connection, end)
        return largest

    async def _work_fenced(
        self, connection: Connection, request: ReadRequest | BatchReadRequest, durable: Durable
    ) -> None:
        reserved = self._answers.bytes_max(request)
        try:
            await connection.memory.reserve(reserved)
            try:
                answer = await self._answers.answer(request)
                if await durable is not None:
                    answer = self._answers.refusal(request, Status.IO_ERROR)
                self._send(connection, request, answer)
            finally:
                connection.memory.give_back(reserved)
        finally:
            self._fenced_at_once -= 1
            assert self._fenced_at_once >= 0
            self.bound.count_out(connection)

    def _read_fenced(self, connection: Connection, request: ReadRequest | BatchReadRequest, durable: Durable) -> None:
        """Read for a postponed fencing read whose fence is durable, or refuse it if the fence failed."""
        if durable.result() is None:
            self._urgent.submit(connection, request)
        else:
            self.refuse(connection, request, Status.IO_ERROR)
            self.bound.count_out(connection)

    # ---- answers
    def _send(
        self, connection: Connection, request: AnyRead, answer: Answer, times: tuple[float, float] | None = None
    ) -> None:
        """Send and count. `times`: when the turn of the request came, and when its read began."""
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
        took_s = self._loop.time() - arrived_s
        if not failed:
            latency.observe(took_s)
        if not isinstance(request, ReadRequest | BatchReadRequest):
            return
        traced = () if times is None else self._trace(connection, request, answer, took_s, times)
        if took_s >= self._slow_s:
            self._note_slow(connection, request, answer, took_s, times, traced)

    def _trace(
        self,
        connection: Connection,
        request: ReadRequest | BatchReadRequest,
        answer: Answer,
        took_s: float,
        times: tuple[float, float],
    ) -> Sequence[Row]:
        """Report the read if an entry of it is chosen; return that entry, if there is one."""
        traced = self._traced
        if traced is None or not traced.by_position:
            return ()
        chosen = traced.chosen(request.ledger, _first_of(request), max(1, answer.entries))
        if not chosen:
            return ()
        done = Times(request.arrived_s, request.arrived_s + took_s)
        return traced.report(chosen, connection.client, _parts(request, took_s, times), done, "read")

    def _note_slow(
        self,
        connection: Connection,
        request: ReadRequest | BatchReadRequest,
        answer: Answer,
        took_s: float,
        times: tuple[float, float] | None,
        traced: Sequence[Row],
    ) -> None:
        parts: dict[str, Value] = {"status": answer.status.name}
        if times is not None:
            parts |= _parts(request, took_s, times)
        first = _first_of(request)
        fields = slow_fields(connection, request.ledger, first, answer.entries, answer.entry_bytes, parts)
        self._slow.note("fence" if request.fence else "read", took_s, {**fields, **shown(traced)})

    def _count_read(self, request: ReadRequest | BatchReadRequest, status: Status) -> LatencyHistogram:
        stats = self._stats
        stats.reads += 1
        stats.batch_reads += isinstance(request, BatchReadRequest)
        if request.fence:
            # NO_ENTRY: the ledger has no entries, but was fenced.
            stats.fences_failed += status not in (Status.OK, Status.NO_ENTRY)
            return stats.fence_seconds
        stats.reads_failed += status is not Status.OK
        return stats.read_seconds


def _first_of(request: ReadRequest | BatchReadRequest) -> int:
    return request.first if isinstance(request, BatchReadRequest) else request.entry


def _parts(request: ReadRequest | BatchReadRequest, took_s: float, times: tuple[float, float]) -> dict[str, Value]:
    """Return the parts of a read's duration. `times`: when its turn came, and when there was memory for it."""
    began_s, ready_s = times
    return {
        "queue_s": began_s - request.arrived_s,
        "memory_s": ready_s - began_s,
        "disk_s": request.arrived_s + took_s - ready_s,
    }
