"""Tests one connection to a bookie in memory: matching of responses, losses, timeouts, lazy connecting."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.client.links.connection import BookieConnection
from quire_bookie.client.links.pool import ConnectionPool
from quire_bookie.errors import BookieUnavailableError, LedgerError, LedgerFencedError, NoSuchLedgerError
from quire_bookie.limits import MIB
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import NO_ENTRY, BookieId, Buffer, DigestType, EntryId, LedgerId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.client_codec import v2_adds
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddRequest, ReadRequest, Status
from tests.sim.loop import SimLoop, simulate
from tests.unit.bookie.client.cluster import QUICK
from tests.unit.bookie.client.fake_bookie import Asked, FakeBookie

_KEY = master_key(b"")
_DIGEST = Digest(DigestType.DUMMY, b"")


def _frames(ledger: int, first: int, count: int) -> bytes:
    entries = [
        (_DIGEST.encode_entry(LedgerId(ledger), EntryId(entry), NO_ENTRY, 1, (b"x",)), b"x")
        for entry in range(first, first + count)
    ]
    return b"".join(v2_adds(_KEY, entries))


class _Sink:
    def __init__(self) -> None:
        self.stored: list[tuple[int, int]] = []
        self.refused: list[tuple[int, int, type[LedgerError]]] = []
        self.batches = 0
        self.lost: list[LedgerError] = []
        self.checked = 0
        self.impatient = False
        self.is_owed = True

    def adds_stored(self, bookie: BookieId, first: EntryId, count: int) -> None:
        self.stored.append((first, count))

    def adds_refused(self, bookie: BookieId, first: EntryId, count: int, error: LedgerError) -> None:
        self.refused.append((first, count, type(error)))

    def adds_answered(self) -> None:
        self.batches += 1

    def link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        self.lost.append(error)

    def check_overdue(self, bookie: BookieId, now_s: float) -> bool:
        self.checked += 1
        return self.impatient

    def owes(self, bookie: BookieId) -> bool:
        return self.is_owed


class _World:
    def __init__(self, loop: SimLoop, settings: ClientSettings) -> None:
        self.loop = loop
        self.bookie = FakeBookie("b")
        self.known = True
        self.pool = ConnectionPool(lambda _: BookieAddress("b", 3181) if self.known else None, settings)
        self.node = loop.start_node("b")

    @property
    def link(self) -> BookieConnection:
        return self.pool.link(BookieId("b"), Purpose.READ)

    async def listen(self) -> None:
        await self.loop.run_on(self.node, self.bookie.start(3181))

    async def read(self, entry: int, fence_key: bytes | None = None) -> bytes | LedgerError:
        answer: asyncio.Future[Buffer | LedgerError] = asyncio.get_running_loop().create_future()
        self.link.read(LedgerId(1), EntryId(entry), answer.set_result, fence_key=fence_key, high_priority=False)
        found = await answer
        return found if isinstance(found, LedgerError) else bytes(found)


def _run(scenario: Callable[[_World], Coroutine[None, None, None]], settings: ClientSettings = QUICK) -> None:
    async def work(loop: SimLoop) -> None:
        world = _World(loop, settings)
        await world.listen()
        try:
            await scenario(world)
        finally:
            await world.pool.close()
        assert loop.failures == []

    simulate(work, seed=1)


def test_a_connection_is_made_when_first_used_and_shared() -> None:
    async def scenario(world: _World) -> None:
        assert world.link.stats.connects == 0
        answers = await asyncio.gather(*(world.read(entry) for entry in range(10)))
        assert all(isinstance(answer, NoSuchLedgerError) for answer in answers)
        assert world.link.stats.connects == 1
        assert len(world.bookie.asked) == 10

    _run(scenario)


def test_adds_of_one_loop_iteration_arrive_as_one_run() -> None:
    async def scenario(world: _World) -> None:
        sink = _Sink()
        await world.read(0)
        for first in range(0, 30, 10):
            world.link.send_adds(LedgerId(1), _frames(1, first, 10), sink)
        await asyncio.sleep(1)
        assert sum(count for _, count in sink.stored) == 30
        # The simulated network may split the bytes; otherwise the three sends arrive as one run.
        assert len([r for r in world.bookie.asked if isinstance(r, AddRequest)]) <= 3 + 3
        assert sink.batches >= 1

    _run(scenario)


def test_refusals_reach_the_sink_with_their_error() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.fault = lambda request: Status.FENCED
        sink = _Sink()
        world.link.send_adds(LedgerId(1), _frames(1, 5, 1), sink)
        await asyncio.sleep(1)
        assert sink.refused == [(5, 1, LedgerFencedError)]

    _run(scenario)


def test_a_forgotten_sink_is_not_called() -> None:
    async def scenario(world: _World) -> None:
        forgotten, kept = _Sink(), _Sink()
        world.link.send_adds(LedgerId(1), _frames(1, 0, 3), forgotten)
        world.link.send_adds(LedgerId(2), _frames(2, 0, 3), kept)
        world.link.forget_sink(LedgerId(1), forgotten)
        world.link.forget_sink(LedgerId(2), forgotten)
        await asyncio.sleep(1)
        assert forgotten.stored == []
        assert sum(count for _, count in kept.stored) == 3

    _run(scenario)


def test_a_fencing_read_is_never_answered_by_a_plain_read_of_the_same_entry() -> None:
    async def scenario(world: _World) -> None:
        def slow_plain_reads(request: Asked) -> float | None:
            return 0.5 if isinstance(request, ReadRequest) and not request.fence else None

        world.bookie.fault = slow_plain_reads
        plain = asyncio.get_running_loop().create_task(world.read(-1))
        await asyncio.sleep(0.1)
        await world.read(-1, fence_key=_KEY)
        assert world.bookie.ledgers[LedgerId(1)].fenced, "answered only after the fence"
        assert plain.done()

    _run(scenario)


def test_a_lost_connection_fails_unanswered_requests_and_the_next_request_makes_a_new_one() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.fault = lambda request: -1.0
        sink = _Sink()
        world.link.send_adds(LedgerId(1), _frames(1, 0, 2), sink)
        reads = [asyncio.get_running_loop().create_task(world.read(entry)) for entry in (1, 1, 2)]
        await asyncio.sleep(0.1)
        world.bookie.hang_up()
        assert all(isinstance(answer, BookieUnavailableError) for answer in await asyncio.gather(*reads))
        assert len(sink.lost) == 1
        world.bookie.fault = lambda request: None
        assert isinstance(await world.read(1), NoSuchLedgerError)
        assert world.link.stats.connects == 2

    _run(scenario)


def test_a_read_without_a_response_fails_after_its_timeout() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.fault = lambda request: -1.0
        started = world.loop.time()
        assert isinstance(await world.read(1), BookieUnavailableError)
        assert QUICK.read_timeout_s <= world.loop.time() - started <= QUICK.read_timeout_s * 1.5

    _run(scenario)


def test_sinks_check_their_overdue_adds_periodically() -> None:
    async def scenario(world: _World) -> None:
        sink = _Sink()
        world.link.send_adds(LedgerId(1), _frames(1, 0, 1), sink)
        await asyncio.sleep(QUICK.add_timeout_s)
        assert sink.checked >= 4
        world.link.forget_sink(LedgerId(1), sink)
        await asyncio.sleep(QUICK.add_timeout_s)
        checked = sink.checked
        await asyncio.sleep(QUICK.add_timeout_s * 3)
        assert sink.checked == checked

    _run(scenario)


def test_a_ledger_that_is_owed_nothing_costs_no_checks_until_its_next_add() -> None:
    async def scenario(world: _World) -> None:
        idle, busy = _Sink(), _Sink()
        idle.is_owed = False
        world.link.send_adds(LedgerId(1), _frames(1, 0, 1), idle)
        world.link.send_adds(LedgerId(2), _frames(2, 0, 1), busy)
        await asyncio.sleep(QUICK.add_timeout_s * 3)
        assert idle.checked == 1 and busy.checked >= 4
        world.link.send_adds(LedgerId(1), _frames(1, 1, 1), idle)
        busy.is_owed = False
        await asyncio.sleep(QUICK.add_timeout_s)
        assert idle.checked == 2
        assert not world.link.is_busy, "nothing is outstanding: no timer runs"
        world.link.send_adds(LedgerId(1), _frames(1, 2, 1), idle)
        await asyncio.sleep(QUICK.add_timeout_s)
        assert idle.checked == 3

    _run(scenario)


def test_an_unreachable_bookie_is_suspect_until_it_is_reachable_again() -> None:
    async def scenario(world: _World) -> None:
        changes: list[bool] = []
        world.pool.on_suspects_changed(lambda: changes.append(bool(world.pool.suspects)))
        world.bookie.stop()
        assert isinstance(await world.read(1), BookieUnavailableError)
        assert isinstance(await world.read(1), BookieUnavailableError)
        assert set(world.pool.suspects) == {BookieId("b")}
        await world.listen()
        await asyncio.sleep(2)
        assert not world.pool.suspects, "probed without a request"
        assert changes == [True, False]

    _run(scenario)


def test_suspicion_ends_after_its_time() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.stop()
        await world.read(1)
        await asyncio.sleep(QUICK.suspect_s + 2)
        assert not world.pool.suspects

    _run(scenario)


def test_requests_to_an_unknown_bookie_fail_at_once() -> None:
    async def scenario(world: _World) -> None:
        world.known = False
        answer = await world.read(1)
        assert isinstance(answer, BookieUnavailableError)
        assert "it never registered" in str(answer)

    _run(scenario)


def test_a_peer_that_violates_the_protocol_is_disconnected() -> None:
    async def scenario(world: _World) -> None:
        class Babbler(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.write(b"\xff\xff\xff\xff nonsense")  # type: ignore[attr-defined]

        world.bookie.stop()
        loop = asyncio.get_running_loop()
        await world.loop.run_on(world.node, loop.create_server(Babbler, "b", 3181))
        assert isinstance(await world.read(1), BookieUnavailableError)

    _run(scenario)


def test_a_closed_pool_fails_everything() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.fault = lambda request: -1.0
        pending = asyncio.get_running_loop().create_task(world.read(1))
        await asyncio.sleep(0.1)
        await world.pool.close()
        assert isinstance(await pending, BookieUnavailableError)
        assert isinstance(await world.read(2), BookieUnavailableError)

    _run(scenario)


def test_a_bookie_that_a_sink_gave_up_and_that_is_silent_is_disconnected() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.fault = lambda request: -1
        sink, other = _Sink(), _Sink()
        world.link.send_adds(LedgerId(1), _frames(1, 0, 3), sink)
        world.link.send_adds(LedgerId(2), _frames(2, 0, 3), other)
        sink.impatient = True
        await asyncio.sleep(1.4)
        assert world.link.stats.losses == 0, "it has not been silent for long enough"
        await asyncio.sleep(1.2)
        assert world.link.stats.losses == 1
        assert len(other.lost) == 1, "every ledger on that connection is notified"
        assert "b" in world.pool.suspects

    _run(scenario)


def test_a_bookie_that_answers_other_ledgers_keeps_its_connection() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.fault = lambda request: -1 if isinstance(request, AddRequest) and request.run.ledger == 1 else None
        slow, good = _Sink(), _Sink()
        slow.impatient = True
        world.link.send_adds(LedgerId(1), _frames(1, 0, 3), slow)
        for first in range(10):
            world.link.send_adds(LedgerId(2), _frames(2, first, 1), good)
            await asyncio.sleep(1.0)
        assert world.link.stats.losses == 0
        assert len(good.stored) == 10

    _run(scenario)


def test_an_invalid_address_fails_requests_as_an_unreachable_bookie_does() -> None:
    async def scenario(world: _World) -> None:
        async def refuse(*_: object, **__: object) -> None:
            raise UnicodeError("label empty or too long")

        world.loop.create_connection = refuse  # type: ignore[method-assign]
        assert isinstance(await world.read(0), BookieUnavailableError)
        assert isinstance(await world.read(0), BookieUnavailableError), "it tries again"

    _run(scenario)


def test_no_request_is_sent_to_an_address_that_belongs_to_another_bookie_when_connected() -> None:
    async def scenario(world: _World) -> None:
        await world.pool.close()
        known = [BookieAddress("b", 3181)]
        world.pool = ConnectionPool(lambda _: known.pop() if known else None, QUICK)
        answer = await world.read(1)
        assert isinstance(answer, BookieUnavailableError) and "its address changed" in str(answer)
        assert world.bookie.asked == []

    _run(scenario)


def test_a_connection_attempt_that_fails_unexpectedly_is_not_the_last_one() -> None:
    async def scenario(world: _World) -> None:
        async def closed(*_: object) -> None:
            # What uvloop raises for a write to a socket that was closed meanwhile.
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

        link = world.link
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.loop, "create_connection", closed)
            assert isinstance(await world.read(0), BookieUnavailableError)
        assert isinstance(await world.read(0), NoSuchLedgerError)
        assert link.stats.connects == 1

    _run(scenario)


# ---- over real sockets: a bookie that ends its side of a connection and reads nothing more
@asynccontextmanager
async def _half_closed(timeout_s: float) -> AsyncIterator[tuple[BookieConnection, _Sink]]:
    """A connection with more sent bytes than the sockets hold, which its peer has ended without reading them."""
    peers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        peers.put_nowait(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = BookieAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    pool = ConnectionPool(lambda _: address, ClientSettings(add_timeout_s=timeout_s, read_timeout_s=timeout_s))
    link, sink = pool.link(BookieId("b"), Purpose.READ), _Sink()
    try:
        link.send_adds(LedgerId(1), bytes(64 * MIB), sink)
        peer = await peers.get()
        peer.write_eof()
        async with asyncio.timeout(60):
            yield link, sink
        peer.transport.abort()
    finally:
        await pool.close()
        server.close()


async def test_a_request_on_a_connection_that_its_bookie_has_ended_fails_at_once() -> None:
    # Its end is reported only once all sent bytes have left, which a bookie that died can delay for many minutes.
    async with _half_closed(timeout_s=600) as (link, sink):
        answers: list[Buffer | LedgerError] = []
        for entry in itertools.count():
            link.read(LedgerId(1), EntryId(entry), answers.append, fence_key=None, high_priority=False)
            await asyncio.sleep(0.01)
            if sink.lost:
                break
        assert answers and all(isinstance(answer, BookieUnavailableError) for answer in answers)
        assert link.stats.losses == 1


async def test_a_connection_that_its_bookie_has_ended_is_noticed_without_a_further_request() -> None:
    async with _half_closed(timeout_s=4) as (link, sink):
        while not sink.lost:  # noqa: ASYNC110  the sink has no event
            await asyncio.sleep(0.01)
        assert link.stats.losses == 1
