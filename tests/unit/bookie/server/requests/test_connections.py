"""Tests of a connection: responses leave in one write, pauses have separate reasons, closing waits for responses."""

import asyncio
from typing import cast

import pytest

from quire_bookie.server.requests.connections import PAUSED_BY_ADDS, PAUSED_BY_REQUESTS, Connection, OpenConnections
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.security import ConnectionLimitSettings
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire.messages import ReadRun, Request
from tests.sim.loop import simulate


class Handler:
    """Records requests and calls."""

    def __init__(self) -> None:
        self.stats = BookieStats()
        self.requests: list[Request] = []
        self.to_flush: list[Connection] = []
        self.left: list[Connection] = []

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """Record requests."""
        for request in requests:
            self.requests += request.requests() if isinstance(request, ReadRun) else [request]
        connection.unanswered += sum(len(each.entries) if isinstance(each, ReadRun) else 1 for each in requests)

    def flush_soon(self, connection: Connection) -> None:
        """Record the connection."""
        self.to_flush.append(connection)

    def leaving(self, connection: Connection) -> None:
        """Record the connection."""
        self.left.append(connection)


class Transport:
    """Fakes a socket that tests control."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.reading = True
        self.closed = False
        self.unsent = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits."""

    def get_extra_info(self, name: str) -> str:
        """Return a peer name."""
        return "peer"

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.closed

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the client has not read."""
        return self.unsent

    def pause_reading(self) -> None:
        """Stop reading."""
        self.reading = False

    def resume_reading(self) -> None:
        """Continue reading."""
        self.reading = True

    def write(self, data: bytes) -> None:
        """Record one write."""
        self.writes.append(data)

    def writelines(self, buffers: list[bytes]) -> None:
        """Record one write of several buffers."""
        self.writes.append(b"".join(buffers))

    def close(self) -> None:
        """Close."""
        self.closed = True

    def abort(self) -> None:
        """Close at once."""
        self.closed = True


@pytest.fixture
def handler() -> Handler:
    """Return a new handler."""
    return Handler()


@pytest.fixture
def transport() -> Transport:
    """Return a new socket."""
    return Transport()


@pytest.fixture
async def connection(handler: Handler, transport: Transport) -> Connection:
    """Return a connection of handler and socket."""
    connection = Connection(handler, OpenConnections(), ServiceSettings(socket_write_high_bytes=1000))
    connection.connection_made(cast(asyncio.Transport, transport))
    return connection


READ = bytes.fromhex("000000140202000000000000000000070000000000000000")


async def test_the_responses_of_one_iteration_are_one_write(
    connection: Connection, handler: Handler, transport: Transport
) -> None:
    connection.data_received(READ * 3)
    for answer in (b"a", b"b", b"c"):
        connection.send((answer, b"-"))
    assert handler.to_flush == [connection]
    assert transport.writes == []
    connection.flush()
    assert transport.writes == [b"a-b-c-"]
    assert connection.unanswered == 0
    connection.data_received(READ)
    connection.send((b"d",))
    assert len(handler.to_flush) == 2


async def test_reading_continues_only_when_every_reason_to_pause_is_gone(
    connection: Connection, transport: Transport
) -> None:
    connection.pause(PAUSED_BY_ADDS)
    connection.pause(PAUSED_BY_REQUESTS)
    connection.pause_writing()
    connection.resume(PAUSED_BY_ADDS)
    connection.resume_writing()
    assert not transport.reading
    connection.resume(PAUSED_BY_REQUESTS)
    assert transport.reading


async def test_a_slow_reader_delays_large_responses(connection: Connection) -> None:
    assert connection.takes_answers
    connection.data_received(READ)
    connection.send((bytes(1000),))
    assert not connection.takes_answers
    connection.flush()
    assert connection.takes_answers
    connection.pause_writing()
    waiting = asyncio.ensure_future(connection.wait_to_take_answers())
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.resume_writing()
    await waiting


async def test_a_task_that_waits_for_a_slow_reader_is_woken_when_the_connection_is_lost(connection: Connection) -> None:
    connection.pause_writing()
    waiting = asyncio.ensure_future(connection.wait_to_take_answers())
    await asyncio.sleep(0)
    connection.connection_lost(None)
    await waiting
    assert connection.is_gone


async def test_a_broken_frame_closes_the_connection_after_pending_responses(
    connection: Connection, handler: Handler, transport: Transport
) -> None:
    connection.data_received(READ + bytes(4))
    assert len(handler.requests) == 1
    assert handler.stats.protocol_failures == 1
    assert not transport.closed
    connection.data_received(READ)
    assert len(handler.requests) == 1
    connection.send((b"answer",))
    connection.flush()
    assert transport.writes == [b"answer"]
    assert transport.closed


async def test_responses_to_a_client_that_is_gone_are_dropped(
    connection: Connection, handler: Handler, transport: Transport
) -> None:
    connection.data_received(READ)
    connection.connection_lost(None)
    connection.send((b"answer",))
    connection.flush()
    assert transport.writes == []
    assert connection.unanswered == 0
    assert handler.stats.connections_open == 0


async def test_a_lost_connection_drops_its_incomplete_frame(connection: Connection) -> None:
    connection.data_received(READ[:-4])
    assert connection._codec.held_bytes == len(READ) - 4
    connection.connection_lost(None)
    assert connection._codec.held_bytes == 0 and not connection._codec._straddler._parts


async def test_a_wait_for_open_connections_ends_when_the_last_one_is_gone() -> None:
    handler = Handler()
    every = OpenConnections()
    both = [Connection(handler, every, ServiceSettings()) for _ in range(2)]
    for each in both:
        each.connection_made(cast(asyncio.Transport, Transport()))
    waiting = asyncio.ensure_future(every.wait_until_none())
    both[0].connection_lost(None)
    await asyncio.sleep(0)
    assert not waiting.done()
    both[1].connection_lost(None)
    await waiting


async def test_open_connections_are_listed_in_the_order_of_their_arrival() -> None:
    handler, every = Handler(), OpenConnections()
    arrived = [Connection(handler, every, ServiceSettings()) for _ in range(50)]
    for each in arrived:
        each.connection_made(cast(asyncio.Transport, Transport()))
    arrived[20].connection_lost(None)
    assert list(every) == [*arrived[:20], *arrived[21:]]


async def test_a_closing_connection_never_resumes_reading(connection: Connection, transport: Transport) -> None:
    connection.pause(PAUSED_BY_REQUESTS)
    connection.data_received(READ + bytes(4))
    connection.resume(PAUSED_BY_REQUESTS)
    assert not transport.reading


def test_a_connection_without_a_request_stays_unless_more_than_half_of_those_allowed_are_open() -> None:
    guard, settings = Guard(ConnectionLimitSettings(connections_max=4)), ServiceSettings()

    def opened() -> tuple[Connection, Transport]:
        connection, transport = Connection(Handler(), OpenConnections(), settings, guard), Transport()
        connection.connection_made(cast(asyncio.Transport, transport))
        return connection, transport

    async def scenario() -> None:
        made = [opened(), opened()]
        await asyncio.sleep(10 * settings.first_request_s)
        assert [transport.closed for _, transport in made] == [False, False]
        made.append(opened())
        await asyncio.sleep(1.5 * settings.first_request_s)
        assert all(transport.closed for _, transport in made)
        for connection, _ in made:
            connection.connection_lost(None)

    simulate(lambda _: scenario(), seed=1)
