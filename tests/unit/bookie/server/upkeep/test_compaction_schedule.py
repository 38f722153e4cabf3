"""Tests when logs are compacted and which ones, on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest

from quire_bookie import limits
from quire_bookie.errors import ConfigError, StorageError
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.server.upkeep.compaction_pace import LatencyWatch
from quire_bookie.server.upkeep.compaction_schedule import CompactionSchedule, DiskPressure, chosen_logs
from quire_bookie.settings.compaction import CompactionSettings, Kind
from quire_bookie.storage.compaction import Pace
from quire_bookie.storage.logs.log_usages import LogUsage
from tests.sim.loop import SimLoop, simulate

SHORT = CompactionSettings(minor_interval_s=100.0, major_interval_s=1000.0)
MIB = limits.MIB


def usage(log: int, share: float) -> LogUsage:
    return LogUsage(log, int(share * 1000), 1000, 2000)


class FakeStorage:
    """Records calls. Every log has ten batches of 1 MiB."""

    def __init__(self, *usages: LogUsage) -> None:
        self.usages = list(usages)
        self.calls: list[tuple[float, list[int]]] = []
        self.batches = 0
        self.failure: Exception | None = None

    async def usages_now(self) -> list[LogUsage]:
        return self.usages

    async def compact(self, logs: Sequence[int], pace: Pace, /) -> int:
        self.calls.append((asyncio.get_running_loop().time(), list(logs)))
        if self.failure is not None:
            raise self.failure
        for log in logs:
            for _ in range(10):
                if pace.stopping:
                    return 1
                self.batches += 1
                await pace.spend(MIB, 100)
            self.usages = [each for each in self.usages if each.log != log]
        return 500 * len(logs)


class Clock:
    """A wall clock far from loop time."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


class World:
    """Holds a schedule that runs during the test."""

    def __init__(self, settings: CompactionSettings, *usages: LogUsage) -> None:
        self.storage = FakeStorage(*usages)
        self.pressure = DiskPressure.NONE
        self.adds = LatencyHistogram()
        self.schedule = CompactionSchedule(
            self.storage,
            settings,
            Clock(),
            pressure=lambda: self.pressure,
            latencies=LatencyWatch(lambda: (self.adds,), settings.latency_max_s),
        )

    @property
    def compacted(self) -> list[list[int]]:
        return [logs for _when, logs in self.storage.calls]


def simulated(
    work: Callable[[World], Coroutine[None, None, None]], *usages: LogUsage, settings: CompactionSettings = SHORT
) -> None:
    async def main(_loop: SimLoop) -> None:
        world = World(settings, *usages)
        task = asyncio.ensure_future(world.schedule.run())
        await asyncio.sleep(0.5)
        await work(world)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    simulate(main, seed=1, time_limit_s=1e7)


def test_the_emptiest_log_is_first_and_of_equal_ones_the_oldest() -> None:
    usages = [usage(1, 0.5), usage(2, 0.0), usage(3, 0.79), usage(4, 0.8), usage(5, 0.1), usage(6, 0.5)]
    assert chosen_logs(usages, 0.8) == [2, 5, 1, 6, 3]
    assert chosen_logs(usages, 0.2) == [2, 5]
    assert chosen_logs(usages, 0.0) == []


def test_minor_and_major_run_at_their_intervals_and_a_major_one_counts_as_a_minor_one() -> None:
    async def work(world: World) -> None:
        await asyncio.sleep(950)
        assert world.compacted == [[1]], "at 120 s; then nothing is empty enough"
        status = world.schedule.status()
        assert status.minor_compaction_counter >= 7
        assert (status.major_compaction_counter, status.last_major_compaction_time_ms) == (0, 0)
        await asyncio.sleep(80)
        assert world.compacted == [[1], [2]]
        status = world.schedule.status()
        assert status.major_compaction_counter == 1
        assert status.last_major_compaction_time_ms > 1_700_000_900_000
        minors = status.minor_compaction_counter
        await asyncio.sleep(60)
        assert world.schedule.status().minor_compaction_counter == minors

    simulated(work, usage(1, 0.1), usage(2, 0.5), usage(3, 0.9))


@pytest.mark.parametrize(
    "settings",
    [
        CompactionSettings(minor_threshold=0.0, minor_interval_s=100, major_interval_s=0.0),
        CompactionSettings(minor_interval_s=0.0, major_threshold=0.0, major_interval_s=100),
    ],
)
def test_a_threshold_or_an_interval_of_zero_turns_a_kind_off(settings: CompactionSettings) -> None:
    async def work(world: World) -> None:
        await asyncio.sleep(5000)
        assert world.compacted == []

    simulated(work, usage(1, 0.1), settings=settings)


def test_each_kind_can_be_suspended_and_resumed() -> None:
    async def work(world: World) -> None:
        world.schedule.suspend(minor=True)
        assert world.schedule.is_suspended(Kind.MINOR)
        assert not world.schedule.is_suspended(Kind.MAJOR)
        world.schedule.suspend(major=True)
        await asyncio.sleep(3000)
        assert world.compacted == []
        world.schedule.resume(minor=True)
        await asyncio.sleep(1)
        assert world.compacted == [[1]]
        world.schedule.resume(major=True)
        await asyncio.sleep(5)
        assert world.compacted == [[1], [2]]

    simulated(work, usage(1, 0.1), usage(2, 0.5))


def test_a_suspension_ends_a_running_compaction() -> None:
    async def work(world: World) -> None:
        await asyncio.sleep(121)
        assert world.schedule.status().minor_compacting
        batches = world.storage.batches
        world.schedule.suspend(minor=True)
        await asyncio.sleep(20)
        assert world.storage.batches <= batches + 1
        assert not world.schedule.status().minor_compacting

    slow = CompactionSettings(minor_interval_s=100.0, major_interval_s=1000.0, rate_bytes_s=MIB // 4)
    simulated(work, usage(1, 0.1), settings=slow)


def test_an_almost_full_disk_suspends_major_and_a_full_one_both() -> None:
    async def work(world: World) -> None:
        world.pressure = DiskPressure.ALMOST_FULL
        await asyncio.sleep(2000)
        assert world.compacted == [[1]]
        world.pressure = DiskPressure.FULL
        world.storage.usages.append(usage(5, 0.1))
        await asyncio.sleep(2000)
        assert world.compacted == [[1]]
        world.pressure = DiskPressure.ALMOST_FULL
        await asyncio.sleep(40)
        assert world.compacted == [[1], [5]]
        world.pressure = DiskPressure.NONE
        await asyncio.sleep(40)
        assert world.compacted == [[1], [5], [2]]

    settings = CompactionSettings(minor_interval_s=100.0, major_interval_s=1000.0, force_when_no_space=False)
    simulated(work, usage(1, 0.1), usage(2, 0.5), settings=settings)


def test_a_full_disk_starts_a_compaction_if_allowed() -> None:
    async def work(world: World) -> None:
        world.schedule.suspend(minor=True, major=True)
        world.pressure = DiskPressure.FULL
        await asyncio.sleep(50)
        assert world.compacted == [[1, 2]]
        world.storage.usages.append(usage(7, 0.3))
        await asyncio.sleep(70)
        assert world.compacted == [[1, 2], [7]], "again as long as it is full"

    simulated(work, usage(1, 0.1), usage(2, 0.5))


def test_a_forced_compaction_runs_at_once_even_if_suspended() -> None:
    async def work(world: World) -> None:
        world.schedule.suspend(minor=True, major=True)
        world.pressure = DiskPressure.ALMOST_FULL
        world.schedule.force(major=True)
        assert world.schedule.status().force_compacting
        await asyncio.sleep(0.5)
        status = world.schedule.status()
        assert (status.force_compacting, status.major_compacting, status.minor_compacting) == (True, True, False)
        await asyncio.sleep(10)
        assert world.compacted == [[1, 2]]
        assert not world.schedule.status().force_compacting

    simulated(work, usage(1, 0.1), usage(2, 0.5))


def test_forcing_both_runs_both_one_right_after_the_other() -> None:
    async def work(world: World) -> None:
        world.schedule.force(minor=True, major=True)
        await asyncio.sleep(limits.COMPACTION_TICK_S / 2)
        status = world.schedule.status()
        assert (status.major_compaction_counter, status.minor_compaction_counter) == (1, 1)

    simulated(work, usage(1, 0.1))


def test_a_run_ends_with_its_time_budget() -> None:
    async def work(world: World) -> None:
        world.schedule.force(minor=True)
        await asyncio.sleep(500)
        assert world.storage.batches == 10

    settings = CompactionSettings(
        minor_interval_s=5000.0, major_interval_s=10_000.0, minor_time_max_s=10.0, rate_bytes_s=MIB
    )
    simulated(work, usage(1, 0.1), usage(2, 0.1), settings=settings)


def test_the_rate_may_be_in_entries_instead_of_bytes() -> None:
    async def work(world: World) -> None:
        start = asyncio.get_running_loop().time()
        await world.schedule._run(Kind.MINOR, forced=True)
        assert asyncio.get_running_loop().time() - start == pytest.approx(100.0)

    settings = CompactionSettings(throttle_by_bytes=False, rate_entries_s=10)
    simulated(work, usage(1, 0.1), settings=settings)


def test_it_pauses_while_adds_are_slow_and_counts_that() -> None:
    async def work(world: World) -> None:
        world.schedule.force(minor=True)
        for _ in range(8):
            world.adds.observe(0.5, 100)
            await asyncio.sleep(1.0)
        slow = world.storage.batches
        assert slow <= 3
        await asyncio.sleep(20.0)
        assert world.storage.batches == 10
        assert world.schedule.stats.pauses >= 5

    settings = CompactionSettings(minor_interval_s=100.0, major_interval_s=1000.0, rate_bytes_s=MIB)
    simulated(work, usage(1, 0.1), settings=settings)


def test_a_failed_run_is_counted_and_the_next_one_tries_again() -> None:
    async def work(world: World) -> None:
        world.storage.failure = StorageError("test")
        await asyncio.sleep(350)
        assert world.schedule.stats.failed_runs >= 2
        world.storage.failure = None
        await asyncio.sleep(150)
        assert world.storage.usages == []
        assert world.schedule.stats.freed_bytes == 500

    simulated(work, usage(1, 0.1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"minor_threshold": 1.0}, "minorCompactionThreshold"),
        ({"major_threshold": -0.1}, "majorCompactionThreshold"),
        ({"minor_threshold": 0.8}, "is not below majorCompactionThreshold"),
        ({"minor_interval_s": 86_400.0}, "is not below majorCompactionInterval"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CompactionSettings(**values)  # type: ignore[arg-type]
