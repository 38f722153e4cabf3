"""Notes of the findings of scrubs."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.limits import DAMAGE_RANGES_MAX
from quire_bookie.metadata.damage_notes import DamageNotes, joined
from quire_bookie.model import BookieId, EntryId, LedgerId
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore

A, B = BookieId("a:3181"), BookieId("b:3181")
LEDGER = LedgerId(2**40)


def ids(*ranges: tuple[int, int]) -> list[tuple[EntryId, EntryId]]:
    return [(EntryId(first), EntryId(last)) for first, last in ranges]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9)), max_size=40))
def test_joined_ranges_contain_the_same_ids_ascending_and_disjoint(spans: list[tuple[int, int]]) -> None:
    ranges = ids(*((first, first + more) for first, more in spans))
    found = joined(ranges)
    assert {n for a, b in found for n in range(a, b + 1)} == {n for a, b in ranges for n in range(a, b + 1)}
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found))


def test_too_many_ranges_become_few_that_cover_them() -> None:
    found = joined(ids(*((3 * n, 3 * n) for n in range(1000))))
    assert len(found) == DAMAGE_RANGES_MAX and found[-1] == (3 * (DAMAGE_RANGES_MAX - 1), 2997)


def test_notes_accumulate_and_are_removed_only_if_unchanged() -> None:
    async def scenario(_: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        notes = DamageNotes(SimMetadataStore(server))
        await notes.note(LEDGER, A, ids((5, 6)), 1)
        await notes.note(LEDGER, A, ids((7, 9), (20, 20)), 2)
        await notes.note(LEDGER, B, ids((0, 0)), 3)
        first, second = await notes.read(LEDGER)
        assert (first.bookie, first.ranges, second.bookie) == (A, tuple(ids((5, 9), (20, 20))), B)
        await notes.note(LEDGER, A, ids((6, 8)), 4)
        assert (await notes.read(LEDGER))[0].version == first.version, "already recorded: no write"
        await notes.note(LEDGER, A, ids((30, 30)), 5)
        await notes.clear(LEDGER, first)
        await notes.clear(LEDGER, second)
        (left,) = await notes.read(LEDGER)
        assert left.ranges[-1] == (30, 30), "more was recorded since"
        assert await notes.read(LedgerId(1)) == []
        for nonsense in (b"?", b"[]", b'{"ranges": [1]}', b'{"ranges": [[1, 1e999]]}', b"\xff"):
            server.write(f"/quire/damage/L{LEDGER:019d}/{A}", nonsense, None)
            (broken,) = await notes.read(LEDGER)
            assert broken.ranges == ()

    simulate(scenario, seed=1)
