"""Tests of a full bookie: which adds wait, which are refused, and which continue first."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.server.requests.connections import PAUSED_BY_ADDS, Connection
from quire_bookie.server.requests.overload import Overload
from quire_bookie.wire.messages import AddRequest
from tests.sim.loop import SimLoop
from tests.unit.bookie.server.fakes import FakeConnection


def add(entry: int, *, recovery: bool = False) -> AddRequest:
    """Return an add of one entry."""
    run = Run(LedgerId(1), EntryId(entry), [b"x"], EntryId(-1), 1)
    return AddRequest(run, b"", recovery, False, False, run.ledger, run.first, 0)


@dataclass
class Gate:
    """Accepts adds while `open`."""

    open: bool = False
    taken: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def attempt(self, connection: Connection, request: AddRequest) -> bool:
        """Accept an add if open."""
        if self.open:
            self.taken.append(request.run.first)
        return self.open

    def refuse(self, connection: Connection, request: AddRequest) -> None:
        """Refuse an add."""
        self.refused.append(request.run.first)


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """Yield a closed gate."""
    yield Gate()


async def test_while_there_is_space_no_add_waits(gate: Gate) -> None:
    gate.open = True
    overload = Overload(gate.attempt, gate.refuse, 60.0, ConnectionMemory())
    assert not overload.offer(FakeConnection().real, add(1))
    assert gate.taken == [1]
    assert overload.waiting == 0


async def test_waiting_adds_pause_their_socket_and_continue_in_order_recovery_first(gate: Gate) -> None:
    overload = Overload(gate.attempt, gate.refuse, 60.0, ConnectionMemory())
    writer, recoverer = FakeConnection(), FakeConnection()
    assert overload.offer(writer.real, add(1))
    assert overload.offer(recoverer.real, add(7, recovery=True))
    gate.open = True
    assert overload.offer(writer.real, add(2))  # it must not overtake the waiting one
    assert writer.paused == recoverer.paused == PAUSED_BY_ADDS
    overload.retry()
    assert gate.taken == [7, 1, 2]
    assert writer.paused == recoverer.paused == 0
    overload.close()


async def test_a_socket_stays_paused_while_one_of_its_adds_waits(gate: Gate) -> None:
    overload = Overload(gate.attempt, gate.refuse, 60.0, ConnectionMemory())
    connection = FakeConnection()
    overload.offer(connection.real, add(1))
    overload.offer(connection.real, add(7, recovery=True))
    taken: list[int] = []

    def one_only(connection: Connection, request: AddRequest) -> bool:
        taken.append(request.run.first)
        return len(taken) == 1

    overload._attempt = one_only
    overload.retry()
    assert overload.waiting == 1
    assert connection.paused == PAUSED_BY_ADDS
    overload.close()


def test_after_the_pause_normal_adds_are_refused_at_once_until_one_fits_and_recovery_adds_keep_waiting() -> None:
    gate = Gate()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        overload = Overload(gate.attempt, gate.refuse, 0.5, ConnectionMemory())
        connection = FakeConnection()
        overload.offer(connection.real, add(1))
        overload.offer(connection.real, add(9, recovery=True))
        await asyncio.sleep(0.4)
        assert gate.refused == []
        await asyncio.sleep(0.2)
        assert gate.refused == [1]
        began_s = loop.time()
        assert not overload.offer(connection.real, add(2))
        assert gate.refused == [1, 2]
        assert loop.time() == began_s
        assert overload.waiting == 1
        gate.open = True
        overload.retry()
        assert not overload.offer(connection.real, add(3))
        assert gate.taken == [9, 3]
        gate.open = False
        assert overload.offer(connection.real, add(4))  # full again: a new pause begins
        overload.close()
        assert gate.refused == [1, 2, 4]

    loop = SimLoop(seed=1)
    try:
        loop.run_until_complete(scene())
    finally:
        loop.close()


def test_while_the_disk_makes_progress_adds_that_wait_less_than_the_pause_are_accepted() -> None:
    """One add fits every 100 ms, one comes every 100 ms, four wait at any time: none is refused, for minutes."""
    gate = Gate()

    def attempt(connection: Connection, request: AddRequest) -> bool:
        taken = gate.open
        gate.open = False
        if taken:
            gate.taken.append(request.run.first)
        return taken

    async def scene() -> None:
        overload = Overload(attempt, gate.refuse, 0.5, ConnectionMemory())
        connection = FakeConnection()
        for entry in range(4):
            overload.offer(connection.real, add(entry))
        for entry in range(4, 1000):
            await asyncio.sleep(0.1)
            gate.open = True
            overload.retry()
            assert overload.offer(connection.real, add(entry))
        assert gate.refused == []
        assert gate.taken == list(range(996))
        overload.close()

    loop = SimLoop(seed=1)
    try:
        loop.run_until_complete(scene())
    finally:
        loop.close()


def test_an_add_that_waited_too_long_is_refused_although_others_fit() -> None:
    gate = Gate()

    async def scene() -> None:
        overload = Overload(lambda _connection, request: False, gate.refuse, 0.5, ConnectionMemory())
        connection = FakeConnection()
        overload.offer(connection.real, add(1))
        await asyncio.sleep(0.3)
        overload._fitted_s = asyncio.get_running_loop().time()  # another add was accepted meanwhile
        overload.offer(connection.real, add(2))
        await asyncio.sleep(0.3)
        assert gate.refused == [1]
        overload.close()

    loop = SimLoop(seed=1)
    try:
        loop.run_until_complete(scene())
    finally:
        loop.close()
