"""Tests how often a copy asks a bookie that is unreachable, and that it asks again when the bookie is back."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from quire_bookie.client.links.bookie_link import Purpose
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import BookieUnavailableError
from quire_bookie.limits import UNREACHABLE_REMEMBERED_S
from quire_bookie.model import BookieId, EntryId, LedgerMetadata
from quire_bookie.recovery.fragment_copy import Copied, Target, copy_fragment
from quire_bookie.recovery.fragments import closed_fragments
from quire_bookie.recovery.reachable_links import ReachableLinks
from tests.unit.bookie.recovery.small_cluster import LEDGER, SmallCluster, run

ENTRIES = 60


async def copied(cluster: SmallCluster, metadata: LedgerMetadata, bookie: BookieId) -> Copied:
    """Copy the whole ledger to the bookie at the last position."""
    (fragment,) = closed_fragments(metadata)
    target = Target(2, bookie, ((EntryId(0), EntryId(ENTRIES - 1)),))
    handle = cluster.access.handle(LEDGER, metadata)
    return await copy_fragment(handle, metadata, fragment, [target], RateLimit(0), 1 << 16)


def test_a_dead_bookie_is_asked_a_few_times_and_not_for_each_entry_that_only_it_may_hold() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        kept = [0, 1, 2, 50, 51]
        metadata = await cluster.write({a: kept, b: kept, c: range(ENTRIES)}, last=ENTRIES - 1)
        cluster.world.kill_bookie(cluster.place(c).host)  # registered as long as its lease runs
        found = await copied(cluster, metadata, d)
        assert sorted(found.unreadable) == [entry for entry in range(ENTRIES) if entry not in kept]
        assert all(isinstance(error, BookieUnavailableError) for error in found.unreadable.values()), "never missing"
        assert await cluster.held(d, ENTRIES - 1) == kept
        failures = sum(one.stats.connect_failures for one in cluster.access.pool.connections if one.bookie == c)
        assert 2 <= failures <= 10, "with the probes of the pool"

    run(scenario)


def test_a_bookie_that_comes_back_is_asked_by_the_next_copy() -> None:
    async def scenario(cluster: SmallCluster) -> None:
        a, b, c, d = cluster.bookies
        metadata = await cluster.write({a: [0], b: [0], c: range(ENTRIES)}, last=ENTRIES - 1)
        host = cluster.place(c).host
        cluster.world.kill_bookie(host)
        assert (await copied(cluster, metadata, d)).unreadable
        await cluster.world.start_bookie(host)
        assert not (await copied(cluster, metadata, d)).unreadable
        assert await cluster.held(d, ENTRIES - 1) == list(range(ENTRIES))

    run(scenario)


class _Link:
    """Answers as told, at the next step of the loop."""

    def __init__(self, bookie: BookieId, answers: list[Any]) -> None:
        self.bookie = bookie
        self.asked = 0
        self._answers = answers

    def read(self, *arguments: Any, **_: Any) -> None:
        self.asked += 1
        asyncio.get_running_loop().call_soon(arguments[2], self._answers.pop(0))


class _Links:
    def __init__(self, link: _Link) -> None:
        self._link = link

    def link(self, *_: Any) -> _Link:
        return self._link


async def _read(links: Any, *, times: int = 1) -> list[Any]:
    found: list[Any] = []
    for _ in range(times):
        link = links.link(BookieId("b"), Purpose.READ)
        link.read(LEDGER, EntryId(0), found.append, fence_key=None, high_priority=False)
    while len(found) < times:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return found


GONE = BookieUnavailableError("gone")


@pytest.mark.parametrize(("answers", "times", "asked"), [([GONE, GONE], 3, 2), ([GONE, b"x", GONE, b"y"], 4, 4)])
async def test_only_a_request_that_fails_after_another_one_failed_is_remembered(
    answers: Sequence[Any], times: int, asked: int
) -> None:
    link = _Link(BookieId("b"), list(answers))
    links = ReachableLinks(_Links(link))  # type: ignore[arg-type]
    for _ in range(times):
        await _read(links)
    assert link.asked == asked


async def test_requests_that_one_lost_connection_fails_together_are_one_failure() -> None:
    link = _Link(BookieId("b"), [GONE, GONE, GONE, b"x"])
    links = ReachableLinks(_Links(link))  # type: ignore[arg-type]
    assert await _read(links, times=3) == [GONE] * 3
    assert await _read(links) == [b"x"]


def test_an_unreachable_bookie_is_asked_again_after_a_while() -> None:
    async def scenario(_: SmallCluster) -> None:
        link = _Link(BookieId("b"), [GONE, GONE, b"x", b"y"])
        links = ReachableLinks(_Links(link))  # type: ignore[arg-type]
        for _number in range(5):
            assert await _read(links) == [GONE]
        assert link.asked == 2
        await asyncio.sleep(UNREACHABLE_REMEMBERED_S)
        assert [*await _read(links), *await _read(links)] == [b"x", b"y"]

    run(scenario)
