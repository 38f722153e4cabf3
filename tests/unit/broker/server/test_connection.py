"""The transport side: malformed bytes, back-pressure for independent reasons, keep-alive, life signs."""

import asyncio
from typing import Any

import pytest

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.errors import PeerProtocolError
from quire_broker import limits
from quire_broker.server.budget import PublishBudget
from quire_broker.server.connection import Connection
from quire_broker.wire import commands
from quire_broker.wire.frames import Frame
from quire_broker.wire.kinds import Kind
from tests.sim.loop import SimLoop, simulate


class Transport:
    """Records what a connection does to its socket."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.writes = 0
        self.reading = True
        self.closed = False
        self.aborted = False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.closed = self.aborted = True

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert low < high

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True


class Handler:
    """Records frames; refuses those that the test chooses."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.lost_count = 0
        self.refuse = False

    def handle(self, frame: Frame) -> None:
        if self.refuse:
            raise PeerProtocolError("no")
        self.frames.append(frame)

    def last_bytes(self, error: PeerProtocolError) -> bytes:
        return str(error).encode()

    def lost(self) -> None:
        self.lost_count += 1


def make(budget: PublishBudget | None = None, keep_alive_s: float = 30.0) -> tuple[Connection, Transport, Handler]:
    handler = Handler()
    connection = Connection(budget or PublishBudget(1000), 100_000, keep_alive_s, 10, lambda _: handler)
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport, handler


async def test_frames_are_passed_on_in_order() -> None:
    connection, _, handler = make()
    connection.data_received(commands.PING + commands.PONG[:3])
    connection.data_received(commands.PONG[3:])
    assert len(handler.frames) == 2
    assert connection.peer == "/127.0.0.1:5"


@pytest.mark.parametrize("data", [b"\xff" * 8, commands.PING])
async def test_a_peer_that_violates_the_protocol_is_disconnected(data: bytes) -> None:
    connection, transport, handler = make()
    handler.refuse = True
    connection.data_received(data)
    assert transport.closed
    assert connection.closed
    connection.data_received(commands.PING)
    connection.write(b"nothing")
    assert not handler.frames
    reason = "no" if data == commands.PING else "frame of 4294967295 bytes; the limit is 100000"
    assert transport.sent.decode() == reason


async def test_a_lost_connection_keeps_nothing_of_an_incomplete_frame() -> None:
    connection, _, _ = make()
    connection.data_received(bytes(2))
    assert connection._decoder.held_bytes == 2
    connection.connection_lost(None)
    assert connection._decoder.held_bytes == 0 and not connection._decoder._parts


async def test_reading_stops_above_the_pending_publishes_and_resumes_below_half() -> None:
    connection, transport, _ = make()
    connection.publish_taken(10, 10)
    assert not transport.reading
    connection.publish_done(4, 4)
    assert not transport.reading
    connection.publish_done(1, 1)
    assert transport.reading


async def test_reading_stops_while_the_receiver_of_the_frames_is_full() -> None:
    connection, transport, _ = make()
    connection.hold()
    connection.hold()
    assert not transport.reading
    connection.release()
    assert transport.reading


async def test_reading_stops_above_the_bytes_of_one_connection() -> None:
    connection, transport, _ = make(PublishBudget(1 << 40))
    connection.publish_taken(1, limits.CONNECTION_PUBLISH_BYTES_MAX)
    assert not transport.reading
    connection.publish_done(1, limits.CONNECTION_PUBLISH_BYTES_MAX)
    assert transport.reading


async def test_the_common_budget_stops_publishing_connections_and_frees_all_at_once() -> None:
    budget = PublishBudget(1000)
    (one, first, _), (two, second, _), (_, idle, _) = (make(budget) for _ in range(3))
    one.publish_taken(1, 900)
    two.publish_taken(1, 200)
    assert (first.reading, second.reading, idle.reading) == (True, False, True)
    one.publish_taken(1, 10)
    assert not first.reading
    two.publish_done(1, 200)
    assert (first.reading, second.reading) == (False, False)
    one.publish_done(1, 900)
    assert (first.reading, second.reading) == (True, True)
    assert (budget.used_bytes, budget.pauses) == (10, 2)


async def test_reasons_to_pause_are_independent() -> None:
    connection, transport, _ = make()
    connection.publish_taken(10, 10)
    connection.pause_writing()
    assert not connection.writable
    connection.publish_done(10, 10)
    assert not transport.reading
    connection.resume_writing()
    assert transport.reading
    assert connection.writable


async def test_waiting_writers_are_called_once_when_the_socket_drains_or_ends() -> None:
    connection, _, handler = make()
    heard: list[int] = []

    def wake() -> None:
        heard.append(1)

    connection.pause_writing()
    connection.on_writable(wake)
    connection.on_writable(wake)
    connection.resume_writing()
    connection.resume_writing()
    assert heard == [1]
    connection.on_writable(wake)
    connection.connection_lost(None)
    assert heard == [1, 1]
    assert handler.lost_count == 1
    assert not connection.writable


def test_a_silent_peer_is_pinged_and_then_disconnected() -> None:
    async def scenario(loop: SimLoop) -> tuple[bytes, bool, bool]:
        _, transport, _ = make(keep_alive_s=30.0)
        await asyncio.sleep(45)
        pinged, closed = bytes(transport.sent), transport.closed
        await asyncio.sleep(30)
        return pinged, closed, transport.closed

    assert simulate(scenario, seed=1) == (commands.PING, False, True)


def test_an_active_peer_is_not_pinged() -> None:
    async def scenario(loop: SimLoop) -> tuple[bytes, bool]:
        connection, transport, _ = make(keep_alive_s=30.0)
        for _ in range(20):
            await asyncio.sleep(10)
            connection.data_received(commands.PONG)
        closed, sent = transport.closed, bytes(transport.sent)
        connection.close()
        connection.connection_lost(None)
        return sent, closed

    assert simulate(scenario, seed=1) == (b"", False)


def test_a_peer_from_which_we_do_not_read_is_not_silent() -> None:
    async def scenario(loop: SimLoop) -> bool:
        connection, transport, _ = make(keep_alive_s=30.0)
        connection.publish_taken(10, 10)
        await asyncio.sleep(300)
        closed = transport.closed
        connection.connection_lost(None)
        return closed

    assert simulate(scenario, seed=1) is False


def test_life_signs() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, bool, bool, bool]:
        connection, transport, _ = make()
        asking = asyncio.ensure_future(connection.alive())
        await asyncio.sleep(1)
        assert bytes(transport.sent) == commands.PING
        connection.data_received(commands.PONG)
        answered = await asking
        silent = await connection.alive()
        gone = await connection.alive()
        connection.connection_lost(None)
        return answered, silent, transport.closed, gone

    assert simulate(scenario, seed=1) == (True, False, True, False)


def test_the_connection_does_not_wait_for_a_dead_peer() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, bool]:
        silent, unread = make(keep_alive_s=30.0), make(keep_alive_s=30.0)
        unread[1].unsent = 5000
        unread[0].pause_writing()
        await asyncio.sleep(100)
        return silent[1].aborted, unread[1].aborted

    assert simulate(scenario, seed=1) == (True, True)


def test_a_slow_peer_that_still_reads_is_kept() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, bool, bool]:
        connection, transport, _ = make(keep_alive_s=30.0)
        transport.unsent = 5000
        connection.pause_writing()
        for _ in range(50):
            await asyncio.sleep(10)
            transport.unsent -= 10
        kept = not transport.closed
        asking = asyncio.ensure_future(connection.alive())
        await asyncio.sleep(1)
        transport.unsent -= 10
        slow = await asking
        await asyncio.sleep(100)
        return kept, slow, transport.aborted

    assert simulate(scenario, seed=1) == (True, True, True)


def test_a_peer_that_does_not_read_the_last_bytes_is_cut_off() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, bool]:
        connection, transport, _ = make()
        connection.close()
        await asyncio.sleep(limits.CLOSE_FLUSH_S - 1)
        early = transport.aborted
        await asyncio.sleep(2)
        return early, transport.aborted

    assert simulate(scenario, seed=1) == (False, True)


def test_a_producer_from_which_we_do_not_read_counts_as_alive() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, bool, bool]:
        connection, transport, _ = make()
        later = asyncio.ensure_future(connection.alive())
        await asyncio.sleep(1)
        connection.publish_taken(10, 10)
        result = await connection.alive(), await later, transport.closed
        connection.connection_lost(None)
        return result

    assert simulate(scenario, seed=1) == (True, True, False)


async def test_a_connection_that_never_opens_has_no_session_and_one_that_opens_may_be_refused() -> None:
    made: list[Connection] = []

    def refused(connection: Connection) -> Handler:
        made.append(connection)
        connection.close()
        return Handler()

    connection = Connection(PublishBudget(1000), 1000, 30.0, 10, refused)
    assert not made, "asyncio would not report the end of an interrupted handshake"
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    assert made == [connection]
    assert connection.closed
    connection.connection_lost(None)


# deliveries that are joined


async def test_deliveries_of_one_turn_leave_in_one_write_at_its_end() -> None:
    connection, transport, _ = make()
    for number in range(5):
        connection.write_joined([b"head%d " % number, memoryview(b"entry ")])
    assert not transport.sent
    assert connection.unsent_bytes() == 60
    await asyncio.sleep(0)
    assert transport.writes == 1
    assert transport.sent == b"".join(b"head%d entry " % number for number in range(5))
    assert connection.unsent_bytes() == 0
    connection.write_joined([b"next"])
    await asyncio.sleep(0)
    assert transport.writes == 2


async def test_what_is_written_later_leaves_behind_the_deliveries_and_at_once() -> None:
    connection, transport, _ = make()
    connection.write_joined([b"message "])
    connection.write(b"command ")
    assert (transport.writes, bytes(transport.sent)) == (1, b"message command ")
    connection.write_joined([b"last"])
    connection.close()
    assert transport.sent == b"message command last"
    await asyncio.sleep(0)
    assert transport.writes == 2


async def test_large_deliveries_do_not_wait() -> None:
    connection, transport, _ = make()
    half = bytes(limits.JOINED_WRITE_BYTES // 2)
    connection.write_joined([half])
    connection.write_joined([half])
    assert (transport.writes, len(transport.sent)) == (1, 2 * len(half))
    await asyncio.sleep(0)
    assert transport.writes == 1


async def test_deliveries_count_as_unsent_until_the_connection_is_lost() -> None:
    memory = ConnectionMemory()
    connection = Connection(PublishBudget(1000), 100_000, 30.0, 10, lambda _: Handler(), memory)
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.write_joined([bytes(100)])
    assert memory.unsent_bytes == 100
    await asyncio.sleep(0)
    assert memory.unsent_bytes == 0
    connection.write_joined([bytes(100)])
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert (memory.unsent_bytes, len(transport.sent)) == (0, 100)


# a rate of publishing


class Throttling(Handler):
    """Exceeds a rate at the frames whose numbers the test chooses."""

    def __init__(self, at: dict[int, float], *, rest: bool = False) -> None:
        super().__init__()
        self.at, self.rest = at, rest
        """Until which loop time, by the number of the frame; whether a part of that frame is left."""
        self.seen: list[float] = []
        self.connection: Connection

    def handle(self, frame: Frame) -> None:
        super().handle(frame)
        self.seen.append(asyncio.get_running_loop().time())
        until_s = self.at.pop(len(self.seen), None)
        if until_s is not None:
            self.connection.throttle(lambda: until_s, frame if self.rest else None)


def throttled(at: dict[int, float], *, rest: bool = False) -> tuple[Connection, Transport, Throttling]:
    handler = Throttling(at, rest=rest)
    handler.connection = connection = Connection(PublishBudget(1000), 100_000, 3.0, 10, lambda _: handler)
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport, handler


def test_frames_after_one_that_exceeds_a_rate_wait_and_nothing_is_read() -> None:
    async def scenario(loop: SimLoop) -> tuple[list[float], bool, bool]:
        connection, transport, handler = throttled({2: 50.0, 3: 60.0})
        connection.data_received(commands.PING * 4)
        connection.data_received(commands.PING)
        await asyncio.sleep(40)
        reading = transport.reading
        assert not transport.aborted, "we caused the silence"
        await asyncio.sleep(40)
        connection.connection_lost(None)
        return handler.seen, reading, transport.reading

    assert simulate(scenario, seed=1) == ([0, 0, 50, 60, 60], False, True)


def test_the_rest_of_a_frame_goes_first() -> None:
    async def scenario(loop: SimLoop) -> tuple[list[Frame], list[float]]:
        connection, _, handler = throttled({1: 5.0}, rest=True)
        connection.data_received(commands.PING + commands.PONG)
        await asyncio.sleep(10)
        connection.connection_lost(None)
        return handler.frames, handler.seen

    frames, seen = simulate(scenario, seed=1)
    assert [frame.type for frame in frames] == [Kind.PING, Kind.PING, Kind.PONG]  # type: ignore[union-attr]
    assert seen == [0, 5, 5]


def test_a_rate_that_changes_ends_the_wait_within_a_second() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, bool]:
        connection, transport, _ = throttled({})
        ready_s = [1e9]
        connection.throttle(lambda: ready_s[0], None)
        await asyncio.sleep(100)
        reading, ready_s[0] = transport.reading, 0
        await asyncio.sleep(limits.RATE_CHECK_S)
        connection.connection_lost(None)
        return reading, transport.reading

    assert simulate(scenario, seed=1) == (False, True)


def test_a_rate_and_other_reasons_stop_reading_independently() -> None:
    async def scenario(loop: SimLoop) -> list[bool]:
        connection, transport, _ = throttled({})
        connection.throttle(lambda: 10.0, None)
        connection.publish_taken(10, 10)
        await asyncio.sleep(20)
        reading = [transport.reading]
        connection.publish_done(10, 10)
        connection.connection_lost(None)
        return [*reading, transport.reading]

    assert simulate(scenario, seed=1) == [False, True]


def test_frames_that_wait_end_with_their_connection_and_may_violate_the_protocol() -> None:
    async def scenario(loop: SimLoop) -> tuple[int, bool, int]:
        connection, _, handler = throttled({1: 5.0})
        connection.data_received(commands.PING * 3)
        connection.connection_lost(None)
        odd, transport, refusing = throttled({1: 5.0})
        odd.data_received(commands.PING * 3)
        refusing.refuse = True
        await asyncio.sleep(10)
        return len(handler.frames), transport.closed, len(refusing.frames)

    assert simulate(scenario, seed=1) == (1, True, 1)


# slow operations


def test_a_frame_knows_how_long_a_rate_held_it_back() -> None:
    async def scenario(loop: SimLoop) -> tuple[float, list[float], float]:
        connection, _, handler = throttled({1: 5.0, 2: 7.5})
        held: list[float] = []
        handle = handler.handle

        def noting(frame: Frame) -> None:
            held.append(connection.held_s)
            handle(frame)

        handler.handle = noting  # type: ignore[method-assign]
        before = connection.held_s
        connection.data_received(commands.PING * 3)
        await asyncio.sleep(10)
        after = connection.held_s
        connection.connection_lost(None)
        return before, held, after

    assert simulate(scenario, seed=1) == (0.0, [0.0, 5.0, 7.5], 0.0)


def test_a_client_that_reads_nothing_for_long_is_logged_when_it_reads_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: SimLoop) -> None:
        handler, log = Handler(), SlowLog()
        connection = Connection(PublishBudget(1000), 100_000, 3600.0, 10, lambda _: handler, slow=log)
        connection.connection_made(Transport())  # type: ignore[arg-type]
        for pause_s in (0.5, 2.0):
            connection.pause_writing()
            await asyncio.sleep(pause_s)
            connection.resume_writing()
        connection.connection_lost(None)

    simulate(scenario, seed=1)
    lines = [record.getMessage() for record in caplog.records if record.name == "quire.slow"]
    assert lines == ["operation=send took_ms=2000.0 client=/127.0.0.1:5 unsent_bytes=0"]
