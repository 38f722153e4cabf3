"""Schedules reads: bounds the concurrent ones per bookie and per connection, and serves connections in turn.

Owns the waiting requests and the tasks that handle them. Does not depend on the kind of read. A connection whose client
does not read its responses gets no turns, and occupies no task, until it reads. The number of concurrent reads of one
connection also depends on the size of its last responses: four at first, and one while they are large.

A lane's first read starts a task, and a busy lane keeps up to `at_once_max` tasks, so pipelined reads do not need one
each. Responses may overtake each other; the protocol allows it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from quire_bookie.limits import READS_PER_TURN
from quire_bookie.server.requests.connections import Connection

R = TypeVar("R")


class _Queue(Generic[R]):
    """Holds the waiting reads of one connection."""

    __slots__ = ("answer_bytes", "at_work", "held_back", "listed", "waiting")

    def __init__(self, answer_bytes: int) -> None:
        self.answer_bytes = answer_bytes
        """Expected bytes of a response, from the last ones; halved by each smaller one."""
        self.waiting: deque[R] = deque()
        self.at_work = 0
        self.listed = False
        """Whether the connection is in the list of turns."""
        self.held_back = False
        """Whether the client does not read its responses."""


class ReadLane(Generic[R]):
    """Runs reads in turns. Lanes do not wait for each other: use a separate one for urgent reads."""

    def __init__(
        self,
        work: Callable[[Connection, R], Awaitable[int]],
        *,
        at_once_max: int,
        at_once_per_connection_max: int,
        bytes_per_connection_max: int,
    ) -> None:
        """`work` returns the bytes of its response."""
        self._bytes_per_connection_max = bytes_per_connection_max
        self._answer = work
        self._at_once_max = at_once_max
        self._at_once_per_connection_max = at_once_per_connection_max
        self._queues: WeakKeyDictionary[Connection, _Queue[R]] = WeakKeyDictionary()
        self._turns: deque[tuple[Connection, _Queue[R]]] = deque()
        self._workers = 0
        self._in_turn = 0
        """Reads begun in this loop iteration, by all tasks together."""
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, connection: Connection, request: R) -> None:
        """Queue a request; `work` is called in its turn."""
        queue = self._queues.get(connection)
        if queue is None:
            queue = self._queues[connection] = _Queue(self._bytes_per_connection_max // 4)
        queue.waiting.append(request)
        self._list(connection, queue)

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` without waiting for a turn; it is cancelled with the lane."""
        task = asyncio.get_running_loop().create_task(work, name="bookie reads")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drop all pending reads and accept no more."""
        self._closed = True
        self._turns.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _list(self, connection: Connection, queue: _Queue[R]) -> None:
        """Give the connection a turn if it has waiting reads and is within its bound."""
        full = queue.at_work >= self._at_once_per_connection_max or (
            queue.at_work * queue.answer_bytes >= self._bytes_per_connection_max
        )
        if not queue.waiting or queue.listed or queue.held_back or full or self._closed:
            return
        queue.listed = True
        self._turns.append((connection, queue))
        if self._workers < self._at_once_max:
            self._workers += 1
            self.beside(self._work())

    async def _work(self) -> None:
        """Process turns until none is left."""
        try:
            while self._turns:
                if self._in_turn >= READS_PER_TURN:
                    await asyncio.sleep(0)  # reads from memory never wait otherwise: let adds and their responses run
                    continue
                if not self._in_turn:
                    asyncio.get_running_loop().call_soon(self._next_turn)
                self._in_turn += 1
                connection, queue = self._turns.popleft()
                queue.listed = False
                if not (connection.takes_answers or connection.is_gone):
                    queue.held_back = True
                    self.beside(self._wait(connection, queue))
                    continue
                assert queue.waiting, "a connection with a turn has a waiting read"
                request = queue.waiting.popleft()
                queue.at_work += 1
                self._list(connection, queue)  # its next read, behind the other connections
                try:
                    size_bytes = await self._answer(connection, request)
                    queue.answer_bytes = max(size_bytes, queue.answer_bytes // 2)
                finally:
                    queue.at_work -= 1
                    assert queue.at_work >= 0
                    self._list(connection, queue)
        finally:
            self._workers -= 1
            assert self._workers >= 0

    def _next_turn(self) -> None:
        self._in_turn = 0

    async def _wait(self, connection: Connection, queue: _Queue[R]) -> None:
        await connection.wait_to_take_answers()
        queue.held_back = False
        self._list(connection, queue)
