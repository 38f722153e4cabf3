"""Tests that due marks of under-replicated ledgers are written despite errors."""

import asyncio
from collections.abc import Iterable

from quire_bookie.client.hole_marks import HoleMarks
from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, LedgerId
from tests.sim.loop import SimLoop, simulate

A, B = BookieId("a"), BookieId("b")


class Store:
    """Records marks, after raising the errors of the test."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.written: list[tuple[int, tuple[str, ...]]] = []

    async def mark(self, ledger: LedgerId, bookies: Iterable[BookieId]) -> bool:
        await asyncio.sleep(0.01)
        if self.errors:
            raise self.errors.pop(0)
        self.written.append((ledger, tuple(bookies)))
        return True


def marks_of(store: Store) -> HoleMarks:
    stand_in: UnderReplication = store  # type: ignore[assignment]
    return HoleMarks(stand_in)


def test_an_unexpected_error_does_not_end_the_marking() -> None:
    async def scenario(_: SimLoop) -> None:
        store = Store(ValueError("a broken mark"), MetadataUnavailableError("away"))
        marks = marks_of(store)
        marks.mark(LedgerId(1), A)
        marks.mark(LedgerId(2), A)
        marks.mark(LedgerId(1), B)
        await asyncio.sleep(60)
        assert sorted(store.written) == [(1, ("a", "b")), (2, ("a",))]
        assert (marks.written, marks.failures) == (2, 2)
        marks.mark(LedgerId(3), B)
        await asyncio.sleep(1)
        assert store.written[-1] == (3, ("b",)), "a new task writes later marks"
        await marks.close()

    simulate(scenario, seed=1)


def test_one_mark_that_always_fails_blocks_no_other() -> None:
    async def scenario(_: SimLoop) -> None:
        store = Store()
        original = store.mark

        async def refuse_one(ledger: LedgerId, bookies: Iterable[BookieId]) -> bool:
            if ledger == 1:
                raise KeyError("never")
            return await original(ledger, bookies)

        store.mark = refuse_one  # type: ignore[method-assign]
        marks = marks_of(store)
        for number in (1, 2, 3):
            marks.mark(LedgerId(number), A)
        await asyncio.sleep(60)
        assert store.written == [(2, ("a",)), (3, ("a",))]
        await marks.close()

    simulate(scenario, seed=1)
