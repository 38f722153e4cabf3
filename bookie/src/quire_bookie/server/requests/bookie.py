"""Dispatches each request of a bookie to the module that answers it. Never touches a socket or a file.

Owns the state shared by these modules (condition, counters, ledgers being loaded) and the flush of responses, once per
loop iteration. The rules are in `adds`, `forces`, `fences`, `explicit_lacs`, `reads` and `long_polls`.
"""

import asyncio
from collections.abc import Callable

from quire_bookie.env.clock import SystemClock, WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.limits import REQUESTS_PER_TURN, WAITING_REQUEST_BYTES
from quire_bookie.model import LedgerId
from quire_bookie.server.requests.add_answers import AddAnswers
from quire_bookie.server.requests.adds import Adds
from quire_bookie.server.requests.bookie_info import BookieInfos
from quire_bookie.server.requests.condition import Condition
from quire_bookie.server.requests.connections import PAUSED_BY_TURN, Connection
from quire_bookie.server.requests.explicit_lacs import ExplicitLacs
from quire_bookie.server.requests.fences import Fences
from quire_bookie.server.requests.forces import Forces
from quire_bookie.server.requests.ledger_loading import LedgerLoading
from quire_bookie.server.requests.long_polls import LongPolls
from quire_bookie.server.requests.ports import JournalPort, StoragePort
from quire_bookie.server.requests.reads import Reads
from quire_bookie.server.requests.slow_adds import SlowAdds
from quire_bookie.server.requests.traced_adds import TracedAdds
from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire import server_codec
from quire_bookie.wire.messages import (
    AddBatch,
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadRun,
    RefusedRequest,
    Request,
    Status,
    WriteLacRequest,
)


class Bookie:
    """Dispatches requests to the handlers that answer them from journal and storage."""

    def __init__(
        self,
        journal: JournalPort,
        storage: StoragePort,
        settings: ServiceSettings,
        *,
        disk_space: Callable[[], tuple[int, int]],
        on_disk_full: Callable[[], None],
        clock: WallClock | None = None,
        memory: ConnectionMemory | None = None,
        traced: TracedAdds | None = None,
    ) -> None:
        self._memory = memory = memory or ConnectionMemory(settings.memory)
        self._to_flush: list[Connection] = []
        self._turn_ends = False
        self._in_turn = 0
        """Requests handled in this loop iteration, except batched adds and runs of reads."""
        self._waiting: dict[Connection, list[Request]] = {}
        """Requests that wait for another loop iteration, in the order of the connections' turns."""
        self._loop = asyncio.get_running_loop()
        self.stats = stats = BookieStats()
        self._condition = condition = Condition(on_disk_full)
        self._loading = loading = LedgerLoading(journal, storage, stats)
        self.slow = slow = SlowLog(settings.slow)
        self._reads = Reads(storage, settings, stats, memory, slow, traced)
        polls = LongPolls(settings, stats, loading, self._reads, clock or SystemClock())
        self._long_polls = polls
        self._forces = Forces(journal, storage, stats, condition, loading, self._reads.bound)
        answers = AddAnswers(stats, self._end_turn_soon, SlowAdds(slow, journal, traced))
        self._adds = Adds(journal, storage, settings, stats, condition, loading, polls, self._forces, answers, memory)
        self._fences = Fences(journal, storage, stats, condition, loading, self._reads, polls)
        self._infos = BookieInfos(storage, stats, condition, loading, self._reads.bound, disk_space)
        self._explicit_lacs = ExplicitLacs(journal, storage, stats, condition, loading, polls, self._reads.bound)

    @property
    def poisoned(self) -> bool:
        """Whether the journal failed: no add or fence is acknowledged any more."""
        return self._condition.poison is not None

    @property
    def read_only(self) -> bool:
        """Whether normal adds and explicit LACs are refused."""
        return self._condition.read_only

    @read_only.setter
    def read_only(self, read_only: bool) -> None:
        self._condition.read_only = read_only

    @property
    def accepts_high_priority(self) -> bool:
        """Whether adds with high priority are accepted while read-only."""
        return self._condition.accepts_high_priority

    @accepts_high_priority.setter
    def accepts_high_priority(self, accepts: bool) -> None:
        self._condition.accepts_high_priority = accepts

    def poison(self, error: BaseException) -> None:
        """Answer every add and fence with EIO from now on: the journal failed."""
        self._condition.poison = error
        self._adds.retry()

    def space_freed(self) -> None:
        """Accept the adds that wait for space in the write cache, as far as they fit now."""
        self._adds.retry()

    def ledger_deleted(self, ledger: LedgerId) -> None:
        """End the long polls of a ledger that storage has deleted."""
        self._long_polls.end_ledger(ledger)

    async def close(self) -> None:
        """Stop handling requests. Pending responses are lost: drain the connections first."""
        self._adds.close()
        self._long_polls.close()
        await self._reads.close()
        await self._forces.close()
        await self._loading.close()

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """Handle the requests of one buffer in order; those beyond the limit of a loop iteration in later ones."""
        waiting = self._waiting.get(connection) if self._waiting else None
        if waiting is not None:
            waiting += requests
            self._memory.hold(len(requests) * WAITING_REQUEST_BYTES)
        else:
            left = self._work(connection, requests)
            if left < len(requests):
                self._postpone(connection, requests[left:])

    def _work(self, connection: Connection, requests: list[Request]) -> int:
        """Handle requests in order; return the index of the first that must wait for another loop iteration."""
        now_s = self._loop.time()
        at, end = 0, len(requests)
        while at < end:
            request = requests[at]
            if type(request) is AddBatch:
                request.arrived_s = now_s
                connection.unanswered += request.entries
                self._adds.gather(connection, request)
                at += 1
                continue
            if self._in_turn >= REQUESTS_PER_TURN:
                return at
            if not self._in_turn:
                self._loop.call_soon(self._next_turn)
            self._in_turn += 1
            self._adds.settle()
            if type(request) is AddRequest:
                request.arrived_s = now_s
                connection.unanswered += len(request.run.entries)
                self._adds.handle(connection, request)
            elif type(request) is ReadRun:
                request.arrived_s = now_s
                connection.unanswered += len(request.entries)
                self._handle_run(connection, request)
            else:
                connection.unanswered += 1
                self._handle_other(connection, request, now_s)
            at += 1
        return end

    def _postpone(self, connection: Connection, requests: list[Request]) -> None:
        connection.unanswered += 1  # so that the connection does not count as answered if the client sends EOF
        connection.pause(PAUSED_BY_TURN)
        self._waiting[connection] = requests
        self._memory.hold(len(requests) * WAITING_REQUEST_BYTES)

    def _next_turn(self) -> None:
        """Handle the waiting requests of each connection in turn; requests that arrive meanwhile queue behind them."""
        self._in_turn = 0
        while self._waiting and self._in_turn < REQUESTS_PER_TURN:
            connection = next(iter(self._waiting))
            requests = self._waiting.pop(connection)
            self._memory.let_go(len(requests) * WAITING_REQUEST_BYTES)
            left = self._work(connection, requests)
            connection.unanswered -= 1
            if left < len(requests):
                self._postpone(connection, requests[left:])
            else:
                connection.resume(PAUSED_BY_TURN)
                connection.close_if_answered()

    def leaving(self, connection: Connection) -> None:
        """End the long polls of a connection whose client sends nothing more, or is gone."""
        self._long_polls.end_connection(connection)

    def flush_soon(self, connection: Connection) -> None:
        """Flush the connection once this loop iteration has collected its responses."""
        self._to_flush.append(connection)
        self._end_turn_soon()

    def _end_turn_soon(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._adds.send_answers()
        self._turn_ends = False
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.flush()
        self._adds.retry()

    def _handle_other(self, connection: Connection, request: Request, now_s: float) -> None:
        match request:
            case ReadRequest() | BatchReadRequest():
                request.arrived_s = now_s
                self._handle_read(connection, request)
            case ReadLacRequest() | ListEntriesRequest():
                request.arrived_s = now_s
                self._reads.handle(connection, request)
            case WriteLacRequest():
                request.arrived_s = now_s
                self._explicit_lacs.handle(connection, request)
            case ForceRequest():
                request.arrived_s = now_s
                self._forces.handle(connection, request)
            case BookieInfoRequest():
                self._infos.handle(connection, request)
            case AuthRequest():
                connection.send((server_codec.encode_auth_disabled(request),))
            case RefusedRequest():
                self.stats.requests_refused += 1
                connection.send((request.answer,))

    def _handle_run(self, connection: Connection, run: ReadRun) -> None:
        if run.ledger >= 0:
            self._reads.handle_run(connection, run)
            return
        for request in run.requests():
            self._reads.refuse(connection, request, Status.BAD_REQUEST)

    def _handle_read(self, connection: Connection, request: ReadRequest | BatchReadRequest) -> None:
        if request.ledger < 0:
            self._reads.refuse(connection, request, Status.BAD_REQUEST)
        elif request.fence:
            self._fences.handle(connection, request)
        elif isinstance(request, BatchReadRequest) or request.previous_lac is None or request.timeout_ms is None:
            self._reads.handle(connection, request)
        else:
            self._long_polls.handle(connection, request, request.previous_lac, request.timeout_ms)
