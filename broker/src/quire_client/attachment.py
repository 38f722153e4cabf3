"""Keeps one producer or consumer attached to the broker that owns its topic: registers, and again after a loss.

    opening, reattaching  --registered-->  attached
    attached  --connection lost, or the broker closes it-->  reattaching
    any of them  --an error that no retry helps, or `reconnect_s` is over-->  failed
    any of them  --close-->  closed

A subclass decides about requests while it is not attached: a producer sends entries without a receipt again, in order.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from typing import Any

from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import QuireError
from quire_broker.errors import ServerError
from quire_broker.wire.kinds import Kind
from quire_client.brokers import Brokers
from quire_client.connection import Connection
from quire_client.errors import (
    BrokerRefusedError,
    ClosedError,
    ConnectionLostError,
    NoBrokerError,
    UnconfirmedError,
)

_NOT_NOW = frozenset(
    {
        ServerError.METADATA,
        ServerError.PERSISTENCE,
        ServerError.SERVICE_NOT_READY,
        ServerError.TOO_MANY_REQUESTS,
        ServerError.PRODUCER_BLOCKED_QUOTA_ERROR,
    }
)
"""Answers after which another attempt may succeed."""
_STILL_THERE = frozenset({ServerError.PRODUCER_BUSY, ServerError.CONSUMER_BUSY})
"""Answers that also mean: the broker has not noticed yet that our former connection ended."""


def _closed_at_once(topic: str) -> ConnectionLostError:
    """Return the error of what was closed between the answer of the broker and our task: the topic may move."""
    error = ConnectionLostError(f"{topic}: the broker closed it at once")
    error.code = ServerError.SERVICE_NOT_READY
    return error


class Attachment(ABC):
    """One producer or consumer of one topic."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self.topic = topic
        self._brokers = brokers
        self._connection: Connection | None = None
        self._number = 0
        self._error: BrokerRefusedError | None = None
        self._task: asyncio.Task[None] | None = None
        self._attaching = False
        self._attached_at_s = -math.inf
        self._backoff = Backoff(brokers.options.backoff_s, brokers.chance)
        self._loop = asyncio.get_running_loop()

    @property
    def error(self) -> BrokerRefusedError | None:
        """Why it is finished, if it is."""
        return self._error

    @abstractmethod
    async def _register(self, connection: Connection, number: int) -> None:
        """Register under this id, and send unanswered entries and acknowledgements again. BrokerRefusedError."""

    @abstractmethod
    def _closing(self, number: int) -> tuple[Kind, str, Any]:
        """Return the request that closes this id on the broker: its type, its field and its body."""

    @abstractmethod
    def _detached(self) -> None:
        """Note that the connection is gone; it is being reattached."""

    @abstractmethod
    def _failed(self, error: BrokerRefusedError) -> None:
        """Fail what waits: it is finished. Called once."""

    async def open(self) -> None:
        """Register for the first time. An answer that asks for patience is repeated until the time is over.

        BrokerRefusedError.
        """
        try:
            await self._attach(self._brokers.options.answer_timeout_s, first=True)
        except BrokerRefusedError as error:
            self._finish(error)
            raise

    async def _attach(self, patience_s: float, *, first: bool) -> None:
        self._attaching = True
        try:
            await self._try_to_attach(self._loop.time() + patience_s, first)
        finally:
            self._attaching = False

    async def _try_to_attach(self, deadline_s: float, first: bool) -> None:
        while True:
            number = 0
            connection: Connection | None = None
            try:
                connection = await self._brokers.owner(self.topic)
                number = connection.next_id()
                connection.on_lost[number] = self._lost
                self._connection, self._number = connection, number
                await self._register(connection, number)
                if self._connection is connection:
                    self._attached_at_s = self._loop.time()
                    return
                self._detached()
                raise _closed_at_once(self.topic)
            except asyncio.CancelledError:
                if connection is not None:  # the broker may have registered the id, which nothing uses
                    self._leave(connection, number)
                    connection.begin(*self._closing(number)).add_done_callback(asyncio.Future.exception)
                raise
            except BrokerRefusedError as error:
                if connection is not None:
                    self._leave(connection, number)
                    if isinstance(error, UnconfirmedError):  # its late answer would attach an id that nothing uses
                        connection.fail(ConnectionLostError(str(error)))
                if not self._worth_a_retry(error, first) or self._loop.time() >= deadline_s:
                    raise
            await self._backoff.wait()

    @staticmethod
    def _worth_a_retry(error: BrokerRefusedError, first: bool) -> bool:
        if error.code in _NOT_NOW:
            return True
        return not first and (
            error.code in _STILL_THERE or isinstance(error, ConnectionLostError | NoBrokerError | UnconfirmedError)
        )

    def _leave(self, connection: Connection, number: int) -> None:
        """Forget the callbacks of an id."""
        connection.on_lost.pop(number, None)
        connection.on_writable.pop(number, None)
        for key in [key for key in connection.on_frame if key[1] == number]:
            del connection.on_frame[key]
        if self._connection is connection:
            self._connection = None

    def _lost(self, error: BrokerRefusedError) -> None:
        """Reattach: the connection ended, or the broker has closed the producer or consumer."""
        if self._connection is not None:
            self._leave(self._connection, self._number)
        if self._error is not None or self._attaching:
            return
        self._detached()
        patience_s = self._brokers.options.reconnect_s
        if patience_s <= 0:
            self._finish(error)
            return
        self._task = self._loop.create_task(self._reattach(patience_s))

    async def _reattach(self, patience_s: float) -> None:
        try:
            if self._loop.time() - self._attached_at_s > self._brokers.options.backoff_s[1]:
                self._backoff.reset()
            else:  # a topic in trouble must not end the connection of others in a loop without a pause
                await self._backoff.wait()
            await self._attach(patience_s, first=False)
        except BrokerRefusedError as error:
            self._finish(error)
        except QuireError as error:  # a file of credentials cannot be read
            self._finish(BrokerRefusedError(f"{self.topic}: {error}"))
        except Exception as error:  # what waits must not wait forever
            self._finish(BrokerRefusedError(f"{self.topic}: {error!r}"))
            raise

    def _finish(self, error: BrokerRefusedError) -> None:
        if self._error is None:
            self._error = error
            self._failed(error)

    async def _close_there(self, connection: Connection, number: int) -> None:
        """Close it on the broker, with which it is registered."""
        try:
            await connection.ask(*self._closing(number))
        except BrokerRefusedError:
            connection.on_lost.pop(number, None)  # it is closed there with its connection

    async def _end(self, what: str) -> None:
        """Be closed: what still waits fails."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])
        if self._connection is not None:
            self._leave(self._connection, self._number)
        self._finish(ClosedError(f"{self.topic}: the {what} is closed"))
