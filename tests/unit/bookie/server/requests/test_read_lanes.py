"""Tests of turns of reads: bounds per bookie and per connection, fairness, and clients that do not read responses."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.read_lanes import ReadLane
from tests.unit.bookie.server.fakes import FakeConnection


class Work:
    """Performs reads that end when a test calls `end`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}
        self.sizes: dict[str, int] = {}
        """Bytes of responses."""

    async def __call__(self, connection: Connection, request: str) -> int:
        """Perform one read."""
        self.begun.append(request)
        gate = self._gates[request] = asyncio.Event()
        await gate.wait()
        self.ended.append(request)
        return self.sizes.get(request, 0)

    async def end(self, *requests: str) -> None:
        """End some reads, and let the following ones begin."""
        for request in requests:
            self._gates[request].set()
        await turn()


async def turn() -> None:
    """Let the loop run until nothing is ready."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def work() -> Work:
    """Return new reads."""
    return Work()


@pytest.fixture
async def lane(work: Work) -> AsyncIterator[ReadLane[str]]:
    """Yield a lane with three reads at once, two per connection."""
    lane: ReadLane[str] = ReadLane(work, at_once_max=3, at_once_per_connection_max=2, bytes_per_connection_max=1000)
    yield lane
    await lane.close()


async def test_one_connection_runs_at_most_its_share_of_reads(lane: ReadLane[str], work: Work) -> None:
    client = FakeConnection()
    for request in "abcd":
        lane.submit(client.real, request)
    await turn()
    assert work.begun == ["a", "b"]
    await work.end("b")
    assert work.begun == ["a", "b", "c"]
    await work.end("a", "c")
    await work.end("d")
    assert sorted(work.ended) == ["a", "b", "c", "d"]


async def test_a_connection_runs_few_reads_until_its_responses_are_known_to_be_small(work: Work) -> None:
    lane: ReadLane[str] = ReadLane(work, at_once_max=9, at_once_per_connection_max=8, bytes_per_connection_max=1000)
    client = FakeConnection()
    work.sizes = dict.fromkeys("abcdefgh", 10) | {"e": 1200}
    for request in "abcdefgh":
        lane.submit(client.real, request)
    await turn()
    assert work.begun == ["a", "b", "c", "d"], "a quarter of the bound each"
    await work.end("a")
    assert work.begun == ["a", "b", "c", "d", "e", "f", "g", "h"], "after one small response an eighth each"
    for request in "ijklm":
        lane.submit(client.real, request)
    await work.end("e", "b", "c")
    assert "".join(work.begun) == "abcdefghi", "after a response larger than the bound the next ones wait"
    await work.end("d")
    assert "".join(work.begun) == "abcdefghijkl", "until some small responses followed"
    await lane.close()


async def test_the_bookie_runs_at_most_its_bound_and_connections_take_turns(lane: ReadLane[str], work: Work) -> None:
    greedy, modest = FakeConnection(), FakeConnection()
    for request in ("g1", "g2", "g3", "g4"):
        lane.submit(greedy.real, request)
    for request in ("m1", "m2"):
        lane.submit(modest.real, request)
    await turn()
    assert work.begun == ["g1", "m1", "g2"]
    await work.end("g1")
    assert work.begun[3] == "m2"
    await work.end("g2")
    assert work.begun[4] == "g3"


async def test_a_client_that_reads_no_responses_delays_no_other_and_continues_later(
    lane: ReadLane[str], work: Work
) -> None:
    stuck, reader = FakeConnection(), FakeConnection()
    stuck.takes_answers = False
    for request in ("s1", "s2", "s3", "s4"):
        lane.submit(stuck.real, request)
    for request in ("r1", "r2"):
        lane.submit(reader.real, request)
    await turn()
    assert work.begun == ["r1", "r2"]
    stuck.takes_answers = True
    stuck.drained.set()
    await turn()
    assert work.begun == ["r1", "r2", "s1"]
    await work.end("r1", "r2")
    assert work.begun == ["r1", "r2", "s1", "s2"]


async def test_reads_of_a_closed_connection_are_passed_to_work_to_be_dropped(lane: ReadLane[str], work: Work) -> None:
    client = FakeConnection()
    client.takes_answers = False
    lane.submit(client.real, "a")
    await turn()
    assert work.begun == []
    client.is_gone = True
    client.drained.set()
    await turn()
    assert work.begun == ["a"]


async def test_a_lane_that_was_idle_begins_again(lane: ReadLane[str], work: Work) -> None:
    client = FakeConnection()
    for request in "abc":
        lane.submit(client.real, request)
        await turn()
        await work.end(request)
    assert work.ended == ["a", "b", "c"]


async def test_closing_drops_waiting_and_running_reads(lane: ReadLane[str], work: Work) -> None:
    client = FakeConnection()
    for request in "abc":
        lane.submit(client.real, request)
    await turn()
    await lane.close()
    await turn()
    assert (work.begun, work.ended) == (["a", "b"], [])
