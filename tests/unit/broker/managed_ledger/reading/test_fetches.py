"""Fetches that several readers join."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from quire_bookie.env.background import Background
from quire_bookie.errors import NoSuchEntryError
from quire_bookie.model import EntryId
from quire_broker.managed_ledger.errors import ManagedLedgerClosedError
from quire_broker.managed_ledger.ledger_port import Entry
from quire_broker.managed_ledger.reading.fetches import Fetch, Fetches
from tests.sim.loop import simulate

_ALL = 1 << 30


@dataclass
class ReadEntry:
    entry_id: EntryId
    payload: bytes


class Bookies:
    """Entries of 10 bytes; each fetch takes a second and returns at most `entries_max`."""

    def __init__(self) -> None:
        self.fetched: list[tuple[int, int]] = []
        self.entries_max = 1000
        self.damaged = -1
        self.background = Background()
        self.fetches = Fetches(self.background, self._fetch)

    async def _fetch(self, fetch: Fetch) -> Sequence[Entry]:
        self.fetched.append((fetch.first, fetch.last))
        await asyncio.sleep(1)
        if fetch.first == self.damaged:
            raise NoSuchEntryError(f"no entry {fetch.first}")
        count = min(fetch.last - fetch.first + 1, self.entries_max)
        return [ReadEntry(EntryId(fetch.first + at), b"x" * 10) for at in range(count)]

    async def read(self, first: int, last: int, bytes_max: int = _ALL, *, far: bool = False) -> tuple[list[int], bool]:
        found, joined = await self.fetches.entries(3, first, last, bytes_max, far_behind=far)
        return [entry.entry_id for entry in found], joined


def run(scenario: Callable[[Bookies], Coroutine[Any, Any, None]]) -> None:
    async def started() -> None:
        await scenario(Bookies())

    simulate(lambda _: started(), seed=1)


def test_readers_at_the_same_position_share_one_fetch_and_get_what_each_asked_for() -> None:
    async def scenario(bookies: Bookies) -> None:
        found = await asyncio.gather(
            bookies.read(5, 14),
            bookies.read(5, 7),
            bookies.read(5, 14, 25),
            bookies.read(5, 14, 1),
            bookies.read(8, 20),
        )
        assert bookies.fetched == [(5, 14)]
        assert [ids for ids, _ in found] == [[*range(5, 15)], [5, 6, 7], [5, 6], [5], [*range(8, 15)]]
        assert [joined for _, joined in found] == [False, True, True, True, True]
        assert not bookies.fetches._running

    run(scenario)


def test_a_reader_whose_entry_a_fetch_did_not_return_fetches_it() -> None:
    async def scenario(bookies: Bookies) -> None:
        bookies.entries_max = 2
        found = await asyncio.gather(bookies.read(5, 14), bookies.read(8, 9))
        assert [ids for ids, _ in found] == [[5, 6], [8, 9]]
        assert bookies.fetched == [(5, 14), (8, 9)]

    run(scenario)


def test_a_near_reader_does_not_wait_for_the_turn_of_a_catch_up() -> None:
    async def scenario(bookies: Bookies) -> None:
        found = await asyncio.gather(bookies.read(5, 14, far=True), bookies.read(5, 14), bookies.read(5, 14, far=True))
        assert bookies.fetched == [(5, 14), (5, 14)]
        assert [joined for _, joined in found] == [False, False, True]

    run(scenario)


def test_an_error_reaches_all_readers_of_the_entry_but_not_those_of_later_ones() -> None:
    async def scenario(bookies: Bookies) -> None:
        bookies.damaged = 5
        reads = (bookies.read(5, 14), bookies.read(5, 6), bookies.read(6, 14))
        one, two, three = await asyncio.gather(*reads, return_exceptions=True)
        assert isinstance(one, NoSuchEntryError)
        assert isinstance(two, NoSuchEntryError)
        assert three == ([*range(6, 15)], False)

    run(scenario)


def test_a_cancelled_reader_leaves_the_fetch_to_the_others_and_a_close_ends_them() -> None:
    async def scenario(bookies: Bookies) -> None:
        readers = [asyncio.ensure_future(bookies.read(5, 14)) for _ in range(3)]
        await asyncio.sleep(0.5)
        readers[0].cancel()
        await asyncio.sleep(0.1)
        assert bookies.fetches._running[3][0].waiters == 2
        await bookies.background.close()
        for reader in readers[1:]:
            with pytest.raises(ManagedLedgerClosedError, match="closed while its ledger 3 was read"):
                await reader

    run(scenario)
