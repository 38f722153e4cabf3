"""Tests that reads from memory, which never wait, leave loop iterations to adds and the journal."""

import asyncio

from quire_bookie.limits import READS_PER_TURN
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.read_lanes import ReadLane
from tests.unit.bookie.server.fakes import FakeConnection


async def test_reads_that_never_wait_leave_the_loop_to_others_and_are_all_answered() -> None:
    answered: list[int] = []

    async def at_once(_connection: Connection, request: int) -> int:
        answered.append(request)
        return 0

    lane: ReadLane[int] = ReadLane(
        at_once, at_once_max=64, at_once_per_connection_max=16, bytes_per_connection_max=1000
    )
    client = FakeConnection()
    wanted = 5 * READS_PER_TURN
    for request in range(wanted):
        lane.submit(client.real, request)
    seen = []
    while len(answered) < wanted:
        await asyncio.sleep(0)
        seen.append(len(answered))
        assert len(seen) < 100, "reads continue in every loop iteration"
    steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert max(steps) <= READS_PER_TURN
    assert answered == list(range(wanted))
    await lane.close()
