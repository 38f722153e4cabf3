"""Tests the V3 connection to a bookie in memory: matching by transaction, timeouts, losses, deferred adds."""

import asyncio
from collections.abc import Callable, Coroutine

from quire_bookie.client.links.bookie_link import BuildRequest, Purpose
from quire_bookie.client.links.connection import BookieConnection
from quire_bookie.client.links.pool import ConnectionPool
from quire_bookie.client.links.v3_connection import V3Connection
from quire_bookie.errors import BookieUnavailableError, LedgerError
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import NO_ENTRY, BookieId, DigestType, EntryId, LedgerId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.client_codec import v2_adds, v3_force, v3_read, v3_read_lac
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import (
    AddRequest,
    ForceRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Response,
    Status,
)
from tests.sim.loop import SimLoop, simulate
from tests.unit.bookie.client.cluster import QUICK
from tests.unit.bookie.client.fake_bookie import FakeBookie
from tests.unit.bookie.client.links.test_connection import _Sink

_KEY = master_key(b"")
_DIGEST = Digest(DigestType.CRC32C, b"")
_B = BookieId("b")


def _frames(first: int, count: int) -> bytes:
    entries = [
        (_DIGEST.encode_entry(LedgerId(1), EntryId(entry), NO_ENTRY, 1, (b"x%d" % entry,)), b"x%d" % entry)
        for entry in range(first, first + count)
    ]
    return b"".join(v2_adds(_KEY, entries))


class _World:
    def __init__(self, loop: SimLoop, settings: ClientSettings) -> None:
        self.loop = loop
        self.bookie = FakeBookie("b")
        self.pool = ConnectionPool(lambda _: BookieAddress("b", 3181), settings)
        self.node = loop.start_node("b")

    async def listen(self) -> None:
        await self.loop.run_on(self.node, self.bookie.start(3181))

    @property
    def link(self) -> V3Connection:
        return self.pool.v3_link(_B)

    def ask(self, build: BuildRequest, timeout_s: float | None = None) -> "asyncio.Future[Response | LedgerError]":
        answer: asyncio.Future[Response | LedgerError] = asyncio.get_running_loop().create_future()
        self.link.ask(build, answer.set_result, timeout_s)
        return answer


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


def _read(entry: int) -> BuildRequest:
    return lambda transaction: v3_read(transaction, LedgerId(1), EntryId(entry))


def test_v3_and_v2_have_separate_connections_created_at_first_use() -> None:
    async def scenario(world: _World) -> None:
        assert isinstance(world.pool.link(_B, Purpose.READ), BookieConnection)
        assert not isinstance(world.pool.link(_B, Purpose.READ), V3Connection)
        assert world.pool.v3_link(_B) is not world.pool.v3_link(_B, Purpose.DEFERRED_ADD)
        assert world.link.stats.connects == 0
        await world.ask(_read(0))
        assert world.link.stats.connects == 1
        assert [c.stats.connects for c in world.pool.connections if c is not world.link] == [0, 0]

    _run(scenario)


def test_responses_in_any_order_are_matched_with_their_requests() -> None:
    async def scenario(world: _World) -> None:
        link = world.pool.v3_link(_B, Purpose.DEFERRED_ADD)
        link.send_adds(LedgerId(1), _frames(0, 4), _Sink())
        await asyncio.sleep(1)
        delays = {0: 0.5, 1: 0.1, 2: 0.3}
        world.bookie.fault = lambda request: delays.get(request.entry) if isinstance(request, ReadRequest) else None
        order: list[int] = []
        answers = [world.ask(_read(entry)) for entry in (0, 1, 2, 3, 0)]
        for number, answer in enumerate(answers):
            answer.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
        lac = await world.ask(lambda transaction: v3_read_lac(transaction, LedgerId(1)))
        assert isinstance(lac, ReadLacResponse)
        for entry, answer in zip((0, 1, 2, 3, 0), answers, strict=True):
            found = await answer
            assert isinstance(found, ReadResponse)
            assert found.data is not None and bytes(found.data).endswith(b"x%d" % entry)
        assert order == [3, 1, 2, 0, 4]

    _run(scenario)


def test_an_overdue_request_fails_alone_and_its_late_response_is_ignored() -> None:
    async def scenario(world: _World) -> None:
        delays = {0: 9.0, 1: 11.0}
        world.bookie.fault = lambda request: delays.get(request.entry) if isinstance(request, ReadRequest) else None
        late = world.ask(_read(0), timeout_s=1.0)
        patient = world.ask(_read(1), timeout_s=60.0)
        await world.ask(_read(5))
        await asyncio.sleep(3)
        assert isinstance(late.result(), BookieUnavailableError)
        await patient
        assert world.link.stats.connects == 1

    _run(scenario)


def test_a_bookie_that_sends_nothing_at_all_is_reconnected() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.fault = lambda request: -1.0
        assert isinstance(await world.ask(_read(0)), BookieUnavailableError)
        world.bookie.fault = lambda request: None
        assert world.link.stats.losses == 1
        assert isinstance(await world.ask(_read(0)), ReadResponse)
        assert world.link.stats.connects == 2
        assert world.link.stats.losses == 1

    _run(scenario)


def test_losing_the_socket_fails_every_request() -> None:
    async def scenario(world: _World) -> None:
        world.bookie.fault = lambda request: -1.0
        questions = [world.ask(_read(entry)) for entry in range(3)]
        await asyncio.sleep(1)
        world.bookie.hang_up()
        for question in questions:
            assert isinstance(await question, BookieUnavailableError)
        assert world.link.stats.losses == 1

    _run(scenario)


def test_a_forgotten_request_gets_no_response() -> None:
    async def scenario(world: _World) -> None:
        responses: list[object] = []
        world.link.forget(world.link.ask(_read(0), responses.append))
        await asyncio.sleep(1)
        assert responses == []
        assert not world.link.is_busy

    _run(scenario)


def test_v2_frames_are_sent_as_deferred_adds_with_the_same_bytes() -> None:
    async def scenario(world: _World) -> None:
        sink = _Sink()
        link = world.pool.v3_link(_B, Purpose.DEFERRED_ADD)
        link.send_adds(LedgerId(1), _frames(0, 3), sink)
        link.send_adds(LedgerId(1), _frames(3, 2), sink)
        await asyncio.sleep(1)
        adds = [request for request in world.bookie.asked if isinstance(request, AddRequest)]
        assert all(add.deferred_sync and add.master_key == _KEY for add in adds)
        stored = world.bookie.ledgers[LedgerId(1)].entries
        for entry in range(5):
            assert bytes(_DIGEST.decode_entry(stored[entry], LedgerId(1), EntryId(entry)).payload) == b"x%d" % entry
        assert sink.stored == [(entry, 1) for entry in range(5)]
        assert sink.batches >= 1
        link.ask(lambda transaction: v3_force(transaction, LedgerId(1)), lambda _: None)
        await asyncio.sleep(1)
        assert isinstance(world.bookie.asked[-1], ForceRequest)

    _run(scenario)


def test_the_sink_of_deferred_adds_gets_refusals_and_losses() -> None:
    async def scenario(world: _World) -> None:
        sink = _Sink()
        world.bookie.fault = lambda request: Status.FENCED
        link = world.pool.v3_link(_B, Purpose.DEFERRED_ADD)
        link.send_adds(LedgerId(1), _frames(0, 1), sink)
        await asyncio.sleep(1)
        assert [(first, count) for first, count, _ in sink.refused] == [(0, 1)]
        world.bookie.hang_up()
        await asyncio.sleep(1)
        assert len(sink.lost) == 1

    _run(scenario)
