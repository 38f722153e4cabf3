"""Windows over an object: fetched once, ahead for sequential readers, never above their limit."""

import asyncio

import pytest

from quire_bookie.errors import ConfigError
from quire_bookie.limits import KIB
from quire_broker.errors import SegmentMissingError
from quire_broker.offload.settings import WindowSettings
from quire_broker.offload.windows import WindowCache

WIDTH = 64 * KIB


class Object:
    """Bytes that are fetched when `gate` is open."""

    def __init__(self, windows: int) -> None:
        self.data = bytes(range(windows)) * WIDTH
        self.starts: list[int] = []
        self.under_way = self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch(self, start: int, end: int) -> bytes:
        self.starts.append(start // WIDTH)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.gate.wait()
        self.under_way -= 1
        return self.data[start:end]


def cache_of(windows: int, ahead: int) -> WindowCache:
    return WindowCache(WindowSettings(windows * WIDTH, WIDTH, ahead))


async def test_a_sequential_reader_finds_the_next_windows_fetched() -> None:
    stored, cache = Object(20), cache_of(8, 2)
    windows = cache.open(len(stored.data), stored.fetch)
    await windows.window(0)
    await windows.window(1)
    assert stored.starts[:3] == [0, 1, 2] and max(stored.starts) <= 3
    assert cache.size_bytes <= 8 * WIDTH
    await cache.close()


async def test_a_jump_fetches_nothing_ahead() -> None:
    stored, cache = Object(20), cache_of(8, 2)
    windows = cache.open(len(stored.data), stored.fetch)
    await windows.window(10)
    await windows.window(4)
    assert stored.starts == [10, 4]
    await cache.close()


async def test_one_fetch_serves_all_waiting_readers() -> None:
    stored, cache = Object(4), cache_of(8, 0)
    windows = cache.open(len(stored.data), stored.fetch)
    stored.gate.clear()
    waiting = [asyncio.create_task(windows.window(2)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    stored.gate.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    expected = stored.data[2 * WIDTH : 3 * WIDTH]
    assert all(isinstance(each, memoryview) and bytes(each) == expected for each in found[1:])
    assert stored.starts == [2]
    await cache.close()


async def test_many_readers_stay_within_the_bound() -> None:
    cache = cache_of(8, 4)
    objects = [Object(6) for _ in range(20)]
    readers = [cache.open(len(each.data), each.fetch) for each in objects]

    async def read_all(reader: int) -> None:
        for index in range(6):
            await readers[reader].window(index)

    await asyncio.gather(*(read_all(reader) for reader in range(20)))
    assert cache.size_bytes <= 8 * WIDTH
    assert max(each.most for each in objects) <= 4
    await cache.close()


async def test_the_next_reader_tries_a_failed_fetch_again() -> None:
    cache, failures = cache_of(8, 0), [SegmentMissingError("gone")]

    async def fetch(start: int, end: int) -> bytes:
        if failures:
            raise failures.pop()
        return bytes(end - start)

    windows = cache.open(WIDTH, fetch)
    with pytest.raises(SegmentMissingError):
        await windows.window(0)
    assert len(await windows.window(0)) == WIDTH
    assert (cache.stats.failed, cache.stats.fetched) == (1, 1)
    await cache.close()


@pytest.mark.parametrize("values", [(WIDTH, WIDTH, 1), (10 * WIDTH, 100, 1), (10 * WIDTH, WIDTH, -1)])
def test_contradicting_limits_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=r"use 65536 bytes or more|must hold 4 times"):
        WindowSettings(*values)
