"""Tasks of one process share an open cluster, until it is idle, old, or failed one of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quire_jobs.errors import SourceUnavailableError
from quire_jobs.source import task_cluster as module
from quire_jobs.source.options import SourceOptions, parse_options
from quire_jobs.source.task_cluster import task_cluster

HERE = parse_options({"metadata": "etcd://here:1", "ledgers": "1", "connectionIdleS": "0"})


class Opened:
    """Counts opened clusters and lists closed ones."""

    def __init__(self) -> None:
        self.count = 0
        self.closed: list[int] = []
        self.failure: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.given_up = 0

    @asynccontextmanager
    async def open(self, _where: Any) -> AsyncIterator[Any]:
        """Replace `open_cluster`."""
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        number = self.count
        self.count += 1
        try:
            yield number
        finally:
            self.closed.append(number)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found = Opened()
    monkeypatch.setattr(module, "open_cluster", found.open)
    return found


async def use(where: SourceOptions = HERE, error: BaseException | None = None) -> Any:
    """Run one task."""
    async with task_cluster(where) as cluster:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return cluster


async def settle() -> None:
    """Run due timers and their consequences."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_consecutive_tasks_share_a_cluster_and_it_is_closed_after_the_last(opened: Opened) -> None:
    async with task_cluster(HERE):
        assert [await use(), *await asyncio.gather(use(), use())] == [0, 0, 0]
        assert not opened.closed
    assert await use() == 0
    await asyncio.sleep(0.01)
    assert 0 in opened.closed
    assert await use() == 1


async def test_another_address_is_another_cluster(opened: Opened) -> None:
    there = parse_options({"metadata": "etcd://there:1", "ledgers": "1"})
    assert [*await asyncio.gather(use(), use(there))] == [0, 1]


async def test_a_cluster_in_which_a_task_failed_is_not_used_by_later_tasks(opened: Opened) -> None:
    async with task_cluster(HERE):
        with pytest.raises(ValueError, match="broken"):
            await use(error=ValueError("broken"))
        assert await use() == 1
        assert 0 not in opened.closed
    await settle()
    assert 0 in opened.closed


async def test_a_cluster_is_used_again_after_a_cancelled_task(opened: Opened) -> None:
    async with task_cluster(HERE):
        with pytest.raises(asyncio.CancelledError):
            await use(error=asyncio.CancelledError())
        assert await use() == 0


async def test_a_failed_opening_reaches_all_waiting_tasks_and_is_retried(opened: Opened) -> None:
    for failure in (SourceUnavailableError("no etcd"), RuntimeError("a mistake")):
        opened.failure = failure
        results = await asyncio.gather(use(), use(), return_exceptions=True)
        assert [*results] == [failure, failure]
    opened.failure = None
    assert await use() == 0


async def test_an_old_cluster_is_closed_after_its_last_task(opened: Opened) -> None:
    old = HERE.model_copy(update={"connection_age_max_s": 0.0})
    async with task_cluster(old):
        assert await use(old) == 1
        assert 0 not in opened.closed
    await settle()
    assert sorted(opened.closed) == [0, 1]


async def test_an_idle_cluster_stays_open_for_the_configured_time(opened: Opened) -> None:
    patient = HERE.model_copy(update={"connection_idle_s": 3600.0})
    assert [await use(patient), await use(), await use(patient)] == [0, 1, 0]
    await settle()
    assert 0 not in opened.closed


async def test_an_opening_is_cancelled_with_its_last_waiting_task_and_the_next_task_opens_again(
    opened: Opened,
) -> None:
    opened.answers.clear()
    first, second = asyncio.create_task(use()), asyncio.create_task(use())
    await settle()
    first.cancel()
    await settle()
    assert opened.given_up == 0, "a task still waits for it"
    second.cancel()
    after = asyncio.create_task(use())
    await settle()
    assert opened.given_up == 1
    assert [type(each) for each in await asyncio.gather(first, second, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    opened.answers.set()
    assert await after == 0
