"""The simulator itself: time, network, crash and determinism."""

import asyncio

import pytest

from tests.sim.disk import SimDisk
from tests.sim.loop import Node, SimDeadlockError, SimLoop, simulate


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = bytearray()
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.grew = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.grew.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.set_result(exc)


def test_virtual_time_passes_without_waiting() -> None:
    async def scenario(loop: SimLoop) -> float:
        await asyncio.sleep(1000)
        return loop.time()

    assert simulate(scenario, seed=1) == pytest.approx(1000)


def test_a_scenario_that_waits_for_nothing_is_a_deadlock() -> None:
    async def scenario(loop: SimLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimDeadlockError):
        simulate(scenario, seed=1)


async def _echo_pair(loop: SimLoop) -> tuple[Node, asyncio.Transport, _Collect]:
    server = loop.start_node("server")
    await loop.run_on(server, loop.create_server(_Echo, port=7))
    transport, protocol = await loop.create_connection(_Collect, "server", 7)
    return server, transport, protocol


def test_bytes_arrive_in_order_however_they_are_cut() -> None:
    async def scenario(loop: SimLoop) -> bytes:
        _, transport, protocol = await _echo_pair(loop)
        sent = b"".join(bytes([i]) * (i + 1) for i in range(200))
        for start in range(0, len(sent), 100):
            transport.write(sent[start : start + 100])
        while len(protocol.data) < len(sent):
            protocol.grew.clear()
            await protocol.grew.wait()
        assert bytes(protocol.data) == sent
        return bytes(protocol.data)

    for seed in range(10):
        simulate(scenario, seed=seed)


def test_equal_seeds_give_equal_runs() -> None:
    async def scenario(loop: SimLoop) -> list[float]:
        _, transport, protocol = await _echo_pair(loop)
        times = []
        for _ in range(20):
            protocol.grew.clear()
            transport.write(b"x")
            await protocol.grew.wait()
            times.append(loop.time())
        return times

    assert simulate(scenario, seed=5) == simulate(scenario, seed=5)
    assert simulate(scenario, seed=5) != simulate(scenario, seed=6)


def test_a_killed_node_runs_nothing_more_and_its_peer_sees_a_reset() -> None:
    ran: list[str] = []

    async def immortal() -> None:
        try:
            await asyncio.sleep(50)
            ran.append("after")
        finally:
            ran.append("finally")

    async def scenario(loop: SimLoop) -> None:
        server, _, protocol = await _echo_pair(loop)
        loop.run_on(server, immortal())
        await asyncio.sleep(1)
        loop.kill(server)
        assert isinstance(await protocol.lost, ConnectionResetError)
        await asyncio.sleep(100)
        assert ran == []

    simulate(scenario, seed=3)


def test_a_partition_holds_bytes_back_and_healing_delivers_them() -> None:
    async def scenario(loop: SimLoop) -> None:
        _, transport, protocol = await _echo_pair(loop)
        loop.network.partition("server", "outside")
        transport.write(b"held")
        await asyncio.sleep(5)
        assert protocol.data == b""
        loop.network.heal()
        await asyncio.sleep(5)
        assert protocol.data == b"held"

    simulate(scenario, seed=4)


def test_a_long_partition_breaks_the_connection() -> None:
    async def scenario(loop: SimLoop) -> None:
        _, transport, protocol = await _echo_pair(loop)
        loop.network.partition("server", "outside")
        transport.write(b"held")
        assert isinstance(await protocol.lost, ConnectionResetError)

    simulate(scenario, seed=4)


def test_no_thread_can_be_used_in_a_simulation() -> None:
    async def scenario(loop: SimLoop) -> None:
        await loop.run_in_executor(None, len, b"")

    with pytest.raises(AssertionError, match="bypassed the ports"):
        simulate(scenario, seed=1)


async def test_a_crash_drops_what_was_not_synced() -> None:
    disk = SimDisk()
    await disk.make_dirs("/data")
    file = await disk.open("/data/log", create=True)
    await disk.sync_dir("/data")
    await file.write(0, [b"durable"])
    await file.sync()
    await file.write(7, [b" lost"])
    heir = disk.crash()
    assert heir.content("/data/log") == b"durable"
    with pytest.raises(OSError, match="crashed"):
        await file.read(0, 1)


async def test_a_name_survives_only_after_its_folder_was_synced() -> None:
    disk = SimDisk()
    await disk.make_dirs("/data")
    file = await disk.open("/data/log", create=True)
    await file.write(0, [b"bytes"])
    await file.sync()
    assert await disk.crash().list_dir("/data") == []


async def test_every_journal_submission_in_flight_may_be_torn() -> None:
    seen = set()
    for seed in range(40):
        disk = SimDisk()
        await disk.make_dirs("/j")
        await disk.create_journal("/j/1", 4096)
        file = await disk.open_journal("/j/1")
        file.submit(0, [b"\xff" * 2048], lambda error: None)
        heir = disk.crash("random", seed)
        sectors = [heir.content("/j/1")[start : start + 512] for start in range(0, 2048, 512)]
        seen.add(sum(sector == b"\xff" * 512 for sector in sectors))
    assert {0, 4} < seen
