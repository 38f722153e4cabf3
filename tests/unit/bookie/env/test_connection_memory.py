"""The byte budget of connections: its accounts, its waiters, closed connections, and that no waiter waits for ever."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quire_bookie.env.connection_account import Account, Closed
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.errors import ConfigError
from quire_bookie.limits import LARGE_ANSWER_BYTES
from quire_bookie.settings.memory import MemorySettings
from tests.sim.loop import simulate

MAX = 1000
SETTINGS = MemorySettings(MAX, stalled_s=60.0, slow_s=600.0, pressure_s=2.0)


class Peer:
    """A connection whose peer the test controls."""

    def __init__(self, memory: ConnectionMemory) -> None:
        self.memory = memory
        self.account: Account = memory.open(self)
        self.listening = True
        self.unsent = 0
        self.waits = False
        self.closed: list[str] = []
        self.sent = 0

    def unsent_bytes(self) -> int:
        return self.unsent

    def wait_for_memory(self, waits: bool) -> None:
        self.waits = waits

    def close_at_once(self, why: str) -> None:
        self.closed.append(why)

    def receives(self, held: int, announced: int, *, began: bool = True) -> None:
        """Receive a buffer."""
        self.memory.received(self.account, held, announced, began)
        self.memory.wait_if_full(self.account)

    def queues(self, size: int) -> None:
        """Queue a response that the socket does not send."""
        self.unsent += size
        self.memory.queued(self.account, size)


def simulated(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the scenario in virtual time."""
    simulate(lambda _: scenario(), seed=1)


async def test_an_incomplete_frame_counts_by_its_announced_length() -> None:
    memory = ConnectionMemory(SETTINGS)
    peer = Peer(memory)
    peer.receives(10, 300)
    assert (memory.receiving_bytes, memory.used_bytes) == (300, 300)
    peer.receives(200, 300, began=False)
    assert memory.used_bytes == 300
    peer.receives(0, 0)
    assert (memory.receiving_bytes, memory.used_bytes) == (0, 0)


async def test_a_frame_that_does_not_fit_is_not_read_until_memory_is_free() -> None:
    memory = ConnectionMemory(SETTINGS)
    first, second, third = (Peer(memory) for _ in range(3))
    first.receives(10, 700)
    second.receives(10, 500)
    assert (first.waits, second.waits) == (False, True)
    assert memory.used_bytes == 710, "received bytes count, announced ones do not"
    third.receives(5, 100)
    assert third.waits, "it queues behind the waiter, although it would fit"
    first.receives(0, 0)
    await asyncio.sleep(0)
    assert not second.waits and not third.waits
    assert memory.used_bytes == 600


async def test_a_connection_that_receives_data_while_the_budget_is_full_waits() -> None:
    memory = ConnectionMemory(SETTINGS)
    peer = Peer(memory)
    memory.hold(MAX)
    memory.wait_if_full(peer.account)
    assert peer.waits and memory.is_full
    memory.let_go(1)
    await asyncio.sleep(0)
    assert not peer.waits


async def test_reads_wait_in_the_queue_and_a_cancelled_one_leaves_it() -> None:
    memory = ConnectionMemory(SETTINGS)
    await memory.reserve(800)
    waiting = [asyncio.ensure_future(memory.reserve(300)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    memory.give_back(800)
    await asyncio.gather(*waiting[1:])
    assert memory.read_bytes == memory.used_bytes == 600
    for _ in range(2):
        memory.give_back(300)
    assert memory.used_bytes == 0


async def test_a_read_cancelled_after_its_grant_frees_its_memory() -> None:
    memory = ConnectionMemory(SETTINGS)
    await memory.reserve(MAX)
    waiting = asyncio.ensure_future(memory.reserve(300))
    await asyncio.sleep(0)
    memory.give_back(MAX)
    memory._grant()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert memory.used_bytes == 0


async def test_a_closed_connection_frees_its_memory_once() -> None:
    memory = ConnectionMemory(SETTINGS)
    peer = Peer(memory)
    peer.receives(10, 300)
    peer.queues(50)
    memory.close(peer.account)
    memory.close(peer.account)
    peer.queues(50)
    peer.receives(10, 300)
    memory.settle(peer.account, 0)
    assert (memory.receiving_bytes, memory.unsent_bytes, memory.used_bytes) == (0, 0, 0)


async def test_a_large_response_counts_as_a_whole_until_it_is_sent() -> None:
    size = LARGE_ANSWER_BYTES
    memory = ConnectionMemory(MemorySettings(bytes_max=10 * size))
    peer = Peer(memory)
    peer.queues(50)
    peer.queues(size)
    peer.queues(2 * size)
    for unsent, counted in ((3 * size + 20, 3 * size + 20), (3 * size, 3 * size), (2 * size + 1, 3 * size)):
        memory.settle(peer.account, unsent)
        assert (memory.unsent_bytes, memory.used_bytes) == (counted, counted)
    memory.settle(peer.account, 2 * size)
    assert memory.unsent_bytes == 2 * size
    memory.settle(peer.account, 1)
    assert memory.unsent_bytes == 2 * size
    memory.settle(peer.account, 0)
    assert (memory.unsent_bytes, memory.used_bytes, len(peer.account.large)) == (0, 0, 0)


async def test_a_connection_that_closes_while_waiting_leaves_the_queue() -> None:
    memory = ConnectionMemory(SETTINGS)
    big, gone, next_one = (Peer(memory) for _ in range(3))
    big.receives(10, 900)
    gone.receives(10, 500)
    next_one.receives(5, 60)
    memory.close(gone.account)
    await asyncio.sleep(0)
    assert not next_one.waits
    assert memory.used_bytes == 960


def test_a_peer_that_stops_in_the_middle_of_a_frame_is_closed() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        stopped, goes_on, held_up = (Peer(memory) for _ in range(3))
        for peer in (stopped, goes_on, held_up):
            peer.receives(10, 100)
        held_up.listening = False  # the bookie is full: the peer did not cause its silence
        for held in range(11, 91):
            await asyncio.sleep(1.0)
            goes_on.receives(held, 100, began=False)
        assert len(stopped.closed) == 1 and "10 bytes of a frame" in stopped.closed[0]
        assert not goes_on.closed and not held_up.closed
        assert memory.closed[Closed.STALLED_FRAME] == 1
        assert memory.used_bytes == 200

    simulated(scenario)


def test_a_peer_that_sends_single_bytes_is_closed_later() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        peer = Peer(memory)
        peer.receives(1, 900)
        for held in range(2, 700):
            await asyncio.sleep(1.0)
            if peer.closed:
                break
            peer.receives(held, 900, began=False)
        assert 595 < held < 610

    simulated(scenario)


def test_consecutive_frames_are_not_a_slow_frame() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        peer = Peer(memory)
        for _ in range(2000):
            peer.receives(10, 100)
            await asyncio.sleep(1.0)
        assert not peer.closed

    simulated(scenario)


def test_a_peer_that_does_not_read_is_closed_and_one_that_reads_is_not() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        stuck, reader, slow = (Peer(memory) for _ in range(3))
        stuck.queues(100)
        slow.queues(700)
        for _ in range(90):
            reader.queues(50)
            await asyncio.sleep(1.0)
            reader.unsent = 10  # never empty, and the earlier responses were sent
            slow.unsent -= 1
        assert len(stuck.closed) == 1 and "has not read 100 bytes" in stuck.closed[0]
        assert not reader.closed and not slow.closed
        memory.close(reader.account)
        for _ in range(530):
            await asyncio.sleep(1.0)
            slow.unsent -= 1
        assert slow.closed, "it would take longer than ten minutes"
        assert memory.closed[Closed.STALLED_READER] == 2

    simulated(scenario)


def test_under_pressure_the_largest_and_longest_holders_are_closed_first() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        large, small, reader = (Peer(memory) for _ in range(3))
        large.receives(10, 500)
        small.receives(10, 100)
        reader.queues(300)
        await asyncio.sleep(5.0)
        assert not large.closed, "no connection waits"
        served = Peer(memory)
        served.receives(10, 200)
        assert served.waits
        await asyncio.sleep(1.0)
        assert not served.waits
        assert large.closed and not small.closed and not reader.closed and not served.closed
        assert memory.closed[Closed.PRESSURE_FRAME] == 1
        assert "others wait for memory" in large.closed[0]

    simulated(scenario)


def test_many_small_holders_cannot_block_the_others() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        many = [Peer(memory) for _ in range(100)]
        for peer in many:
            peer.receives(10, 500)  # one or two fit; the others wait with their received bytes
        await asyncio.sleep(0.5)
        served = Peer(memory)
        served.receives(10, 400)
        await asyncio.sleep(30.0)
        assert not served.waits
        assert memory.used_bytes <= MAX + MAX // 4

    simulated(scenario)


def test_data_beyond_the_hard_limit_is_dropped_at_once() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        for _ in range(100):
            Peer(memory).receives(100, 100)
            await asyncio.sleep(0.06)
            assert memory.used_bytes <= MAX + MAX // 4 + 100
        assert memory.closed[Closed.PRESSURE_FRAME] > 0

    simulated(scenario)


def test_a_check_updates_the_sent_bytes_and_the_checks_end() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        peer = Peer(memory)
        peer.queues(300)
        peer.unsent = 0
        assert memory.unsent_bytes == 300
        await asyncio.sleep(1.5)
        assert memory.unsent_bytes == 0
        await asyncio.sleep(1.5)
        assert memory._timer is None

    simulated(scenario)


def test_a_budget_that_a_few_frames_fill_is_refused() -> None:
    with pytest.raises(ConfigError, match="connectionMemoryMaxMb"):
        MemorySettings(79).check(10)
    MemorySettings(80).check(10)


def test_a_waiter_within_a_frame_is_not_closed_while_a_read_holds_the_memory() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        peer = Peer(memory)
        await memory.reserve(800)
        peer.receives(5, 300)
        assert peer.waits
        await asyncio.sleep(10 * SETTINGS.pressure_s)
        assert not peer.closed
        memory.give_back(800)
        await asyncio.sleep(0.1)
        assert not peer.waits and not peer.closed

    simulated(scenario)


async def test_waiting_frames_count_on_top_of_the_budget() -> None:
    memory = ConnectionMemory(SETTINGS)
    await memory.reserve(800)
    first, second = Peer(memory), Peer(memory)
    first.receives(100, 300)
    second.receives(140, 500)
    assert first.waits and second.waits
    assert memory.used_bytes == 1040 and not memory.is_full, "they take no memory from those that are served"
    memory.give_back(100)
    await asyncio.sleep(0)
    assert not first.waits and second.waits and memory.used_bytes == 1140
    assert memory.is_full
    memory.give_back(700)
    await asyncio.sleep(0)
    assert not second.waits and memory.used_bytes == 800


async def test_waiting_frames_hold_a_quarter_of_the_budget_and_beyond_it_the_largest_are_closed() -> None:
    memory = ConnectionMemory(SETTINGS)
    await memory.reserve(800)
    small, large, as_large, last = (Peer(memory) for _ in range(4))
    small.receives(30, 300)
    large.receives(100, 300)
    as_large.receives(100, 300)
    last.receives(20, 300)
    assert not any(peer.closed for peer in (small, large, as_large, last)), "250 bytes"
    last.receives(21, 300, began=False)
    assert as_large.closed and not (small.closed or large.closed or last.closed), "the newest of the largest"
    assert memory.used_bytes == 951
    memory.give_back(800)
    await asyncio.sleep(0)
    assert not (small.waits or large.waits or last.waits)


def test_small_waiting_frames_are_never_closed_for_what_others_hold() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        memory.hold(MAX + MAX // 2)
        small, other = Peer(memory), Peer(memory)
        small.receives(10, 300)
        other.receives(20, 300)
        await asyncio.sleep(10 * SETTINGS.pressure_s)
        assert small.waits and other.waits and not small.closed and not other.closed

    simulated(scenario)


async def test_the_rest_of_a_frame_that_is_charged_is_read_while_the_budget_is_full() -> None:
    memory = ConnectionMemory(SETTINGS)
    peer = Peer(memory)
    peer.receives(10, 300)
    memory.hold(MAX)
    peer.receives(200, 300, began=False)
    assert not peer.waits, "it would queue again for each buffer of its frame"
    peer.receives(5, 50)
    assert peer.waits, "it brought another request"


def test_under_pressure_a_peer_that_reads_nothing_is_closed_after_a_quarter_of_the_time() -> None:
    async def scenario() -> None:
        memory = ConnectionMemory(SETTINGS)
        reader, other = Peer(memory), Peer(memory)
        reader.queues(990)
        await asyncio.sleep(2.0)
        other.receives(5, 300)
        assert other.waits
        await asyncio.sleep(0.1 + SETTINGS.pressure_s / 4)
        assert reader.closed and not other.closed

    simulated(scenario)
